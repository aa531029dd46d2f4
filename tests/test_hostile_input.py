"""What nobody writes by mistake, or only a very tired person: one line and exit code 2 in 5 s and a GB."""

from __future__ import annotations

import io
import json
import lzma
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from fedml_dapper.cli import main
from fedml_dapper.datasets.sources import read_picture
from fedml_dapper.errors import DataError
from fedml_dapper.process.complaint import complaining

SECONDS, MEGABYTES = 20.0, 1024  # of a processor, also where coverage is measured
NAMES = 10_000
EXPERIMENT = "data_args: {dataset: digits_offline}\nmodel_args: {model: resnet10, width: 8}\n"

YAML: dict[str, tuple[str | bytes, str]] = {
    "lists in lists in lists": ("a: " + "[" * 3000 + "]" * 3000, "deeper in each other than 40"),
    "sections in sections": ("a: " + "{a: " * 100 + "1" + "}" * 100, "deeper in each other than 40"),
    "lists left open": ("a: " + "[" * 200, "not valid YAML"),
    "a list in itself": ("train_args: &a [1, *a]", "line 1: a value that contains itself"),
    "a section in itself": ("train_args: &a {epochs: *a}", "a value that contains itself"),
    "a billion values": (
        "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)),
        "aliases make this more than 100000 values",
    ),
    "a billion keys": (
        "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12)),
        "aliases make this more than 100000 values",
    ),
    "aliases upon aliases": (
        "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 900)), "deeper in each other than 40"
    ),
    "a long text many times": (
        f"a: &a '{'x' * 300_000}'\nb: [{', '.join(['*a'] * 100)}]\n", "aliases make this more than 1048576 letters"
    ),
    "5000 digits": ("train_args: {epochs: " + "9" * 5000 + "}", "has 5000 digits, and no setting takes so large"),
    "a number of sixty": ("train_args: {epochs: " + "59:" * 3000 + "59}", "is a number in YAML, read to the base 60"),
    "a day that is none": ("train_args: {epochs: 2026-13-45}", "`2026-13-45` is no timestamp: month must be in 1"),
    "a yes that is none": ("train_args:\n  epochs: !!bool maybe", "line 2: `maybe` is no bool"),
    "a number without digits": ("train_args: {epochs: !!int ''}", "line 1: `` is no int"),
    "a number as a name": ("!!float '': 1", "line 1: `` is no float"),
    "a moment that is none": ("train_args: {epochs: !!timestamp noon}", "line 1: `noon` is no timestamp"),
    "half a character": ('train_args: {epochs: "\\ud800"}', "half a character"),
    "a section twice": ("train_args: {epochs: 1}\ntrain_args: {comm_round: 2}", "`train_args` stands twice, in line 1"),
    "a key twice": ("train_args:\n  epochs: 1\n  epochs: 2", "`epochs` stands twice, in line 2 and line 3; keep one"),
    "tabs": ("train_args:\n\tepochs: 1", "not valid YAML"),
    "a zero byte": (b"train_args: {epochs: \x00}", "not valid YAML"),
    "no UTF-8": (b"train_args: {epochs: \xff\xfe}", "cannot be read"),
    "nothing": ("", "expected sections"),
    "a list": ("[1, 2]", "expected sections"),
    "a word": ("quickstart", "expected sections"),
    "two MiB": ("# " + "x" * (2 << 20), "no settings are longer"),
    "Python's objects": ("train_args: !!python/object/apply:os.system [id]", "not valid YAML"),
    "bytes that are none": ("train_args: {epochs: !!binary 'ÿ'}", "not valid YAML"),
    "a tag of its own": ("train_args: !secret {epochs: 1}", "not valid YAML"),
    "two documents": ("train_args: {epochs: 1}\n---\ntrain_args: {epochs: 2}", "not valid YAML"),
    "a merge with a number": ("train_args: {<<: 3}", "not valid YAML"),
    "a list as a key": ("? [a, b]\n: 1", "not valid YAML"),
    "a number as a section": ("1: {epochs: 1}", "`1` is 1: keys should be strings"),
    "ten thousand keys": ("train_args: {" + ", ".join(f"k{n}: 1" for n in range(NAMES)) + "}", "unknown key `k0`"),
    "a very long name": (f"data_args: {{dataset: {'a' * NAMES}}}\nmodel_args: {{model: resnet10}}", "dataset"),
}  # fmt: skip
SETTINGS: dict[str, str] = {
    f"random_seed=1{'0' * 30}": "random_seed",
    "random_seed=-1": "random_seed",
    "threads=1000000": "threads",
    "threads=0": "threads",
    "workers=1000000": "workers",
    "workers=0": "workers",
    "client_num_in_total=10000000": "client_num_in_total",
    f"client_num_per_round=1{'0' * 18}": "client_num_per_round",
    "comm_round=1000000000000": "comm_round",
    "epochs=1000000000": "epochs",
    "batch_size=1000000000000": "batch_size",
    "learning_rate=.inf": "learning_rate",
    "learning_rate=.nan": "learning_rate",
    "learning_rate=1.0e+400": "learning_rate",
    "weight_decay=-.inf": "weight_decay",
    "round_timeout_s=.inf": "round_timeout_s",
    "round_timeout_s=1.0e+300": "round_timeout_s",
    "width=1000000000": "width",
    "image_size=1000000": "image_size",
    "ratios=[.nan]": "ratios",
    "ratios=[]": "ratios",
    "classes=1000000000": "classes",
    "dirichlet_alpha=.inf": "dirichlet_alpha",
    f"quarantine_rounds=1{'0' * 30}": "quarantine_rounds",
    f"model={'a' * NAMES}": "model",
    f"model={'a' * 300}.py:Net": "too long for a file",
    f"data_cache_dir={'a' * NAMES}": "too long for a file",
    f"method={'../' * 100}etc/passwd": "method",
    "no equals sign": "expected key=value",
    ".".join(["a"] * 1000) + "=1": "unknown key",
    "epochs=[[[[": "not valid YAML",
    "max_change=.nan": "max_change",
    f"data_args.arguments={{samples: 0x{'f' * NAMES}}}": "`samples` is a number with more digits than any file",
    f"params.moon={{mu: 1{':59' * NAMES}}}": "is a number in YAML, read to the base 60",
    "epochs=!!bool maybe": "line 1: `maybe` is no bool",
    f"data_args.classes=[[{', '.join(['wordy ' * 50] * 100)}]]": "`0` in data_args.classes is ['wordy",
    f"train_args.{'x ' * NAMES}=1": "unknown key `x x",
    f"{'x ' * NAMES}=1": "unknown key; one of the method's own",
    "classes=[[[[[[1, 2, 3], [4]]]]]]": "`0` in data_args.classes is [[[[[",
}
OVERLONG = 300
NOBODY = 65534
"""Number of the account ``nobody``."""


