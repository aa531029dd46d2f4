"""The sidecar of an exported model, as it is after years on strangers' disks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from fedml_dapper.deployment.sidecar import Port, Sidecar
from fedml_dapper.errors import DataError
from fedml_dapper.export import SIDECAR_NAME, predict, read_sidecar


def sidecar(**changes: Any) -> Sidecar:
    pixels = Port(name="pixels", dtype="uint8", shape=(None, 3, 8, 8), meaning="pictures")
    scores = Port(name="scores", dtype="float32", shape=(None, 2), meaning="a score a class")
    about: dict[str, Any] = {
        "network": "net", "files": {"torchscript": "model.torchscript"}, "input": pixels, "output": scores,
        "task": "classification", "classes": ("cat", "dog"), "suite": "own", "method": "fedavg", "rounds": 1,
        "whose": "the model", "changes": (), "level": None, "ratio": 0.0, "client": None, "parameters": 1, "macs": 1,
        "version": "0", "commit": None,
    }  # fmt: skip
    return Sidecar(**about | changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_bytes(b"\xff\xfe{}"), "is damaged or of another version"),
        (lambda path: path.write_text(sidecar().model_dump_json()[:-9]), "is damaged or of another version"),
        (
            lambda path: path.write_text(
                sidecar().model_dump_json().replace('{"torchscript":"model.torchscript"}', "{}")
            ),
            "is damaged or of another version: `files`",
        ),
        (os.mkfifo, "no model.json in"),
    ],
    ids=["bytes", "half of it", "no file", "pipe"],
)
def test_a_damaged_one_is_one_line(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    make(tmp_path / SIDECAR_NAME)
    with pytest.raises(DataError, match=message):
        read_sidecar(tmp_path)


class Scores(nn.Module):
    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return torch.ones(pixels.shape[0], 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ("cat",)}, "gives 2 scores, and model.json beside it names 1 classes; keep together what"),
        ({"classes": ("ant", "bee", "cat")}, "gives 2 scores, and model.json beside it names 3 classes"),
        (
            {"input": Port(name="pixels", dtype="uint8", shape=(), meaning="pictures")},
            "model.json does not say how large pictures are",
        ),
    ],
)
def test_one_of_another_model_is_noticed(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    torch.jit.script(Scores()).save(tmp_path / "model.torchscript")  # type: ignore[no-untyped-call]  # torch ships it untyped
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / SIDECAR_NAME).write_text(sidecar(**changes).model_dump_json())
    with pytest.raises(DataError, match=message):
        predict(tmp_path, [tmp_path / "a.png"], trust_code=True)
