"""Sources of images: packed ``.npz`` files, folders of pictures, and the data sets of torchvision and MedMNIST.

Every source turns what it finds into uint8 images of one size, and returns ``None`` when it finds nothing; damaged
files raise a :class:`DataError` that names them. Larger images are shrunk to the size asked for; smaller ones stay as
they are until a batch needs them larger. The formats are described in ``data/README.md``.
"""

from __future__ import annotations

import struct
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedml_dapper.config import check_letters
from fedml_dapper.datasets.beside_pictures import is_no_data, pictures_below
from fedml_dapper.datasets.colours import to_rgb
from fedml_dapper.datasets.image_set import ImageSet, concatenate
from fedml_dapper.datasets.npz import Array, read_arrays
from fedml_dapper.datasets.picture_files import PICTURE_SUFFIXES
from fedml_dapper.datasets.preprocessing import resize
from fedml_dapper.errors import DataError, shortened
from fedml_dapper.files.regular_file import in_place_of_file

PartName = Literal["train", "validation", "test", "all"]

TRAIN_FOLDERS = ("train", "valid")
TEST_FOLDERS = ("test", "val")
MAX_PIXELS = 1 << 26
"""Most pixels of a picture, 8192 x 8192, which takes 200 MB while it is read."""
_DAMAGES = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    Image.DecompressionBombError,
    struct.error,
    zlib.error,
)
"""Errors of Pillow for damaged pictures, depending on the format and on where a picture is broken."""


@dataclass(frozen=True)
class Request:
    """Request to a source: where to look, whether to download, and the classes and size to deliver."""

    root: Path
    classes: tuple[str, ...]
    """Names of the classes; an empty name fits any."""
    size: int
    """Largest height and width in pixels."""
    download: bool = False


class Splits(NamedTuple):
    """The parts of a domain."""

    train: ImageSet
    test: ImageSet
    validation: ImageSet | None = None
    notes: tuple[str, ...] = ()
    """Messages on what was noticed while reading them."""


class Source(Protocol):
    """A place that a domain can come from."""

    @property
    def place(self) -> str:
        """Place that the source looks at, relative to the root of the data."""

    def exists(self, root: Path) -> bool:
        """Whether something is at :attr:`place`; only reading tells whether it is sound."""

    def read(self, request: Request) -> Splits | None:
        """Return training and test set, or ``None`` when nothing is at :attr:`place`."""


def split_eight_of_ten(samples: ImageSet) -> Splits:
    """Split samples without a published split: position ``i`` is for training when ``i mod 10 <= 7``.

    The samples are ordered by class, then file name, as in DapperFL's public code.
    """
    positions = torch.arange(len(samples))
    training = positions % 10 <= 7
    return Splits(samples.take(positions[training]), samples.take(positions[~training]))


@dataclass(frozen=True)
class PackedFile:
    """The file ``<root>/<name>``: an ``.npz`` with ``x_train, y_train, x_test, y_test``, or ``x, y`` sorted by class.

    Images are uint8 (N, H, W) or (N, H, W, 3), labels integers (N,); ``classes``, where present, names the labels.
    """

    name: str

    @property
    def place(self) -> str:
        return self.name

    def exists(self, root: Path) -> bool:
        return (root / self.name).is_file()

    def read(self, request: Request) -> Splits | None:
        if not self.exists(request.root):
            return None
        return read_packed(request.root / self.name, request.classes, request.size)


def read_packed(path: Path, classes: Sequence[str], size: int) -> Splits:
    """Read the sets in the ``.npz`` at ``path``, at most ``size`` high and wide.

    Raises:
        DataError: The file is not as :class:`PackedFile` says.
    """
    arrays = read_arrays(path)
    if "classes" in arrays:
        _check_classes(path, packed_classes(path, arrays["classes"]), classes)
    sets = packed_sets(path, arrays, len(classes), size)
    return split_eight_of_ten(sets["all"]) if "all" in sets else Splits(sets["train"], sets["test"])


def packed_classes(path: Path, names: Array) -> tuple[str, ...]:
    """Return the names of the labels that the packed file at ``path`` states.

    Raises:
        DataError: ``names`` is no list of names.
    """
    if names.ndim != 1 or names.dtype.kind not in "UiuS":
        raise DataError(f"{path}: classes is {names.dtype} {names.shape}; expected a list of names")
    classes = tuple(name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in names.tolist())
    for name in classes:
        check_name(f"{path}: a class is", name)
    return classes