@dataclass(frozen=True)
class Outcome:
    code: int
    said: str
    seconds: float
    megabytes: float


def attempt(*arguments: str) -> Outcome:
    """The command line in a process of its own, which is ended after twice the time of a core that it may take."""
    reading, writing = os.pipe()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (int(2 * SECONDS),) * 2)
        signal.alarm(int(60 * SECONDS))
        result = CliRunner().invoke(main, arguments, prog_name="fedml-dapper")
        error = "" if result.exception is None or isinstance(result.exception, SystemExit) else repr(result.exception)
        said = json.dumps([result.exit_code, result.stderr + error[:1000]])
        os.write(writing, said.encode()[:60_000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        text = stream.read()
    _, status, usage = os.wait4(child, 0)
    seconds = usage.ru_utime + usage.ru_stime  # however busy the machine is
    assert text, f"ended by signal {os.WTERMSIG(status)} after {seconds:.1f} s"
    code, said = json.loads(text)
    return Outcome(code, said, seconds, (usage.ru_maxrss - before) / 1024)


def check_refused(outcome: Outcome, message: str) -> None:
    assert outcome.code == 2, outcome.said
    assert message in outcome.said
    assert len(outcome.said.strip().splitlines()) == 1, outcome.said
    assert len(outcome.said) < 2000
    assert outcome.seconds < SECONDS
    assert outcome.megabytes < MEGABYTES


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "experiment.yaml"
    file.write_text(EXPERIMENT)
    return file


@pytest.mark.parametrize("what", YAML)
def test_an_experiment_file_may_be_anything(experiment: Path, what: str) -> None:
    content, message = YAML[what]
    file = experiment.parent / "bad.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    check_refused(attempt("run", "-c", str(experiment), "-c", str(file)), message)
    assert sorted(path.name for path in experiment.parent.iterdir()) == ["bad.yaml", "experiment.yaml"]


@pytest.mark.parametrize("override", SETTINGS, ids=lambda text: text[:40])
def test_a_setting_may_be_anything(experiment: Path, override: str) -> None:
    check_refused(attempt("run", "-c", str(experiment), "--set", override), SETTINGS[override])
    assert [path.name for path in experiment.parent.iterdir()] == ["experiment.yaml"]


def fifo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize("make", [fifo, lambda path: path.mkdir()], ids=["fifo", "folder"])
def test_a_file_may_be_none(experiment: Path, make: Callable[[Path], None]) -> None:
    place = experiment.parent / "strange"
    make(place)
    base = ["run", "-c", str(experiment)]
    check_refused(attempt("run", "-c", str(place)), "no config file")
    check_refused(attempt(*base, "--set", f"model_args.weights={place}"), "strange")
    check_refused(attempt("report", str(place)), "strange")
    check_refused(attempt("bench", str(place), "--profile", "small"), "strange")


@pytest.mark.parametrize("make", [fifo, lambda path: path.mkdir()], ids=["fifo", "folder"])
def test_a_ledger_may_be_none(experiment: Path, make: Callable[[Path], None]) -> None:
    run = experiment.parent / "run"
    run.mkdir()
    make(run / "ledger.jsonl")
    check_refused(attempt("run", "-c", str(experiment), "--output", str(run), "--resume"), "ledger.jsonl is no file")
    check_refused(attempt("run", "-c", str(experiment), "--output", str(run)), "ledger.jsonl is no file")


@pytest.mark.long
def test_a_packed_ledger_may_be_a_bomb(experiment: Path) -> None:
    run = experiment.parent / "run"
    run.mkdir()
    bomb = lzma.compress(bytes(64 << 20))
    (run / "ledger.jsonl.xz").write_bytes(bomb * 40)
    check_refused(attempt("compare", str(run), str(run)), "that unfold into more than 256 MiB")
    (run / "ledger.jsonl.xz").write_bytes(bomb[:-8])
    check_refused(attempt("compare", str(run), str(run)), "cannot be unpacked (it ends early)")


def test_a_name_may_be_too_long(experiment: Path) -> None:
    check_refused(attempt("run", "-c", str(experiment), "--output", "o" * OVERLONG), "too long for a file")
    check_refused(attempt("run", "-c", "c" * OVERLONG), "too long for a file")


def open_as_nobody(folder: Path) -> None:
    (folder / "file").touch(0o600)
    os.seteuid(NOBODY)
    try:
        (folder / "file").open()
    finally:
        os.seteuid(0)


def open_a_circle(folder: Path) -> None:
    (folder / "circle").symlink_to("circle")
    (folder / "circle").open()


def open_below_a_file(folder: Path) -> None:
    (folder / "file").touch()
    (folder / "file" / "below").open()


def make_a_folder_of_a_file(folder: Path) -> None:
    (folder / "file").touch()
    (folder / "file").mkdir()


ONLY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another account")


@pytest.mark.parametrize(
    ("use", "message"),
    [
        pytest.param(open_as_nobody, "file: this account may not use it; change its permissions, or", marks=ONLY_ROOT),
        (open_a_circle, "circle: links that lead to each other; name the file itself"),
        (open_below_a_file, "below: a part of this path is a file; name another place"),
        (lambda folder: (folder / ("o" * OVERLONG)).open(), "ooo: a name that is too long for a file"),
        (make_a_folder_of_a_file, "file: a file stands there, where a folder is needed; name another place"),
        (lambda folder: folder.open(), "a folder stands there, where a file is needed; name another place"),
    ],
)
def test_a_place_that_cannot_be_used_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], use: Callable[[Path], None], message: str
) -> None:
    with pytest.raises(SystemExit) as ended, complaining("fedml-dapper"):
        use(tmp_path)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("fedml-dapper: /")
    assert message in line


