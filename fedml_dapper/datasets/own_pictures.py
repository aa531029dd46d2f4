"""A user's own pictures, ``dataset: folder``: folders say classes and domains.

Folders are ``<root>/<domain>/<class>/*``, or ``<root>/<class>/*`` for a single domain, named after the root.
Folders of results beside them are passed over. ``train/``, ``val/`` and ``test/`` may stand above the class folders or
above the domain folders. Without them every class is split, the same way whatever the experiment's seed. Files written
by ``fedml-dapper data pack`` are read as well.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedml_dapper.config import DataArgs, did_you_mean
from fedml_dapper.datasets.beside_pictures import pictures_below
from fedml_dapper.datasets.image_set import ImageSet
from fedml_dapper.datasets.npz import Array, read_arrays
from fedml_dapper.datasets.picture_files import SUFFIXES, is_picture
from fedml_dapper.datasets.preprocessing import Preprocessing
from fedml_dapper.datasets.recipe import DomainRecipe, SuiteRecipe
from fedml_dapper.datasets.sources import (
    PartName,
    Request,
    Splits,
    check_name,
    class_names,
    packed_classes,
    packed_sets,
    read_picture,
)
from fedml_dapper.errors import DataError, shortened
from fedml_dapper.randomness.seeding import Stream, numpy_generator

SIDE = 32
"""Height and width to which pictures are resized unless ``data_args.image_size`` says otherwise."""
TEST_SHARE = 0.2
"""Share of every class for testing unless ``data_args.test_share`` says otherwise."""


@dataclass
class FoundDomain:
    """A domain's picture files by part and class."""

    name: str
    folder: Path
    parts: dict[PartName, dict[str, list[Path]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, part: PartName, folder: Path) -> None:
        """Add the class folders in ``folder`` to ``part``."""
        files = self.parts.setdefault(part, {})
        for name in class_names(folder):
            found = pictures_below(folder / name)
            if not found:
                raise DataError(
                    f"{folder / name}: a class folder without pictures; put some in, or remove it"
                    f" ({', '.join(sorted(SUFFIXES))})"
                )
            files.setdefault(name, []).extend(found)

    @property
    def train(self) -> dict[str, list[Path]]:
        """Training files by class, or those still to be split."""
        return self.parts.get("train") or self.parts.get("all") or {}


def find_recipe_in(root: Path, args: DataArgs) -> SuiteRecipe:
    """Return the suite in the folder ``root``; its pictures are listed, not read.

    Raises:
        DataError: There is no such folder, or its contents are no suite.
    """
    if not root.is_dir():
        raise DataError(
            f"data_args.data_cache_dir: no folder {root.absolute()}; it has the folders of pictures, or what"
            " `fedml-dapper data pack` wrote"
        )
    root = root.resolve()
    packed = sorted(root.glob("*.npz"))
    share = args.test_share or TEST_SHARE
    if packed:
        classes, domains = _packed_domains(packed, args.classes, share)
    else:
        classes, domains = _picture_domains(root, args.classes, share, args.skip_damaged)
    return recipe_of(classes, domains, args, root.name)


def recipe_of(classes: tuple[str, ...], domains: tuple[DomainRecipe, ...], args: DataArgs, name: str) -> SuiteRecipe:
    """Return the suite called ``name`` of these ``domains``; classes that ``args`` name come before ``classes``."""
    side = args.image_size or SIDE
    return SuiteRecipe(
        name=name,
        classes=args.classes if isinstance(args.classes, tuple) else classes,
        domains=domains,
        preprocessing=Preprocessing(input_size=side),
        client_share=None,
        swap_in_missing_classes=False,
        notes=() if args.image_size else (f"pictures are brought to {side}x{side}; data_args.image_size sets that",),
    )


def _agreed(place: Path, found: Iterable[str], stated: int | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the classes ``found``, sorted, or those ``stated``.

    Raises:
        DataError: The two contradict each other.
    """
    names = tuple(sorted(set(found)))
    if isinstance(stated, int) and stated != len(names):
        raise DataError(
            f"{place}: has {len(names)} classes ({shortened(', '.join(names))}), data_args.classes says {stated}"
        )
    if isinstance(stated, tuple):
        for name in names:
            if name not in stated:
                raise DataError(f"{place}: class {name} is not in data_args.classes{did_you_mean(name, stated)}")
        return stated
    if len(names) < 2:
        found_in_all = f"one class only ({names[0]})" if names else "no class"
        raise DataError(f"{place}: has {found_in_all}; there have to be two, to tell them apart")
    return names


def _picture_domains(
    root: Path, stated: int | tuple[str, ...] | None, share: float, skip_damaged: bool
) -> tuple[tuple[str, ...], tuple[DomainRecipe, ...]]:
    found = find_pictures(root)
    names = {name for domain in found for files in domain.parts.values() for name in files}
    classes = _agreed(root, names, stated)
    _check_trained(root, names, (domain.train for domain in found))
    sources = [_listed(domain, classes, share, skip_damaged, root) for domain in found]
    return classes, tuple(DomainRecipe(domain.name, (source,)) for domain, source in zip(found, sources, strict=True))


def _check_trained(place: Path, classes: Iterable[str], trained: Iterable[Iterable[str]]) -> None:
    untrained = set(classes).difference(*trained)
    if untrained:
        raise DataError(
            f"{place}: class {min(untrained)} has no training pictures in any domain; put some in train/, or remove the"
            " class"
        )


def find_pictures(root: Path) -> list[FoundDomain]:
    """Find the domains in ``root``, sorted by name, with all picture files.

    Raises:
        DataError: The folders can be read in several ways, or in none.
    """
    found: dict[str, FoundDomain] = {}
    for part, folder in _parts(root):
        for name, below in _domain_folders(root, folder):
            domain = found.setdefault(name, FoundDomain(name, below))
            for inner, place in _parts(below) if part == "all" and below != root else [(part, below)]:
                domain.add(inner, place)
    for domain in found.values():
        _check_parts(root, domain)
    partial = [domain.name for domain in found.values() if "validation" not in domain.parts]
    if partial and len(partial) < len(found):
        raise DataError(f"{root}: domain {partial[0]} has no val/ and others have; give it one, or remove theirs")
    return [found[name] for name in sorted(found)]


def _check_parts(root: Path, domain: FoundDomain) -> None:
    if "validation" in domain.parts and "test" not in domain.parts:
        domain.parts["test"] = domain.parts.pop("validation")
        domain.notes.append(f"domain {domain.name} is tested on val/, having no test/")
    if "all" not in domain.parts and not domain.parts.get("test"):
        raise DataError(f"{root}: domain {domain.name} has no test pictures; add test/ beside its train/")
    if "all" not in domain.parts and not domain.train:
        raise DataError(f"{root}: domain {domain.name} has test/ but no train/; add it")
    for part in domain.parts:
        if not domain.parts[part]:
            raise DataError(f"{root}: domain {domain.name} has no class folders in its {part} folder")


def _parts(folder: Path) -> list[tuple[PartName, Path]]:
    """The folders ``train/``, ``valid/`` (for training too), ``val/`` and ``test/`` of ``folder``, or all of it.

    Their names may have capitals.

    Raises:
        DataError: Other folders beside them hold pictures, which nobody would read, or are called like parts.
    """
    names: dict[str, PartName] = {"train": "train", "valid": "train", "val": "validation", "test": "test"}
    there = {inside.name.lower(): inside for inside in sorted(folder.iterdir()) if inside.is_dir()}
    parts = [(part, there[name]) for name, part in names.items() if name in there]
    if parts:
        _check_beside(folder, [place for _, place in parts])
        return parts
    _check_no_part(folder, [name for name in class_names(folder) if not _is_class(folder / name)])
    return [("all", folder)]


def _check_beside(folder: Path, parts: Sequence[Path]) -> None:
    others = [folder / name for name in class_names(folder) if folder / name not in parts]
    unread = next(filter(pictures_below, others), None)
    if unread is None:
        return
    meant = next(filter(_is_class, parts), None)
    if meant and _is_class(unread):
        raise DataError(
            f"{meant}: holds pictures, as {unread.name}/ beside it, but `{meant.name}` is reserved for the folder of a"
            " part of the pictures; rename the folder if it is a class"
        )
    raise DataError(
        f"{unread}: is none of train/, valid/ (for training too), val/ (for validation) and test/, and beside"
        f" {parts[0].name}/ nothing else is read; call it one of these, or move its pictures into them or elsewhere"
    )


def _is_class(folder: Path) -> bool:
    """Whether ``folder`` holds pictures itself."""
    return any(is_picture(file) for file in folder.iterdir())


_PARTS_BY_OTHER_NAMES = ("training", "testing", "validation", "validate", "eval", "evaluation")


def _check_no_part(folder: Path, names: Sequence[str]) -> None:
    """Raise :class:`DataError` where a folder that is taken for a domain or a class is called like a part."""
    if parts := [name for name in names if name.lower() in _PARTS_BY_OTHER_NAMES]:
        raise DataError(
            f"{folder / parts[0]}: is that a domain or a class, or a part of the pictures? Parts are called train, val"
            " and test; call it one of these, or give it another name"
        )


def _domain_folders(root: Path, folder: Path) -> list[tuple[str, Path]]:
    """The domains in ``folder``: its folders, or ``folder`` itself where these hold pictures and so are classes."""
    names = class_names(folder)
    classes = [name for name in names if _is_class(folder / name)]
    domains = [name for name in names if name not in classes and class_names(folder / name)]
    if classes and domains:
        raise DataError(
            f"{folder}: {classes[0]}/ holds pictures and {domains[0]}/ holds folders; make them all classes, or all"
            " domains with class folders inside"
        )
    if classes:
        return [(root.name, folder)]
    if not domains:
        raise DataError(
            f"{folder}: no pictures in <domain>/<class>/ or <class>/ folders; supported are"
            f" {', '.join(sorted(SUFFIXES))} and .npz files from `fedml-dapper data pack`"
        )
    _check_no_part(folder, domains)
    empty = [name for name in names if name not in domains]
    if empty:
        raise DataError(f"{folder / empty[0]}: an empty folder; put class folders with pictures in, or remove it")
    return [(name, folder / name) for name in domains]


Labelled = tuple[tuple[Path, int], ...]


@dataclass(frozen=True)
class ListedFiles:
    """Source of a domain whose picture files are known one by one."""

    place: str
    parts: Mapping[PartName, Labelled]
    skip_damaged: bool
    notes: tuple[str, ...]

    def exists(self, root: Path) -> bool:
        """Return True: the files were found before."""
        return True

    def read(self, request: Request) -> Splits | None:
        """Read the pictures in RGB, resized.

        Raises:
            DataError: A picture is damaged and ``skip_damaged`` is off, or no picture of a part is left.
        """
        damaged: list[str] = []
        sets = {part: self._read(labelled, request.size, damaged) for part, labelled in self.parts.items()}
        notes = self.notes
        if damaged:
            named = ", ".join(damaged[:3]) + (", ..." if len(damaged) > 3 else "")
            notes += (f"{self.place}: {len(damaged)} damaged pictures are left out ({named})",)
        for part, samples in sets.items():
            if not len(samples):
                raise DataError(f"{self.place}: all {part} pictures are damaged; replace them")
        return Splits(sets["train"], sets["test"], sets.get("validation"), notes)

    def _read(self, labelled: Labelled, size: int, damaged: list[str]) -> ImageSet:
        images = torch.empty(len(labelled), 3, size, size, dtype=torch.uint8)
        labels: list[int] = []
        for file, label in labelled:
            try:
                images[len(labels)] = read_picture(file, size)
            except DataError as error:
                if not self.skip_damaged:
                    raise DataError(f"{error}, or set data_args.skip_damaged") from error
                damaged.append(file.name)
            else:
                labels.append(label)
        return ImageSet(images[: len(labels)], torch.tensor(labels, dtype=torch.int64))


def _listed(domain: FoundDomain, classes: Sequence[str], share: float, skip_damaged: bool, root: Path) -> ListedFiles:
    places = {name: label for label, name in enumerate(classes)}
    parts: dict[PartName, Labelled] = {
        part: tuple((file, places[name]) for name, files in sorted(by_class.items()) for file in files)
        for part, by_class in domain.parts.items()
    }
    if "all" in parts:
        whole = parts.pop("all")
        train, test = stratified(torch.tensor([label for _, label in whole]), classes, domain.name, share)
        parts["train"], parts["test"] = (tuple(whole[index] for index in chosen.tolist()) for chosen in (train, test))
        if not parts["test"]:
            raise DataError(
                f"{domain.folder}: domain {domain.name} has no test pictures: each of its classes has one picture only;"
                " add more"
            )
    place = root.name if domain.name == root.name else f"{root.name}/{domain.name}"
    return ListedFiles(f"{place}/", parts, skip_damaged, tuple(domain.notes))


def stratified(labels: Tensor, classes: Sequence[str], domain: str, share: float) -> tuple[Tensor, Tensor]:
    """Split sample indices, sorted, into training and test, by class.

    Of every class, ``share`` is for testing, rounded, and at least one of two samples. The draw depends on the names of
    domain and class alone. So it is the same in every experiment, and an added domain or class changes no other.
    """
    test = []
    for label in sorted(set(labels.tolist())):
        members = torch.nonzero(labels == label).flatten()
        count = min(max(1, round(share * len(members))), len(members) - 1)
        rng = numpy_generator(0, Stream.SPLIT, _number(domain), _number(classes[label]))
        test.append(members[torch.from_numpy(rng.permutation(len(members))[:count])])
    for_testing = torch.zeros(len(labels), dtype=torch.bool)
    for_testing[torch.cat(test)] = True
    return torch.nonzero(~for_testing).flatten(), torch.nonzero(for_testing).flatten()


def _number(name: str) -> int:
    return zlib.crc32(name.encode())


@dataclass(frozen=True)
class OwnPackedFile:
    """Source of a domain in a file that ``fedml-dapper data pack`` wrote."""

    path: Path
    domain: str
    classes: tuple[str, ...]
    """Classes of the file, in the order of its labels."""
    test_share: float

    @property
    def place(self) -> str:
        return self.path.name

    def exists(self, root: Path) -> bool:
        """Return True: the file was found before."""
        return True

    def read(self, request: Request) -> Splits | None:
        """Read its images, with labels that refer to the classes asked for."""
        sets = packed_sets(self.path, read_arrays(self.path), len(self.classes), request.size)
        labels = torch.tensor([request.classes.index(name) for name in self.classes])
        sets = {part: ImageSet(samples.images, labels[samples.labels]) for part, samples in sets.items()}
        if "all" in sets:
            whole = sets.pop("all")
            train, test = stratified(whole.labels, request.classes, self.domain, self.test_share)
            sets["train"] = whole.take(train)
            sets["test"] = whole.take(test)
        return Splits(sets["train"], sets["test"], sets.get("validation"))


def _packed_domain(file: Path, name: Array) -> str:
    if name.size != 1 or name.dtype.kind != "U":
        raise DataError(f"{file}: domain is {name.dtype} {name.shape}; expected one name")
    return str(name.item())


def _classes_in(file: Path, arrays: Mapping[str, Array], names: Sequence[str]) -> list[str]:
    """Names of the classes that the file has training pictures of."""
    key = "y_train" if "y_train" in arrays else "y"
    labels = arrays.get(key, np.empty(0, np.int64))
    if labels.dtype.kind not in "iu":
        raise DataError(f"{file}: {key} is {labels.dtype} {labels.shape}; expected integers, the numbers of classes")
    return [names[label] for label in np.unique(labels).tolist() if 0 <= label < len(names)]


def _packed_domains(
    files: Sequence[Path], stated: int | tuple[str, ...] | None, share: float
) -> tuple[tuple[str, ...], tuple[DomainRecipe, ...]]:
    folder = files[0].parent
    sources = []
    trained = []
    for file in files:
        arrays = read_arrays(file, ("classes", "domain", "y", "y_train"))
        if "classes" not in arrays:
            raise DataError(f"{file}: does not say its `classes`; pack it by `fedml-dapper data pack`")
        names = packed_classes(file, arrays["classes"])
        domain = _packed_domain(file, arrays["domain"]) if "domain" in arrays else file.stem
        check_name(f"{file}: its domain is", domain)
        sources.append(OwnPackedFile(file, domain, names, share))
        trained.append(_classes_in(file, arrays, names))
    twice = [name for name, count in Counter(source.domain for source in sources).items() if count > 1]
    if twice:
        raise DataError(f"{folder}: two packed files are of domain {twice[0]}; give each suite a folder of its own")
    found = {name for source in sources for name in source.classes}
    _check_trained(folder, found, trained)
    return _agreed(folder, found, stated), tuple(DomainRecipe(source.domain, (source,)) for source in sources)