def packed_sets(path: Path, arrays: dict[str, Array], num_classes: int, size: int) -> dict[PartName, ImageSet]:
    """Return the sets in the ``arrays`` of the packed file at ``path``.

    These are ``all``, or ``train``, ``test`` and perhaps ``validation``.
    """
    if {"x", "y"} <= arrays.keys():
        return {"all": _image_set(path, arrays, ("x", "y"), num_classes, size)}
    if {"x_train", "y_train", "x_test", "y_test"} <= arrays.keys():
        names: dict[PartName, str] = {"train": "train", "test": "test", "validation": "val"}
        if ("x_val" in arrays) != ("y_val" in arrays):
            given, missing = ("x_val", "y_val") if "x_val" in arrays else ("y_val", "x_val")
            raise DataError(f"{path}: has {given} without {missing}; give both, or neither")
        return {
            part: _image_set(path, arrays, (f"x_{name}", f"y_{name}"), num_classes, size)
            for part, name in names.items()
            if f"x_{name}" in arrays
        }
    raise DataError(
        f"{path}: has the arrays {', '.join(sorted(arrays)) or '(none)'}; a packed file holds x and y,"
        " or x_train, y_train, x_test and y_test"
    )


def _image_set(path: Path, arrays: dict[str, Array], keys: tuple[str, str], num_classes: int, size: int) -> ImageSet:
    x, y = (arrays[key] for key in keys)
    shape_fits = x.ndim == 3 or (x.ndim == 4 and x.shape[3] == 3)
    if x.dtype != np.uint8 or not shape_fits or not x.size:
        raise DataError(
            f"{path}: {keys[0]} is {x.dtype} {x.shape}; expected uint8 of shape (N, H, W) or (N, H, W, 3), N > 0"
        )
    if y.dtype.kind not in "iu" or y.shape != x.shape[:1]:
        raise DataError(f"{path}: {keys[1]} is {y.dtype} {y.shape}; expected integers of shape ({len(x)},)")
    if y.min() < 0 or y.max() >= num_classes:
        raise DataError(f"{path}: {keys[1]} goes from {y.min()} to {y.max()}; expected labels 0 to {num_classes - 1}")
    pixels = torch.from_numpy(x)
    channels_first = pixels.unsqueeze(1) if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2).contiguous()
    return _at_most(channels_first, torch.from_numpy(y.astype(np.int64)), size)


_MEDMNIST_PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class MedMnistFile(PackedFile):
    """The file ``<root>/<name>``: an ``.npz`` as published by MedMNIST; validation images count as training images."""

    def read(self, request: Request) -> Splits | None:
        if not self.exists(request.root):
            return None
        path = request.root / self.name
        arrays = read_arrays(path)
        if missing := {f"{part}_{kind}" for part in _MEDMNIST_PARTS for kind in ("images", "labels")} - arrays.keys():
            raise DataError(f"{path}: lacks the arrays {', '.join(sorted(missing))} of a MedMNIST file")
        labels = {f"{part}_labels": arrays[f"{part}_labels"].reshape(-1) for part in _MEDMNIST_PARTS}
        sets = [
            _image_set(path, arrays | labels, (f"{part}_images", f"{part}_labels"), len(request.classes), request.size)
            for part in _MEDMNIST_PARTS
        ]
        train, validation, test = sets
        return Splits(concatenate([train, validation]), test)


@dataclass(frozen=True)
class PictureFolder:
    """The folder ``<root>/<suite>/<domain>/<class>/*``.

    Below the domain there may be ``train/`` (and ``valid/``) and ``test/`` (or ``val/``); a suite of one data set has
    no domain folder.
    """

    suite: str
    domain: str | None = None

    @property
    def place(self) -> str:
        return f"{self.suite}/{self.domain}/" if self.domain else f"{self.suite}/"

    def exists(self, root: Path) -> bool:
        return (root / self.place).is_dir()

    def read(self, request: Request) -> Splits | None:
        if not self.exists(request.root):
            return None
        return read_folder(request.root / self.place, request.classes, request.size)


def read_folder(folder: Path, classes: Sequence[str], size: int) -> Splits:
    """Read the pictures below ``folder``, resized; without ``train/`` they are split by :func:`split_eight_of_ten`."""
    train, test = find_splits(folder)
    if test is None:
        return split_eight_of_ten(read_pictures(folder, classes, size))
    return Splits(
        concatenate([read_pictures(part, classes, size) for part in train]), read_pictures(test, classes, size)
    )


