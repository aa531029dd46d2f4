"""A user's own pictures without labels."""

from __future__ import annotations

from pathlib import Path

import torch

from fedml_dapper.datasets.batches import ClientSamples
from fedml_dapper.datasets.beside_pictures import pictures_below
from fedml_dapper.datasets.image_set import ImageSet
from fedml_dapper.datasets.picture_files import SUFFIXES
from fedml_dapper.datasets.preprocessing import Preprocessing
from fedml_dapper.datasets.sources import read_picture
from fedml_dapper.errors import DataError


def unlabelled_pictures(folder: Path, preprocessing: Preprocessing, batch_size: int, seed: int) -> ClientSamples:
    """Read all pictures in ``folder``, subfolders included, as one client's; their labels are zeros without meaning.

    Folders that are no data, such as hidden ones, are passed over.

    Raises:
        DataError: The folder is missing, it holds fewer than two pictures, or one of them is damaged.
    """
    if not folder.is_dir():
        raise DataError(f"no folder {folder.absolute()}; name one with pictures in it")
    files = pictures_below(folder)
    if len(files) < 2:
        raise DataError(
            f"{folder}: {len(files)} pictures, and it takes two or more to measure anything; put some in"
            f" ({', '.join(sorted(SUFFIXES))})"
        )
    images = torch.stack([read_picture(file, preprocessing.input_size) for file in files])
    samples = ImageSet(images, torch.zeros(len(files), dtype=torch.int64), preprocessing)
    return ClientSamples(0, folder.resolve().name, samples, batch_size, seed)
