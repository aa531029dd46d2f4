import bz2
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedml_dapper.datasets.sources import (
    PackedFile,
    PictureFolder,
    Request,
    Source,
    Splits,
    TorchvisionSet,
    read_packed,
)
from fedml_dapper.errors import DataError

GREY = np.arange(5 * 6 * 6, dtype=np.uint8).reshape(5, 6, 6)
LABELS = np.array([0, 0, 1, 1, 2])


def request(root: Path, size: int = 6, download: bool = False) -> Request:
    return Request(root, ("cat", "dog", "owl"), size, download)


def read(source: Source, root: Path, size: int = 6) -> Splits:
    splits = source.read(request(root, size))
    assert splits is not None
    return splits


def save(file: Path, **arrays: Any) -> Path:
    np.savez(file, **arrays)
    return file


def test_a_packed_file_with_a_split(tmp_path: Path) -> None:
    colour = np.arange(2 * 6 * 6 * 3, dtype=np.uint8).reshape(2, 6, 6, 3)
    save(tmp_path / "a.npz", x_train=GREY, y_train=LABELS, x_test=colour, y_test=np.array([2, 1], dtype=np.uint8))
    train, test, *_ = read(PackedFile("a.npz"), tmp_path)
    assert torch.equal(train.images[:, 1], torch.from_numpy(GREY))
    assert torch.equal(train.images[:, 0], train.images[:, 2])
    assert torch.equal(test.images, torch.from_numpy(colour).permute(0, 3, 1, 2))
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 0, 1, 1, 2], [2, 1])


def test_a_packed_file_without_a_split_is_split_by_position(tmp_path: Path) -> None:
    x = np.arange(23, dtype=np.uint8)[:, None, None].repeat(2, 1).repeat(2, 2)
    train, test, *_ = read_packed(save(tmp_path / "a.npz", x=x, y=np.zeros(23, dtype=np.int64)), ("cat",), 2)
    assert test.images[:, 0, 0, 0].tolist() == [8, 9, 18, 19]
    assert train.images[:, 0, 0, 0].tolist() == [i for i in range(23) if i % 10 <= 7]


def test_images_are_resized(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", x=GREY, y=LABELS)
    assert read(PackedFile("a.npz"), tmp_path, size=4).train.images.shape == (5, 3, 4, 4)


def test_smaller_images_stay_as_they_are(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", x=GREY, y=LABELS)
    train = read(PackedFile("a.npz"), tmp_path, size=64).train
    assert train.images.shape == (5, 3, 6, 6)
    assert train.is_grey


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"x": GREY}, r"has the arrays x; a packed file holds x and y"),
        ({"x": GREY.astype(np.float32), "y": LABELS}, r"x is float32"),
        ({"x": GREY[..., None], "y": LABELS}, r"\(5, 6, 6, 1\); expected uint8"),
        ({"x": GREY[:0], "y": LABELS[:0]}, r"N > 0"),
        ({"x": GREY, "y": LABELS[:4]}, r"y is int64 \(4,\); expected integers of shape \(5,\)"),
        ({"x": GREY, "y": LABELS / 2}, r"y is float64"),
        ({"x": GREY, "y": LABELS + 1}, r"y goes from 1 to 3; expected labels 0 to 2"),
        ({"x": GREY, "y": LABELS - 1}, r"y goes from -1"),
        ({"x": GREY, "y": LABELS, "classes": np.array(["dog", "cat", "owl"])}, r"its classes are dog, cat, owl"),
        ({"x": GREY, "y": np.array([None] * 5)}, r"not a readable \.npz of plain arrays"),
    ],
)
def test_a_bad_packed_file_is_named(tmp_path: Path, arrays: dict[str, Any], text: str) -> None:
    save(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=rf"bad\.npz: .*{text}") as caught:
        PackedFile("bad.npz").read(request(tmp_path))
    assert "\n" not in str(caught.value)


def _npz_bytes() -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, x=np.random.default_rng(0).integers(0, 255, (5, 6, 6), dtype=np.uint8), y=LABELS)
    return stream.getvalue()


@pytest.mark.parametrize("content", [b"", b"not a zip", _npz_bytes()[:-30], b"\x80\x04K\x01."])
def test_a_damaged_packed_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.npz: not a readable"):
        PackedFile("bad.npz").read(request(tmp_path))


def test_flipped_bytes_in_a_packed_file_are_found(tmp_path: Path) -> None:
    content = bytearray(_npz_bytes())
    content[120:140] = bytes(255 - byte for byte in content[120:140])
    (tmp_path / "bad.npz").write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"bad\.npz: not a readable"):
        PackedFile("bad.npz").read(request(tmp_path))


def _write_pictures(folder: Path, value: int, count: int = 1) -> None:
    for index, name in enumerate(("cat", "dog", "owl")):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            colour = (value, 50 * index, number)
            Image.new("RGB", (9, 7), colour).save(folder / name / f"{number:02d}.png")


@pytest.mark.parametrize("test_name", ["test", "val"])
def test_a_folder_with_a_split(tmp_path: Path, test_name: str) -> None:
    _write_pictures(tmp_path / "zoo" / "photos" / "train", 10, count=2)
    _write_pictures(tmp_path / "zoo" / "photos" / test_name, 20)
    train, test, *_ = read(PictureFolder("zoo", "photos"), tmp_path)
    assert train.images[:, :, 0, 0].tolist() == [[10, 50 * c, n] for c in range(3) for n in range(2)]
    assert test.images[:, 0, 3, 3].tolist() == [20, 20, 20]
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_folder_without_a_split_is_split_by_position(tmp_path: Path) -> None:
    _write_pictures(tmp_path / "zoo" / "photos", 10, count=4)
    train, test, *_ = read(PictureFolder("zoo", "photos"), tmp_path)
    assert (len(train), len(test)) == (10, 2)
    assert test.images[:, 1:, 0, 0].tolist() == [[100, 0], [100, 1]]


