"""Safetensors files with metadata, which are written whole or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedml_dapper.errors import DataError
from fedml_dapper.files.atomic import written_whole
from fedml_dapper.pruning import Tensors


class UnusableError(DataError):
    """A file is whole for the system, and of no use here: damaged, or with the content of something else."""


def write_tensors(tensors: Tensors, metadata: Mapping[str, str], path: Path) -> None:
    """Write ``tensors`` and ``metadata``; an older file at ``path`` stays until the new one is complete."""
    with written_whole(path) as scratch:
        try:
            save_file(storable(tensors), scratch, dict(metadata))
        except SafetensorError as error:
            if "header too large" in str(error):
                raise DataError(
                    f"cannot write {path.absolute()}: a safetensors file cannot name {len(tensors):,} tensors; it ends"
                    " at about half a million, so take fewer clients, or a method that remembers less of each"
                ) from error
            raise OSError(str(error)) from error


def read_tensors(path: Path, noun: str) -> dict[str, Tensor]:
    """Read all tensors of a file, a ``noun`` in errors.

    Raises:
        UnusableError: The file is damaged.
        DataError: The file is missing, or the system does not let it be read now.
    """
    with _opened(path, noun) as file:
        return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


def metadata_of(path: Path, noun: str) -> dict[str, str]:
    """Read the metadata of a file, a ``noun`` in errors; raises what :func:`read_tensors` does."""
    with _opened(path, noun) as file:
        return dict(file.metadata() or {})


def storable(tensors: Tensors) -> dict[str, Tensor]:
    """Return tensors as safetensors takes them: on the CPU, contiguous, and copied where two share memory."""
    moved = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    users = Counter(tensor.untyped_storage().data_ptr() for tensor in moved.values())
    return {
        name: tensor.clone() if users[tensor.untyped_storage().data_ptr()] > 1 else tensor
        for name, tensor in moved.items()
    }


@contextmanager
def _opened(path: Path, noun: str) -> Iterator[Any]:  # safetensors' own types say nothing
    if path.exists() and not path.is_file():  # opening a FIFO would wait for ever
        raise UnusableError(f"{noun} {path} is damaged: it is no file")
    try:
        with safe_open(path, "pt") as file:
            yield file
    except SafetensorError as error:
        raise UnusableError(f"{noun} {path} is damaged: {error}") from error
    except OSError as error:
        raise DataError(f"{noun} {path} cannot be read: {error.strerror or error}") from error
