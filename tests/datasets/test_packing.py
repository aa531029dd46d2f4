from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedml_dapper.datasets import pack
from fedml_dapper.datasets.sources import read_folder, read_packed
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.files import xz

CLASSES = ("cat", "dog")


def _write(folder: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
        for number in range(6):
            Image.fromarray(rng.integers(0, 255, (9, 12, 3), dtype=np.uint8)).save(folder / name / f"{number}.png")


def test_packed_files_give_what_the_folders_give(tmp_path: Path) -> None:
    _write(tmp_path / "zoo" / "photos", 0)
    _write(tmp_path / "zoo" / "drawings" / "train", 1)
    _write(tmp_path / "zoo" / "drawings" / "val", 2)
    out = tmp_path / "out"
    files = pack(tmp_path, "zoo", out, size=8)
    assert [file.name for file in files] == ["zoo_drawings.npz", "zoo_photos.npz"]
    assert sorted(path.name for path in out.iterdir()) == ["zoo_drawings.npz", "zoo_photos.npz"]
    for file, domain in zip(files, ("drawings", "photos"), strict=True):
        packed, plain = read_packed(file, CLASSES, 8), read_folder(tmp_path / "zoo" / domain, CLASSES, 8)
        pairs = zip(packed[:2], plain[:2], strict=True)
        for first, second in pairs:
            assert torch.equal(first.images, second.images)
            assert torch.equal(first.labels, second.labels)
    with np.load(files[0]) as archive:
        assert archive["classes"].tolist() == ["cat", "dog"]
        assert archive["x_train"].shape == (12, 8, 8, 3)


def test_a_single_data_set_is_one_file(tmp_path: Path) -> None:
    for seed, part in enumerate(("train", "valid", "test")):
        _write(tmp_path / "cinic10" / part, seed)
    out = tmp_path / "out"
    [file] = pack(tmp_path, "cinic10", out, size=8)
    assert file == out / "cinic10.npz"
    packed, plain = read_packed(file, CLASSES, 8), read_folder(tmp_path / "cinic10", CLASSES, 8)
    pairs = zip(packed[:2], plain[:2], strict=True)
    for first, second in pairs:
        assert torch.equal(first.images, second.images)
        assert torch.equal(first.labels, second.labels)


def test_packed_drawings_are_read_however_well_they_shrink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xz, "BIG_BYTES", 0)  # as if they took more than that
    for name in CLASSES:
        (tmp_path / "zoo" / name).mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (8, 8), "white").save(tmp_path / "zoo" / name / f"{number}.png")
    [file] = pack(tmp_path, "zoo", tmp_path / "out", size=128)
    shrunk = 40 * 128 * 128 * 3 / file.stat().st_size
    assert shrunk > 2 * xz.MAX_INFLATION
    packed = read_packed(file, CLASSES, 128)
    assert len(packed.train) + len(packed.test) == 40


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "zoo" / "photos", 0)
    out = tmp_path / "out"
    [file] = pack(tmp_path, "zoo", out, size=8)
    before = file.read_bytes()

    def fail(scratch: Path, **_arrays: object) -> None:
        scratch.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(DataError, match=r"cannot write .*\.npz: disk full"):
        pack(tmp_path, "zoo", out, size=4)
    assert [path.name for path in out.iterdir()] == [file.name]
    assert file.read_bytes() == before


def test_a_domain_that_is_no_more_is_not_trained_on(tmp_path: Path) -> None:
    for seed, domain in enumerate(("drawings", "photos")):
        _write(tmp_path / "zoo" / domain, seed)
    out = tmp_path / "out"
    pack(tmp_path, "zoo", out, size=8)
    (tmp_path / "zoo" / "photos").rename(tmp_path / "photos")
    before = {file: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(ConfigError, match=r"out also holds zoo_photos.npz, as of an earlier packing, .*; remove it"):
        pack(tmp_path, "zoo", out, size=4)
    assert {file: file.read_bytes() for file in out.iterdir()} == before
    (out / "zoo_photos.npz").unlink()
    (out / "mnist.npz").touch()  # another suite's
    assert pack(tmp_path, "zoo", out, size=4) == [out / "zoo_drawings.npz"]


def test_what_cannot_be_packed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no folder .*zoo; see data/README.md"):
        pack(tmp_path, "zoo", tmp_path / "out", size=8)
    _write(tmp_path / "zoo" / "drawings", 0)
    _write(tmp_path / "zoo" / "photos", 0)
    with pytest.raises(ConfigError, match="size is 0"):
        pack(tmp_path, "zoo", tmp_path / "out", size=0)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is a file; name a folder"):
        pack(tmp_path, "zoo", tmp_path / "file", size=8)


def test_classes_of_a_published_suite_may_have_folders_of_pictures(tmp_path: Path) -> None:
    _write(tmp_path / "tiny_imagenet" / "val", 0)
    for name in CLASSES:
        _write(tmp_path / "tiny_imagenet" / "train" / name / "images", 1)
    [file] = pack(tmp_path, "tiny_imagenet", tmp_path / "out", size=8)
    with np.load(file) as archive:
        assert archive["classes"].tolist() == ["cat", "dog"]
        assert (archive["y_train"].tolist(), len(archive["x_test"])) == ([0] * 12 + [1] * 12, 12)


@pytest.mark.parametrize("suite", ["zoo/drawings", ".", "..", "/zoo", "zoo/"])
def test_the_name_of_files_is_one_folder_s(tmp_path: Path, suite: str) -> None:
    _write(tmp_path / "zoo" / "drawings", 0)
    with pytest.raises(ConfigError, match="is no name of a folder in"):
        pack(tmp_path, suite, tmp_path / "out", size=8)
    assert not (tmp_path / "out").exists()


def test_classes_are_those_of_all_domains_by_name(tmp_path: Path) -> None:
    for seed, domain in enumerate(("drawings", "photos")):
        _write(tmp_path / "zoo" / domain, seed)
    (tmp_path / "zoo" / "photos" / "dog").rename(tmp_path / "zoo" / "photos" / "yak")
    for file, labels in zip(pack(tmp_path, "zoo", tmp_path / "out", size=8), ([0, 1], [0, 2]), strict=True):
        with np.load(file) as archive:
            assert archive["classes"].tolist() == ["cat", "dog", "yak"]
            assert str(archive["domain"]) == file.stem.removeprefix("zoo_")
            assert sorted(set(archive["y"].tolist())) == labels


def test_val_beside_test_is_for_validation(tmp_path: Path) -> None:
    for seed, part in enumerate(("train", "val", "test")):
        _write(tmp_path / "zoo" / "photos" / part, seed)
    [file] = pack(tmp_path, "zoo", tmp_path / "out", size=8)
    with np.load(file) as archive:
        assert {"x_train", "x_val", "x_test"} <= set(archive.files)
        assert not np.array_equal(archive["x_val"], archive["x_test"])
