"""``dapper-device`` where nothing can be imported that a device does not have; ``python lightly.py run FILES ...``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

FORBIDDEN = {
    "fedml", "torchvision", "sklearn", "scipy", "pandas", "matplotlib", "optuna", "opacus", "wandb", "torch_pruning",
    "prometheus_client", "rich", "jinja2", "markupsafe", "markdown_it", "onnx", "onnxruntime", "mpi4py",
}  # fmt: skip
"""What the full package has and a device has not."""


class Forbidding:
    """Finds no module of :data:`FORBIDDEN`, wherever it is installed."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec:
        if name.split(".", maxsplit=1)[0] in FORBIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}, which a device does not have", name=name)
        return None  # type: ignore[return-value]  # the next finder is asked


if __name__ == "__main__":
    sys.meta_path.insert(0, Forbidding())  # type: ignore[arg-type]
    from fedml_dapper.device.entry import main

    main()
