"""The suite Office-Caltech10 (DapperFL, Table 2): ten kinds of objects in a catalogue, a shop, and before two cameras.

The published archive has no split; ours is by position in the class-sorted list of files. A few pictures of ``amazon``
occur twice in the archive, so some test images have a byte-identical twin in training.
"""

from __future__ import annotations

from fedml_dapper.datasets.preprocessing import Preprocessing
from fedml_dapper.datasets.recipe import DomainRecipe, SuiteRecipe
from fedml_dapper.datasets.sources import PackedFile, PictureFolder

NAME = "office_caltech10"


def _domain(name: str, num_train: int, num_test: int) -> DomainRecipe:
    sources = (PackedFile(f"{NAME}_{name}.npz"), PictureFolder(NAME, name))
    return DomainRecipe(name, sources, full_size=(num_train, num_test))


OFFICE_CALTECH = SuiteRecipe(
    name=NAME,
    classes=(
        "backpack",
        "bike",
        "calculator",
        "headphones",
        "keyboard",
        "laptop_computer",
        "monitor",
        "mouse",
        "mug",
        "projector",
    ),
    domains=(
        _domain("caltech", 899, 224),
        _domain("amazon", 768, 190),
        _domain("webcam", 237, 58),
        _domain("dslr", 127, 30),
    ),
    preprocessing=Preprocessing(horizontal_flip=True),
    client_share=0.2,
    swap_in_missing_classes=True,
)
