"""The suites of FDSE's experiments: photographs and drawings, with a whole domain for each client.

Images are 256 x 256, scaled to [0, 1], neither normalised nor augmented. A client's domain is split 80 : 10 : 10 into
training, validation and test images, whatever split it was published with.
"""

from __future__ import annotations

from dataclasses import replace

from fedml_dapper.datasets.office_caltech import OFFICE_CALTECH
from fedml_dapper.datasets.preprocessing import Preprocessing
from fedml_dapper.datasets.recipe import DomainRecipe, SuiteRecipe
from fedml_dapper.datasets.sources import ListedPictures, PackedFile, PictureFolder

_PREPROCESSING = Preprocessing(input_size=256, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), crop_padding=0)


def _domain(suite: str, name: str, total: int, side: int) -> DomainRecipe:
    sources = (PackedFile(f"{suite}_{name}.npz"), PictureFolder(suite, name))
    return DomainRecipe(name, sources, full_size=total, full_side=side)


def _domainnet(name: str) -> DomainRecipe:
    sources = (PackedFile(f"domainnet_{name}.npz"), ListedPictures("domainnet", name), PictureFolder("domainnet", name))
    return DomainRecipe(name, sources, full_side=256)


OFFICE_CALTECH_FDSE = replace(
    OFFICE_CALTECH,
    name="office_caltech10_fdse",
    domains=(
        _domain(OFFICE_CALTECH.name, "caltech", 1123, 256),
        _domain(OFFICE_CALTECH.name, "amazon", 958, 256),
        _domain(OFFICE_CALTECH.name, "dslr", 157, 256),
        _domain(OFFICE_CALTECH.name, "webcam", 295, 256),
    ),
    preprocessing=_PREPROCESSING,
    swap_in_missing_classes=False,
    partition="one_per_domain",
)
"""Office-Caltech10 from the same files as DapperFL's suite."""

PACS = SuiteRecipe(
    name="pacs",
    classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    domains=(
        _domain("pacs", "art_painting", 2048, 227),
        _domain("pacs", "cartoon", 2344, 227),
        _domain("pacs", "photo", 1670, 227),
        _domain("pacs", "sketch", 3929, 227),
    ),
    preprocessing=_PREPROCESSING,
    client_share=0.2,
    swap_in_missing_classes=False,
    partition="one_per_domain",
)

DOMAINNET = SuiteRecipe(
    name="domainnet",
    classes=(
        "bird",
        "feather",
        "headphones",
        "ice_cream",
        "teapot",
        "tiger",
        "whale",
        "windmill",
        "wine_glass",
        "zebra",
    ),
    domains=tuple(_domainnet(name) for name in ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")),
    preprocessing=_PREPROCESSING,
    client_share=0.2,
    swap_in_missing_classes=False,
    partition="one_per_domain",
)
"""Ten of DomainNet's 345 classes."""
