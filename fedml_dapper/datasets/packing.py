"""Folders of pictures into packed files: quick to load, easy to copy, all of one size."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from fedml_dapper.datasets.image_set import ImageSet, concatenate
from fedml_dapper.datasets.sources import Array, class_names, find_splits, read_pictures
from fedml_dapper.errors import ConfigError, DataError


def pack(source_root: Path, suite: str, out: Path, size: int) -> list[Path]:
    """Pack every ``<source_root>/<suite>/<domain>/`` as ``<out>/<suite>_<domain>.npz`` and return the files written.

    A suite of one data set, which has ``train/`` in the place of domains, becomes ``<out>/<suite>.npz``. Images become
    uint8 (N, ``size``, ``size``, 3). A domain without ``train/`` is packed unsplit (``x``, ``y``). All domains must
    have the same class folders. A file appears complete or not at all.
    """
    if size < 1:
        raise ConfigError(f"size is {size}; give the height and width in pixels, e.g. 32")
    folder = source_root / suite
    domains = class_names(folder) if folder.is_dir() else []
    if not domains:
        raise DataError(f"no domain folders in {folder.absolute()}; see data/README.md for the layout")
    out.mkdir(parents=True, exist_ok=True)
    if "train" in domains:
        return [_pack_domain(folder, class_names(folder / "train"), out / f"{suite}.npz", size)]
    classes = class_names(find_splits(folder / domains[0])[0][0])
    return [_pack_domain(folder / domain, classes, out / f"{suite}_{domain}.npz", size) for domain in domains]


def _pack_domain(folder: Path, classes: list[str], file: Path, size: int) -> Path:
    train, test = find_splits(folder)
    training = concatenate([read_pictures(part, classes, size) for part in train])
    if test is None:
        arrays = _arrays(training, "")
    else:
        arrays = _arrays(training, "_train") | _arrays(read_pictures(test, classes, size), "_test")
    _write(file, {**arrays, "classes": np.array(classes)})
    return file


def _arrays(samples: ImageSet, suffix: str) -> dict[str, Array]:
    return {f"x{suffix}": samples.images.permute(0, 2, 3, 1).numpy(), f"y{suffix}": samples.labels.numpy()}


def _write(file: Path, arrays: dict[str, Array]) -> None:
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            np.savez_compressed(stream, **arrays)
        temporary.chmod(0o644)
        temporary.replace(file)
    except BaseException:
        temporary.unlink()
        raise
