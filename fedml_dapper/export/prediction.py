"""Prediction of pictures' classes by an exported file alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedml_dapper.config.limits import MAX_SIDE
from fedml_dapper.datasets.sources import read_picture
from fedml_dapper.deployment.formats import FORMATS, Runtime
from fedml_dapper.deployment.sidecar import SIDECAR_NAME, Sidecar, read_sidecar
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.models.running import first_line


@dataclass(frozen=True)
class Prediction:
    """The most likely class of a picture."""

    picture: Path
    label: str
    probability: float


def predict(model: Path, pictures: Sequence[Path], *, trust_code: bool = False) -> list[Prediction]:
    """Predict the classes of ``pictures`` with the exported ``model``, a folder or one of its files.

    A folder's first file is taken. With ``trust_code`` it runs though it is or names code that this user neither ran
    nor wrote on this machine.

    Raises:
        ConfigError: The model does not name classes of pictures, or is not to be run without ``trust_code``.
        DataError: Something is missing or damaged.
    """
    folder = model if model.is_dir() else model.parent
    about = read_sidecar(folder)
    if not about.names_classes:
        raise ConfigError(
            f"{model} takes {about.inputs[0].meaning} and gives {about.output.meaning}; predict names classes of"
            " pictures, so run this one by its own runtime"
        )
    runtime = _runtime(model, about, trust_code)
    side = next(iter(about.inputs[0].shape[:1:-1]), None)
    if side is None or not 0 < side <= MAX_SIDE:
        raise DataError(f"{folder / SIDECAR_NAME} does not say how large pictures are; export the model again")
    found = []
    for picture in pictures:
        pixels = read_picture(picture, side)[None]
        try:
            shares = runtime(pixels)[0].softmax(dim=0)
        except Exception as error:  # runtimes have errors of their own
            raise DataError(
                f"{model} does not run on pictures as {SIDECAR_NAME} beside it describes them: {first_line(error)};"
                " keep together what `fedml-dapper export` writes"
            ) from error
        if len(shares) != len(about.classes):
            raise DataError(
                f"{model} gives {len(shares)} scores, and {SIDECAR_NAME} beside it names {len(about.classes)} classes;"
                " keep together what `fedml-dapper export` writes"
            )
        probability, label = torch.max(shares, dim=0)
        found.append(Prediction(picture, about.classes[int(label)], float(probability)))
    return found


def _runtime(model: Path, about: Sidecar, trust_code: bool) -> Runtime:
    file = model / Path(next(iter(about.files.values()))).name if model.is_dir() else model  # none from elsewhere
    by_suffix = {Path(each.file_name).suffix: each for each in FORMATS.values()}
    if file.suffix not in by_suffix:
        raise ConfigError(f"{file} is no exported model; these are: {', '.join(by_suffix)}")
    if not file.is_file():
        raise DataError(f"no file {file.absolute()}")
    return by_suffix[file.suffix].read(file, trust_code=trust_code)
