"""The image sets of FedCMD's experiments: one data set each, its classes dealt unevenly to the clients.

Images keep their published size and are normalised by the set's own mean and standard deviation, not augmented.
Training and test images are merged; each client halves what it gets.
"""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase, digits

from fedml_dapper.datasets.preprocessing import Preprocessing
from fedml_dapper.datasets.recipe import DomainRecipe, SuiteRecipe
from fedml_dapper.datasets.sources import MedMnistFile, PackedFile, PictureFolder, Source, TorchvisionSet

_ORGANS = (
    "bladder",
    "femur_left",
    "femur_right",
    "heart",
    "kidney_left",
    "kidney_right",
    "liver",
    "lung_left",
    "lung_right",
    "pancreas",
    "spleen",
)
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _set(name: str, classes: tuple[str, ...], side: int, total: int, *sources: Source) -> SuiteRecipe:
    """Recipe of ``total`` images of ``side`` x ``side``; the packed file or folder ``name`` precedes ``sources``."""
    places: tuple[Source, ...] = (PackedFile(f"{name}.npz"), PictureFolder(name), *sources)
    return SuiteRecipe(
        name=name,
        classes=classes,
        domains=(DomainRecipe(name, places, full_size=total, full_side=side),),
        preprocessing=Preprocessing(input_size=side, crop_padding=0),
        client_share=0.01,
        swap_in_missing_classes=False,
        partition="dirichlet",
        measured_on="all",
    )


def _any(count: int) -> tuple[str, ...]:
    """Classes whose names do not matter."""
    return ("",) * count


IMAGE_SETS = (
    _set("mnist", tuple(digits), 28, 70_000, PackedFile("digits_mnist.npz"), TorchvisionSet("MNIST")),
    _set("fashion_mnist", _any(10), 28, 70_000, TorchvisionSet("FashionMNIST")),
    _set("emnist", tuple(digits + ascii_uppercase + ascii_lowercase), 28, 814_255, TorchvisionSet("EMNIST")),
    _set("organ_a_mnist", _ORGANS, 28, 58_830, MedMnistFile("organamnist.npz")),
    _set("organ_c_mnist", _ORGANS, 28, 23_583, MedMnistFile("organcmnist.npz")),
    _set(
        "svhn", tuple(digits), 32, 99_289,
        PackedFile("digits_svhn.npz"), TorchvisionSet("SVHN"), PackedFile("digits_svhn_small.npz"),
    ),
    _set("cifar10", _CIFAR10, 32, 60_000, TorchvisionSet("CIFAR10"), PackedFile("optional_cifar10_subset.npz")),
    _set("cifar100", _any(100), 32, 60_000, TorchvisionSet("CIFAR100")),
    _set("cinic10", _CIFAR10, 32, 270_000),
    _set("tiny_imagenet", _any(200), 64, 110_000),
)  # fmt: skip
"""EMNIST is its split by class. The organs are those of MedMNIST v2; v1 had 20 and 77 images more."""