def test_a_single_data_set_with_a_validation_folder(tmp_path: Path) -> None:
    for name, value in (("train", 10), ("valid", 20), ("test", 30)):
        _write_pictures(tmp_path / "zoo" / name, value)
    for folder in ("cat", "owl"):  # as Tiny-ImageNet has it
        nested = tmp_path / "zoo" / "train" / folder / "images"
        nested.mkdir()
        (nested.parent / "00.png").rename(nested / "00.png")
    train, test, *_ = read(PictureFolder("zoo"), tmp_path)
    assert PictureFolder("zoo").place == "zoo/"
    assert train.images[:, 0, 0, 0].tolist() == [10, 10, 10, 20, 20, 20]
    assert train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert test.images[:, 0, 0, 0].tolist() == [30, 30, 30]


def test_other_files_are_passed_over_and_class_names_may_vary_in_spelling(tmp_path: Path) -> None:
    folder = tmp_path / "zoo" / "photos"
    _write_pictures(folder, 10)
    (folder / "cat").rename(folder / "C_at")
    (folder / "dog" / "Thumbs.db").write_bytes(b"x")
    (folder / "dog" / "._00.png").write_bytes(b"what a desktop notes of 00.png")
    for hidden in (folder / ".cache", folder / "owl" / ".thumbnails", folder / "owl" / "__MACOSX"):
        hidden.mkdir()
        Image.new("RGB", (8, 8)).save(hidden / "00.png")
    splits = read(PictureFolder("zoo", "photos"), tmp_path)
    assert len(splits.train) + len(splits.test) == 3


def test_a_bad_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "zoo" / "photos"
    _write_pictures(folder, 10)
    (folder / "owl" / "00.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"00\.png: not a readable picture"):
        read(PictureFolder("zoo", "photos"), tmp_path)
    (folder / "owl").rename(folder / "yak")
    with pytest.raises(DataError, match="its classes are cat, dog, yak; expected cat, dog, owl"):
        read(PictureFolder("zoo", "photos"), tmp_path)
    (folder / "train").mkdir()
    with pytest.raises(DataError, match="has train/ but neither test/ nor val/"):
        read(PictureFolder("zoo", "photos"), tmp_path)


def test_nothing_there_is_none(tmp_path: Path) -> None:
    sources: list[Source] = [PackedFile("a.npz"), PictureFolder("zoo", "photos"), TorchvisionSet("SVHN")]
    assert [source.read(request(tmp_path)) for source in sources] == [None, None, None]


def _write_idx(folder: Path, part: str, images: np.ndarray[Any, Any], labels: list[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">4I", 0x803, *images.shape)
    (folder / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, len(labels)) + bytes(labels))


def test_mnist_files_of_torchvision_are_used_without_download(tmp_path: Path) -> None:
    raw = tmp_path / "torchvision" / "MNIST" / "raw"
    images = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)
    _write_idx(raw, "train", images, [0, 2, 1])
    assert TorchvisionSet("MNIST").read(request(tmp_path, 28)) is None
    _write_idx(raw, "t10k", images[:1], [2])
    train, test, *_ = read(TorchvisionSet("MNIST"), tmp_path, 28)
    assert torch.equal(train.images[:, 2], torch.from_numpy(images))
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 2, 1], [2])


def test_emnist_by_class_is_turned_upright(tmp_path: Path) -> None:
    raw = tmp_path / "torchvision" / "EMNIST" / "raw"
    images = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)
    for part in ("train", "test"):
        _write_idx(raw, f"emnist-byclass-{part}", images, [0, 2, 1])
    train, test, *_ = read(TorchvisionSet("EMNIST"), tmp_path, 28)
    assert torch.equal(train.images[:, 1], torch.from_numpy(images).transpose(1, 2))
    assert (train.is_grey, test.labels.tolist()) == (True, [0, 2, 1])


def test_cifar_files_that_are_not_the_published_ones_are_never_unpickled(tmp_path: Path) -> None:
    folder = tmp_path / "torchvision" / "cifar-100-python"
    folder.mkdir(parents=True)
    for name in ("train", "test"):
        (folder / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(DataError, match="torchvision cannot give CIFAR100"):
        TorchvisionSet("CIFAR100").read(request(tmp_path))


def test_usps_files_of_torchvision_are_used_without_download(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    line = "3 " + " ".join(f"{pixel + 1}:{(-1, 1)[pixel % 2]}" for pixel in range(256))
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / "torchvision" / name).write_bytes(bz2.compress(line.encode()))
    train, *_ = read(TorchvisionSet("USPS"), tmp_path, 16)
    assert train.labels.tolist() == [2]
    assert train.images[0, 0, 0, :4].tolist() == [0, 255, 0, 255]


def test_damaged_torchvision_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    for name in ("train_32x32.mat", "test_32x32.mat"):
        (tmp_path / "torchvision" / name).write_bytes(b"cut off")
    with pytest.raises(DataError, match="torchvision cannot give SVHN") as caught:
        TorchvisionSet("SVHN").read(request(tmp_path))
    assert "\n" not in str(caught.value)