def find_splits(folder: Path) -> tuple[list[Path], Path | None]:
    """Return the training folders and the test folder of a domain's ``folder``, or ``folder`` itself and ``None``."""
    if not (folder / "train").is_dir():
        return [folder], None
    train = [folder / name for name in TRAIN_FOLDERS if (folder / name).is_dir()]
    for name in TEST_FOLDERS:
        if (folder / name).is_dir():
            return train, folder / name
    raise DataError(f"{folder}: has train/ but neither test/ nor val/; add one of them")


def class_names(folder: Path) -> list[str]:
    """Return the names of the class folders in ``folder``, sorted, without those that are no data.

    Raises:
        DataError: A name is not UTF-8, so that no ledger can hold it, or has characters that control a terminal.
    """
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not is_no_data(entry))
    for name in names:
        try:
            check_letters(name)
        except ValueError as error:
            raise DataError(f"{folder}: {error}") from error
        check_name(f"{folder}: a folder is", name)
    return names


def check_name(where: str, name: str) -> None:
    """Raise :class:`DataError` where ``name`` has characters that break lines or control a terminal."""
    if any(unicodedata.category(letter) == "Cc" for letter in name):
        raise DataError(f"{where} called {name!r}, which no table can show; rename it")


def read_pictures(folder: Path, classes: Sequence[str], size: int) -> ImageSet:
    """Read the pictures anywhere in ``<folder>/<class>/``, resized, ordered by class and file name."""
    names = class_names(folder)
    _check_classes(folder, names, classes)
    labelled = [
        (file, label)
        for label, name in enumerate(names)
        for file in pictures_below(folder / name)
        if file.suffix.lower() in PICTURE_SUFFIXES
    ]
    if not labelled:
        raise DataError(f"{folder}: no pictures ({', '.join(sorted(PICTURE_SUFFIXES))}) in its class folders")
    return read_all(labelled, size)


@dataclass(frozen=True)
class ListedPictures:
    """DomainNet's lists ``<root>/<suite>/<domain>_train.txt`` and ``_test.txt``.

    Their lines are ``<domain>/<class>/<file> <label>``. The files lie below ``<root>/<suite>/``; pictures of other
    classes than those asked for are skipped.
    """

    suite: str
    domain: str

    @property
    def place(self) -> str:
        return f"{self.suite}/{self.domain}_train.txt"

    def exists(self, root: Path) -> bool:
        return (root / self.place).is_file()

    def read(self, request: Request) -> Splits | None:
        if not self.exists(request.root):
            return None
        folder = request.root / self.suite
        train, test = (self._read_list(folder, f"{self.domain}_{part}.txt", request) for part in ("train", "test"))
        return Splits(train, test)

    def _read_list(self, folder: Path, name: str, request: Request) -> ImageSet:
        labels = {_plain(class_name): label for label, class_name in enumerate(request.classes)}
        try:
            lines = (folder / name).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{folder / name}: not a readable list of pictures ({error})") from error
        files = [folder / line.rsplit(maxsplit=1)[0] for line in lines if line.strip()]
        labelled = [(file, labels[_plain(file.parent.name)]) for file in files if _plain(file.parent.name) in labels]
        if not labelled:
            raise DataError(f"{folder / name}: lists no picture of {_listed(request.classes)}")
        return read_all(sorted(labelled, key=lambda item: item[1]), request.size)


def read_all(labelled: Sequence[tuple[Path, int]], size: int) -> ImageSet:
    """Read picture files, each with its label, resized; raise :class:`DataError` where one is damaged."""
    images = torch.empty(len(labelled), 3, size, size, dtype=torch.uint8)
    for place, (file, _) in enumerate(labelled):
        images[place] = read_picture(file, size)
    return ImageSet(images, torch.tensor([label for _, label in labelled]))


def _check_size(picture: Image.Image) -> None:
    if prod(picture.size) > MAX_PIXELS:
        raise ValueError(f"it has {picture.width}x{picture.height} pixels, and {MAX_PIXELS} are the most")


def read_picture(file: Path, size: int) -> Tensor:
    """Read the picture in ``file`` as uint8 (3, ``size``, ``size``).

    Raises:
        DataError: It is damaged, or has more than :data:`MAX_PIXELS`.
    """
    try:
        if found := in_place_of_file(file):  # a pipe would keep its reader waiting
            raise ValueError(f"it is {found}")
        with Image.open(file) as picture:
            _check_size(picture)
            pixels = np.array(to_rgb(picture))
    except _DAMAGES as error:
        raise DataError(f"{file}: not a readable picture ({error}); remove or replace it") from error
    return resize(torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0), size)[0]


