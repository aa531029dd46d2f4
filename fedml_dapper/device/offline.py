"""Prediction by the model that a device keeps, without the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedml_dapper.datasets.sources import read_picture
from fedml_dapper.device.keeping import KEPT_MODEL_NAME
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.federation.run_folder.model_file import rebuild


@dataclass(frozen=True)
class Answer:
    """The most likely class of a picture."""

    picture: Path
    label: str
    probability: float


def predict_offline(folder: Path, pictures: Sequence[Path], *, trust_code: bool = False) -> list[Answer]:
    """Predict the classes of ``pictures`` by the newest model that the device of this ``folder`` was sent.

    With ``trust_code`` it runs whatever code the model names, also if no run on this device ran it.

    Raises:
        ConfigError: The model does not name classes of pictures, or names code that is not trusted.
        DataError: There is no model yet, or a picture is missing or damaged.
    """
    path = kept_model(folder)
    rebuilt = rebuild(path, trust_code=trust_code)
    origin = rebuilt.origin
    task = rebuilt.method.problem.task.name
    if task != "classification" or origin.preprocessing is None or not origin.classes:
        raise ConfigError(f"{path}: this model, of task {task}, names no classes of pictures")
    found = []
    for picture in pictures:
        pixels = read_picture(picture, origin.preprocessing.input_size)[None]
        with torch.no_grad():
            shares = rebuilt.model(origin.preprocessing.evaluate(pixels))[0].softmax(dim=0)
        probability, label = torch.max(shares, dim=0)
        found.append(Answer(picture, origin.classes[int(label)], float(probability)))
    return found


def kept_model(folder: Path) -> Path:
    """Return the file of the newest model that the device of this ``folder`` was sent.

    Raises:
        DataError: There is none yet.
    """
    path = folder / KEPT_MODEL_NAME
    if not path.is_file():
        raise DataError(f"no model in {folder.absolute()}; `dapper-device run --output` keeps the newest one there")
    return path
