"""Pictures without labels."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from fedml_dapper.datasets import Preprocessing, unlabelled_pictures
from fedml_dapper.errors import DataError


def paint(file: Path, colour: str, size: tuple[int, int] = (20, 12)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(file)


def test_all_pictures_below_the_folder_are_read(tmp_path: Path) -> None:
    paint(tmp_path / "b.png", "white")
    paint(tmp_path / "deep" / "er" / "a.JPG", "black", (7, 50))
    paint(tmp_path / ".hidden.png", "red")
    paint(tmp_path / "deep" / ".thumbnails" / "a.JPG", "red")
    (tmp_path / "notes.txt").write_text("no picture")
    preprocessing = Preprocessing(input_size=16, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    data = unlabelled_pictures(tmp_path, preprocessing, batch_size=4, seed=1)
    [(inputs, _)] = list(data)
    assert inputs.shape == (2, 3, 16, 16)
    assert (inputs[0].unique().tolist(), inputs[1].unique().tolist()) == ([1.0], [0.0])
    assert data.domain == tmp_path.name


def test_too_few_damaged_or_no_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no folder .*nowhere"):
        unlabelled_pictures(tmp_path / "nowhere", Preprocessing(), 4, 1)
    paint(tmp_path / "one.png", "white")
    with pytest.raises(DataError, match="1 pictures, and it takes two or more"):
        unlabelled_pictures(tmp_path, Preprocessing(), 4, 1)
    (tmp_path / "two.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"two.png: not a readable picture"):
        unlabelled_pictures(tmp_path, Preprocessing(), 4, 1)
