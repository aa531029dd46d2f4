"""DapperFL, FDSE, FedCMD and the methods they compare with, on FedML, with physically slim models for weak devices.

``fedml_dapper.run("quickstart.yaml")`` trains a federation, :class:`fedml_dapper.Run` reads a run's results, and
``fedml_dapper.load_model("global_model.safetensors")`` loads a trained network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedml_dapper.runs import Run, load_model, run

__version__ = "0.2.0"
__all__ = ["Run", "__version__", "load_model", "run"]


def __getattr__(name: str) -> object:
    # Loaded when it is used, since importing torch takes seconds.
    if name in ("Run", "load_model", "run"):
        from fedml_dapper import runs  # noqa: PLC0415

        return getattr(runs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
