"""The sidecar ``model.json``: what an app has to know of the file beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedml_dapper.errors import DataError
from fedml_dapper.files.regular_file import read_regular

SIDECAR_NAME = "model.json"
_MOST_BYTES = 16 << 20


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Port(_Part):
    """An input or output of a file."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    """Sizes; None for the batch's, which is free."""
    meaning: str


class Sidecar(_Part):
    """Inputs, outputs and classes of exported files, and which model they hold."""

    schema_version: Literal[1] = 1
    network: str
    files: dict[str, str] = Field(min_length=1)
    """Format -> file name; ``onnx-int8`` is the quantised file."""
    input: Port | Annotated[tuple[Port, ...], Field(min_length=1)]
    """One port, or several where an input has several tensors, in the order in which files without names take them."""
    output: Port
    task: str
    classes: tuple[str, ...]
    """Classes in the order of the scores; empty where outputs are no classes."""
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
        """Ports of an input's tensors, as a tuple even for a single one."""
        return (self.input,) if isinstance(self.input, Port) else self.input

    @property
    def names_classes(self) -> bool:
        """Whether it predicts the classes of pictures."""
        return self.task == "classification" and [port.name for port in self.inputs] == ["pixels"]


def read_sidecar(folder: Path) -> Sidecar:
    """Read the sidecar in ``folder``.

    Raises:
        DataError: There is none, or it is damaged or of another version.
    """
    path = folder / SIDECAR_NAME
    try:
        return Sidecar.model_validate_json(read_regular(path, _MOST_BYTES))
    except OSError as error:
        raise DataError(
            f"no {SIDECAR_NAME} in {folder.absolute()}; `fedml-dapper export` writes it beside the model, keep them"
            " together"
        ) from error
    except ValidationError as error:
        mistake = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(step) for step in mistake["loc"])
        raise DataError(f"{path} is damaged or of another version: `{place}`: {mistake['msg']}") from error