# Data


def npz_that_declares(shape: str) -> bytes:
    """One array whose header promises more than follows."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (64 - (len(header) + 11) % 64) + "\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + b"\x00" * 100
    return zipped({"classes.npy": npy(CLASSES), "x.npy": array, "y.npy": array})


def zipped(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def saved(**arrays: object) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


def picture(width: int, height: int) -> bytes:
    stream = io.BytesIO()
    Image.new("1", (width, height)).save(stream, "PNG")
    return stream.getvalue()


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


CLASSES, LABELS = np.array(["cat", "dog"]), np.arange(4) % 2
SOME = np.zeros((4, 8, 8, 3), np.uint8)
NUMBERS = np.zeros((4, 8, 8, 3))
PACKED: dict[str, tuple[Callable[[], bytes], str]] = {
    "713 TiB": (lambda: npz_that_declares("(28000000, 5000, 5600)"), "says that it holds 784000000000000 bytes"),
    "a shape below 0": (lambda: npz_that_declares("(-4, 8, 8, 3)"), "bad.npz"),
    "a header that is code": (lambda: npz_that_declares("__import__('os')"), "bad.npz"),
    "300 MB of nothing": (
        lambda: zipped(
            {"classes.npy": npy(CLASSES), "x.npy": bytes(300 << 20), "y.npy": npy(LABELS)}, zipfile.ZIP_BZIP2
        ),
        "unfold into 300 MiB",
    ),
    "pickled objects": (lambda: saved(x=np.array([{}], object), y=LABELS, classes=CLASSES), "Object arrays"),
    "half a file": (lambda: saved(x=SOME, y=np.zeros(4, int))[:200], "bad.npz"),
    "no zip": (lambda: b"PK" * 1000, "bad.npz"),
    "numbers, no pictures": (
        lambda: saved(x=NUMBERS, y=LABELS, classes=CLASSES),
        "expected uint8",
    ),
    "labels out of range": (lambda: saved(x=SOME, y=LABELS * 10**18, classes=CLASSES), "class dog has no training"),
    "other arrays": (lambda: saved(a=SOME), "bad.npz"),
    "no arrays": (lambda: zipped({}), "bad.npz"),
    "one name, no list of them": (lambda: saved(x=SOME, y=LABELS, classes=np.array("cat")), "expected a list of names"),
    "names in a table": (lambda: saved(x=SOME, y=LABELS, classes=CLASSES[None]), "expected a list of names"),
    "truth as names": (lambda: saved(x=SOME, y=LABELS, classes=LABELS > 0), "expected a list of names"),
    "several domains": (lambda: saved(x=SOME, y=LABELS, classes=CLASSES, domain=CLASSES), "expected one name"),
    "one label, no list of them": (lambda: saved(x=SOME, y=np.array(1), classes=CLASSES), "class cat has no training"),
    "a picture of no dimensions": (lambda: saved(x=np.uint8(3), y=LABELS, classes=CLASSES), "expected uint8"),
    "words as labels": (lambda: saved(x=SOME, y=CLASSES[LABELS], classes=CLASSES), "y is <U3 (4,); expected integers"),
    "fractions as labels": (lambda: saved(x=SOME, y=LABELS / 1, classes=CLASSES), "y is float64 (4,); expected integ"),
    "no class": (lambda: saved(x=SOME, y=LABELS, classes=CLASSES[:0]), "has no class; there have to be two"),
    "pictures to validate on, without labels": (
        lambda: saved(x_train=SOME, y_train=LABELS, x_test=SOME, y_test=LABELS, x_val=SOME, classes=CLASSES),
        "has x_val without y_val; give both, or neither",
    ),
    "a zero-sized picture": (lambda: saved(x=SOME[:, :0], y=LABELS, classes=CLASSES), "expected uint8"),
}


@pytest.mark.parametrize("what", PACKED)
def test_a_packed_file_may_be_anything(experiment: Path, what: str) -> None:
    make, message = PACKED[what]
    folder = experiment.parent / "pictures"
    folder.mkdir()
    (folder / "bad.npz").write_bytes(make())
    asked = ("--set", "dataset=folder", "--set", f"data_cache_dir={folder}")
    check_refused(attempt("run", "-c", str(experiment), *asked), message)


PICTURES: dict[str, Callable[[], bytes]] = {
    "13000 pixels wide and high": lambda: picture(13_000, 13_000),
    "60000 wide": lambda: picture(60_000, 2_000),
    "half of it": lambda: picture(64, 64)[:40],
    "a text": lambda: b"no picture at all",
    "nothing": lambda: b"",
    "the beginning of a GIF": lambda: b"GIF89a" + b"\xff" * 40,
    "the beginning of a TIFF": lambda: b"II*\x00" + b"\xff" * 40,
    "the beginning of a JPEG": lambda: b"\xff\xd8\xff\xe0" + b"\x00" * 40,
}


@pytest.mark.parametrize("what", PICTURES)
def test_a_picture_may_be_anything(experiment: Path, what: str) -> None:
    folder = experiment.parent / "pictures"
    for label in ("cat", "dog"):
        (folder / "zoo" / label).mkdir(parents=True)
        for index in range(4):
            (folder / "zoo" / label / f"{index}.png").write_bytes(picture(8, 8))
    (folder / "zoo" / "dog" / "3.png").write_bytes(PICTURES[what]())
    asked = ("--set", "dataset=folder", "--set", f"data_cache_dir={folder}")
    check_refused(attempt("run", "-c", str(experiment), *asked), "3.png: not a readable picture")


def test_a_picture_may_be_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    threading.Thread(target=lambda: pipe.open("wb").close(), daemon=True).start()  # so that nobody reads for ever
    with pytest.raises(DataError, match=r"pipe.png: not a readable picture \(it is a pipe\)"):
        read_picture(pipe, 8)


def test_a_full_disk_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, complaining("fedml-dapper"):
        Path("/dev/full").write_text("the last byte")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "fedml-dapper: the disk is full; make room, then start it again\n"


@pytest.mark.long
@pytest.mark.parametrize("asked", ["--version", "--help", "settings"])
def test_a_full_disk_takes_no_output(asked: str) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "fedml_dapper.entry", asked], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert ended.returncode == 2
    assert ended.stderr.decode() == "fedml-dapper: the disk is full; make room, then start it again\n"


def test_a_picture_may_be_broken_anywhere(tmp_path: Path) -> None:
    chance, refused = np.random.default_rng(1), 0
    pixels = Image.fromarray(chance.integers(0, 255, (24, 24, 3), np.uint8))
    for suffix in ("png", "jpg", "gif", "bmp", "tif", "webp"):
        pixels.save(tmp_path / f"whole.{suffix}")
        whole = (tmp_path / f"whole.{suffix}").read_bytes()
        for _ in range(100):
            broken = bytearray(whole[: chance.integers(1, len(whole) + 1)])
            for place in chance.integers(0, len(broken), 3):
                broken[place] = chance.integers(0, 256)
            file = tmp_path / f"broken.{suffix}"
            file.write_bytes(broken)
            try:
                assert read_picture(file, 8).shape == (3, 8, 8)
            except DataError:
                refused += 1
    assert refused > 100


def test_sixteen_bits_are_scaled_to_eight(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    read = read_picture(tmp_path / "deep.png", 8)
    assert read[0, 0].tolist() == [0, 4, 8, 12, 16, 20, 24, 28]
    assert int(read.max()) == 255
