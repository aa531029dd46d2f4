"""Packing of picture folders into ``.npz`` files: quick to load, easy to copy, all of one size."""

from __future__ import annotations

from collections.abc import Sequence
from glob import escape
from pathlib import Path

import numpy as np

from fedml_dapper.datasets.beside_pictures import pictures_below
from fedml_dapper.datasets.npz import Array
from fedml_dapper.datasets.own_pictures import find_pictures
from fedml_dapper.datasets.sources import PartName, class_names, find_splits, read_all
from fedml_dapper.datasets.suites import PUBLISHED
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.files.atomic import written_whole

ByClass = dict[str, list[Path]]
"""Picture files by class."""
Parts = dict[PartName, list[ByClass]]
"""The pictures of a domain's parts, as training reads them: one mapping after another, and each by class."""
_SUFFIXES: dict[PartName, str] = {"all": "", "train": "_train", "test": "_test", "validation": "_val"}
"""Ends of the names of a part's arrays."""


def pack(source_root: Path, suite: str, out: Path, size: int) -> list[Path]:
    """Pack the pictures in ``<source_root>/<suite>/`` and return the files.

    They are laid out as for ``dataset: folder`` or, where ``suite`` is a published one, as data/README.md says.

    Every domain becomes ``<out>/<suite>_<domain>.npz``, and a suite of one data set, without folders of domains,
    ``<out>/<suite>.npz``. Images become uint8 (N, ``size``, ``size``, 3). A domain without ``train/`` is packed unsplit
    (``x``, ``y``). Labels refer to the classes of all domains, sorted by name. A file is written whole or not at all.

    Raises:
        ConfigError: ``size`` is below 1, ``suite`` is no name of a folder, or ``out`` cannot be a folder, or holds a
            file of a domain that is no more among a user's own.
        DataError: The folder is missing or not laid out like that.
    """
    if size < 1:
        raise ConfigError(f"size is {size}; give the height and width in pixels, e.g. 32")
    if Path(suite).name != suite or suite == "..":
        raise ConfigError(
            f"`{suite}` is no name of a folder in {source_root}, after which files could be called; of a folder A/B,"
            " give A and B apart: fedml-dapper data pack A B"
        )
    folder = source_root / suite
    if not folder.is_dir():
        raise DataError(f"no folder {folder.absolute()}; see data/README.md for the layout")
    domains = _published(folder, suite) if suite in PUBLISHED else _own(folder)
    pictures = (by_class for parts in domains.values() for part in parts.values() for by_class in part)
    classes = sorted({name for by_class in pictures for name in by_class})
    files = {name: _file(out, suite, name) for name in domains}
    if suite not in PUBLISHED:
        _check_none_left(out, suite, list(files.values()))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ConfigError(f"{out.absolute()} is a file; name a folder for the packed files") from error
    return [_pack_domain(name, parts, classes, files[name], size) for name, parts in domains.items()]


def _file(out: Path, suite: str, domain: str) -> Path:
    return out / (f"{suite}.npz" if domain == suite else f"{suite}_{domain}.npz")


def _check_none_left(out: Path, suite: str, files: Sequence[Path]) -> None:
    """Raise :class:`ConfigError` where ``out`` holds a file of ``suite`` that ``files`` do not replace.

    ``dataset: folder`` trains on all packed files that it finds; a published suite has a list of its own.
    """
    left = sorted(set(out.glob(f"{escape(suite)}_*.npz")) | set(out.glob(f"{escape(suite)}.npz")))
    for file in left:
        if file not in files:
            raise ConfigError(
                f"{out} also holds {file.name}, as of an earlier packing, which would be trained on too; remove it, or"
                " choose another folder"
            )


def _own(folder: Path) -> dict[str, Parts]:
    """The domains of a user's own pictures, of which a class in ``train/`` and ``valid/`` is read as one."""
    return {
        domain.name: {part: [by_class] for part, by_class in domain.parts.items()} for domain in find_pictures(folder)
    }


def _published(folder: Path, suite: str) -> dict[str, Parts]:
    """The domains of a published suite, whose classes may have folders of pictures within them, as domains have.

    ``train/`` and ``valid/`` are read one after the other.
    """
    names = class_names(folder)
    if not names:
        raise DataError(f"no domain folders in {folder.absolute()}; see data/README.md for the layout")
    return {suite: _parts(folder)} if "train" in names else {name: _parts(folder / name) for name in names}


def _parts(folder: Path) -> Parts:
    train, test = find_splits(folder)
    training = [_by_class(place) for place in train]
    if test is None:
        return {"all": training}
    parts: Parts = {"train": training, "test": [_by_class(test)]}
    if test.name == "test" and (folder / "val").is_dir():
        parts["validation"] = [_by_class(folder / "val")]
    return parts


def _by_class(folder: Path) -> ByClass:
    return {name: pictures_below(folder / name) for name in class_names(folder)}


def _pack_domain(domain: str, parts: Parts, classes: list[str], file: Path, size: int) -> Path:
    arrays: dict[str, Array] = {}
    for part, pictures in parts.items():
        samples = read_all([labelled for by_class in pictures for labelled in _labelled(by_class, classes)], size)
        arrays[f"x{_SUFFIXES[part]}"] = samples.images.permute(0, 2, 3, 1).numpy()
        arrays[f"y{_SUFFIXES[part]}"] = samples.labels.numpy()
    with written_whole(file) as scratch:
        np.savez_compressed(scratch, **arrays, classes=np.array(classes), domain=np.array(domain))
    return file


def _labelled(by_class: ByClass, classes: list[str]) -> list[tuple[Path, int]]:
    """The pictures with their labels, ordered by class."""
    return [(file, classes.index(name)) for name, files in sorted(by_class.items()) for file in files]
