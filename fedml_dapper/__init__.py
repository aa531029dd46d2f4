"""DapperFL and its relatives on FedML: every client trains a physically slim model of its own.

``fedml_dapper.run("quickstart.yaml")`` trains, :class:`fedml_dapper.Run` is what came of it, and
``fedml_dapper.load_model("global_model.safetensors")`` is the network alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedml_dapper.runs import Run, load_model, run

__version__ = "0.2.0"
__all__ = ["Run", "__version__", "load_model", "run"]


def __getattr__(name: str) -> object:
    """The front door, loaded when it is used: torch takes seconds."""
    if name in ("Run", "load_model", "run"):
        from fedml_dapper import runs  # noqa: PLC0415

        return getattr(runs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