def _check_classes(place: Path, found: Sequence[str], expected: Sequence[str]) -> None:
    if len(found) != len(expected):
        raise DataError(f"{place}: has {len(found)} classes ({_listed(found)}); expected {_listed(expected)}")
    if any(name and _plain(name) != _plain(actual) for actual, name in zip(found, expected, strict=True)):
        raise DataError(f"{place}: its classes are {_listed(found)}; expected {_listed(expected)}, so rename them")


def _listed(classes: Sequence[str]) -> str:
    return shortened(", ".join(classes)) if all(classes) else f"{len(classes)}"


def _plain(class_name: str) -> str:
    """Normalise a class name: ``back_pack`` and ``Backpack`` are one class in different copies of a data set."""
    return "".join(letter for letter in class_name.lower() if letter.isalnum())


def _idx_files(folder: str, train: str, test: str) -> tuple[str, ...]:
    return tuple(
        f"{folder}/raw/{prefix}-{kind}-ubyte" for prefix in (train, test) for kind in ("images-idx3", "labels-idx1")
    )


_TORCHVISION_FILES = {
    "MNIST": _idx_files("MNIST", "train", "t10k"),
    "FashionMNIST": _idx_files("FashionMNIST", "train", "t10k"),
    "EMNIST": _idx_files("EMNIST", "emnist-byclass-train", "emnist-byclass-test"),
    "USPS": ("usps.bz2", "usps.t.bz2"),
    "SVHN": ("train_32x32.mat", "test_32x32.mat"),
    "CIFAR10": (*(f"cifar-10-batches-py/data_batch_{part}" for part in range(1, 6)), "cifar-10-batches-py/test_batch"),
    "CIFAR100": ("cifar-100-python/train", "cifar-100-python/test"),
}
TorchvisionName = Literal["MNIST", "FashionMNIST", "EMNIST", "USPS", "SVHN", "CIFAR10", "CIFAR100"]


@dataclass(frozen=True)
class TorchvisionSet:
    """A data set as torchvision stores it in ``<root>/torchvision``, where it is also downloaded; EMNIST by class."""

    dataset: TorchvisionName

    @property
    def place(self) -> str:
        return f"torchvision/ ({self.dataset})"

    def exists(self, root: Path) -> bool:
        return all((root / "torchvision" / name).is_file() for name in _TORCHVISION_FILES[self.dataset])

    def read(self, request: Request) -> Splits | None:
        folder = request.root / "torchvision"
        if not (request.download or self.exists(request.root)):
            return None
        try:
            train, test = (self._load(folder, training, request) for training in (True, False))
        except (OSError, RuntimeError, ValueError, EOFError) as error:
            raise DataError(
                f"{folder}: torchvision cannot give {self.dataset} ({' '.join(str(error).split())});"
                " check the network and the files there (data/README.md)"
            ) from error
        return Splits(train, test)

    def _load(self, folder: Path, training: bool, request: Request) -> ImageSet:
        from torchvision import datasets  # noqa: PLC0415  slow to import, and most runs do without

        if self.dataset == "SVHN":
            svhn = datasets.SVHN(folder, split="train" if training else "test", download=request.download)
            return _at_most(torch.from_numpy(svhn.data), torch.as_tensor(svhn.labels), request.size)
        by_class = {"split": "byclass"} if self.dataset == "EMNIST" else {}
        found = getattr(datasets, self.dataset)(folder, train=training, download=request.download, **by_class)
        pixels = torch.as_tensor(found.data)
        labels = torch.as_tensor(found.targets)
        if self.dataset == "EMNIST":
            pixels = pixels.transpose(1, 2)  # the files have rows and columns exchanged
        channels_first = pixels.unsqueeze(1) if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
        return _at_most(channels_first.contiguous(), labels, request.size)


def _at_most(images: Tensor, labels: Tensor, size: int) -> ImageSet:
    """Make a set of ``images`` uint8 (N, 1 or 3, H, W), shrunk where larger.

    The three channels of grey images share one buffer.
    """
    if max(images.shape[2:]) > size:
        images = resize(images, size)
    return ImageSet(images.expand(-1, 3, -1, -1), labels.to(torch.int64))
