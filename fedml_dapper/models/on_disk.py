"""A network whose parameters lie in a file that is mapped: they take memory while they are read, and not beyond.

A device holds the whole initial model only to cut the part out of it that it trains. On a network of 11 million
parameters that model takes 45 MB, more than weights, gradients and momentum of a weak level together.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from tempfile import TemporaryFile
from weakref import WeakKeyDictionary

import torch
from torch import nn

from fedml_dapper.files.atomic import explained

_ALIGNMENT = 64
"""Bytes to a multiple of which torch aligns its own memory."""
_files: WeakKeyDictionary[nn.Module, mmap.mmap] = WeakKeyDictionary()


@torch.no_grad()
def put_on_disk(model: nn.Module, folder: Path | None = None) -> None:
    """Move the parameters of ``model`` into a file without a name, which ends with the network or the process.

    They are the same objects with the same values, and can be changed. Those on a GPU stay where they are.

    Args:
        model: The network.
        folder: Where the file lies; the system's folder for temporary files if None.

    Raises:
        DataError: It cannot be written.
    """
    moved = [each for each in model.parameters() if each.device.type == "cpu" and each.is_contiguous() and each.numel()]
    if not moved:
        return
    places = []
    with explained(folder or Path("a temporary file")), TemporaryFile(dir=folder) as file:
        for parameter in moved:
            file.seek(-file.tell() % _ALIGNMENT, os.SEEK_CUR)
            places.append(file.tell())
            file.write(parameter.detach().flatten().view(torch.uint8).numpy().data)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0)
    for parameter, place in zip(moved, places, strict=True):
        whole = torch.frombuffer(mapped, dtype=parameter.dtype, count=parameter.numel(), offset=place)
        parameter.data = whole.view(parameter.shape)
    _files[model] = mapped


def let_go(model: nn.Module) -> None:
    """Give back the memory of parameters that lie in a file; they are read again when somebody looks at them."""
    mapped = _files.get(model)
    if mapped is not None:
        mapped.madvise(mmap.MADV_DONTNEED)  # the file, which others may have written to, keeps all of it
