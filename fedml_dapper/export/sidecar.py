"""``model.json``: what an app has to know of the file beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from fedml_dapper.errors import DataError

SIDECAR_NAME = "model.json"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Port(_Part):
    """A file's input or output."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    """The batch's size is free, which None stands for."""
    meaning: str


class Sidecar(_Part):
    """Inputs, outputs and classes of exported files, and which model they hold."""

    schema_version: Literal[1] = 1
    network: str
    files: dict[str, str]
    """By format; ``onnx-int8`` is the quantised one."""
    input: Port | tuple[Port, ...]
    """Several where an input is several tensors: by name, for files without names in this order."""
    output: Port
    task: str
    classes: tuple[str, ...]
    """In the order of the scores; empty where outputs are no classes."""
    suite: str
    method: str
    rounds: int
    whose: str
    changes: tuple[str, ...]
    level: int | None
    ratio: float
    client: int | None
    parameters: int
    macs: int
    """Multiply-accumulates of one input."""
    version: str
    commit: str | None

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The ports of an input's tensors, also where it is one alone."""
        return (self.input,) if isinstance(self.input, Port) else self.input

    @property
    def names_classes(self) -> bool:
        """Whether it says of a picture which class it is of."""
        return self.task == "classification" and [port.name for port in self.inputs] == ["pixels"]


def read_sidecar(folder: Path) -> Sidecar:
    """The sidecar in ``folder``; raises :class:`DataError` where there is none, or one of another version."""
    path = folder / SIDECAR_NAME
    try:
        return Sidecar.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"no {SIDECAR_NAME} in {folder.absolute()}; `fedml-dapper export` writes it beside the model, keep them"
            " together"
        ) from error
    except ValidationError as error:
        mistake = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(step) for step in mistake["loc"])
        raise DataError(f"{path} is damaged or of another version: `{place}`: {mistake['msg']}") from error
