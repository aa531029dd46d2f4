"""The suite Digits (DapperFL, Table 1): MNIST, USPS, SVHN and SYN.

SVHN and SYN are not always available. The small packed SVHN then serves as ``svhn``, and a subset of MNIST-M stands in
for SYN under its own name, ``mnistm``; either makes the suite "digits (subset)". At the usual 1 % a client of the small
SVHN holds 10 images; raise ``data_args.client_share`` if that is not what you want to study.
"""

from __future__ import annotations

from fedml_dapper.datasets.preprocessing import Preprocessing
from fedml_dapper.datasets.recipe import DomainRecipe, SuiteRecipe
from fedml_dapper.datasets.sources import PackedFile, PictureFolder, TorchvisionSet

DIGITS = SuiteRecipe(
    name="digits",
    classes=tuple("0123456789"),
    domains=(
        DomainRecipe(
            "mnist",
            (PackedFile("digits_mnist.npz"), PictureFolder("digits", "mnist"), TorchvisionSet("MNIST")),
            full_size=(60_000, 10_000),
        ),
        DomainRecipe(
            "usps",
            (PackedFile("digits_usps.npz"), PictureFolder("digits", "usps"), TorchvisionSet("USPS")),
            full_size=(7_291, 2_007),
        ),
        DomainRecipe(
            "svhn",
            (
                PackedFile("digits_svhn.npz"),
                PictureFolder("digits", "svhn"),
                TorchvisionSet("SVHN"),
                PackedFile("digits_svhn_small.npz"),
            ),
            full_size=(73_257, 26_032),
        ),
        DomainRecipe(
            "syn",
            (PackedFile("digits_syn.npz"), PictureFolder("digits", "syn")),
            stand_in=DomainRecipe("mnistm", (PackedFile("digits_mnistm_subset.npz"),)),
        ),
    ),
    preprocessing=Preprocessing(horizontal_flip=False),  # a mirrored digit is not that digit
    client_share=0.01,
    swap_in_missing_classes=False,
)
