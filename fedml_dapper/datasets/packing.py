"""Packing of picture folders into ``.npz`` files: quick to load, easy to copy, all of one size."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedml_dapper.datasets.image_set import concatenate
from fedml_dapper.datasets.npz import Array
from fedml_dapper.datasets.sources import class_names, find_splits, read_pictures
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.files.atomic import written_whole


def pack(source_root: Path, suite: str, out: Path, size: int) -> list[Path]:
    """Pack every ``<source_root>/<suite>/<domain>/`` as ``<out>/<suite>_<domain>.npz`` and return the files written.

    A suite of one data set, which has ``train/`` in the place of domains, becomes ``<out>/<suite>.npz``. Images become
    uint8 (N, ``size``, ``size``, 3). A domain without ``train/`` is packed unsplit (``x``, ``y``). Labels refer to the
    classes of all domains, sorted by name. A file is written whole or not at all.

    Raises:
        ConfigError: ``size`` is below 1.
        DataError: The folder is missing or not laid out like that.
    """
    if size < 1:
        raise ConfigError(f"size is {size}; give the height and width in pixels, e.g. 32")
    folder = source_root / suite
    domains = class_names(folder) if folder.is_dir() else []
    if not domains:
        raise DataError(f"no domain folders in {folder.absolute()}; see data/README.md for the layout")
    if "train" in domains:
        targets = [(folder, suite, out / f"{suite}.npz")]
    else:
        targets = [(folder / domain, domain, out / f"{suite}_{domain}.npz") for domain in domains]
    classes = sorted({name for place, _, _ in targets for part in _parts(place).values() for name in _names(part)})
    out.mkdir(parents=True, exist_ok=True)
    return [_pack_domain(place, domain, classes, file, size) for place, domain, file in targets]


def _parts(folder: Path) -> dict[str, list[Path]]:
    """Suffix of the arrays' names -> the folders whose pictures they hold."""
    train, test = find_splits(folder)
    if test is None:
        return {"": train}
    parts = {"_train": train, "_test": [test]}
    if test.name == "test" and (folder / "val").is_dir():
        parts["_val"] = [folder / "val"]
    return parts


def _names(folders: list[Path]) -> list[str]:
    return [name for folder in folders for name in class_names(folder)]


def _pack_domain(folder: Path, domain: str, classes: list[str], file: Path, size: int) -> Path:
    arrays: dict[str, Array] = {}
    for suffix, folders in _parts(folder).items():
        samples = concatenate([read_pictures(part, classes, size, some=True) for part in folders])
        arrays[f"x{suffix}"] = samples.images.permute(0, 2, 3, 1).numpy()
        arrays[f"y{suffix}"] = samples.labels.numpy()
    with written_whole(file) as scratch:
        np.savez_compressed(scratch, **arrays, classes=np.array(classes), domain=np.array(domain))
    return file
