"""Five levels in four formats: each file does what the model does, here and in programs that know nothing of us.

One level in all formats and all levels in one say enough for a change; the other cells are nightly.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Collection
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from _pytest.mark.structures import ParameterSet
from PIL import Image
from torch import Tensor

import fedml_dapper
from fedml_dapper.datasets.colours import to_rgb
from fedml_dapper.export import FORMATS, Card, Exporter, choose, predict, read_sidecar
from fedml_dapper.federation.run_folder.finished import FinishedRun
from fedml_dapper.federation.scoring.testing import evaluate

from ..grids import sampled
from .conftest import ROOT, pixels_of, write_pictures

LEVELS, MIDDLE = (1, 2, 3, 4, 5), 3
NOW = tuple(product((MIDDLE,), FORMATS))
CROSS = (*NOW, (LEVELS[-1], "onnx"))
OUTSIDER = Path(__file__).with_name("outsider.py")


def cells(now: Collection[tuple[int, str]], cross: Collection[tuple[int, str]] = ()) -> list[ParameterSet]:
    """Every level in every format: some ``now``, what else is in the ``cross`` is long, and the rest nightly."""
    marks = dict.fromkeys(product(LEVELS, FORMATS), pytest.mark.nightly)
    marks |= dict.fromkeys(cross, pytest.mark.long)
    return [pytest.param(*cell, marks=() if cell in now else mark) for cell, mark in marks.items()]


class Exported(dict[tuple[int, str], tuple[Path, Card]]):
    """The folder and card of each level of a run in each format, exported when it is first asked for; the middle level
    in all formats at once."""

    def __init__(self, run: FinishedRun, folder: Path) -> None:
        super().__init__()
        self._run, self._folder = run, folder

    def __missing__(self, cell: tuple[int, str]) -> tuple[Path, Card]:
        level, name = cell
        formats = tuple(FORMATS) if level == MIDDLE else (name,)
        out = self._folder / f"level{level}-{name}"
        made = out, Exporter(self._run, formats).export(choose(self._run, level), out)
        self.update(((level, each), made) for each in formats)
        return made

    @property
    def middle(self) -> Path:
        """The middle level's folder, with a file of every format."""
        return self[MIDDLE, "onnx"][0]


@pytest.fixture(scope="module")
def exported(finished: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(finished, tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="module")
def exported_own(finished_own: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(finished_own, tmp_path_factory.mktemp("exported_own"))


@pytest.fixture(scope="module")
def exported_quickstart(finished_quickstart: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(finished_quickstart, tmp_path_factory.mktemp("exported_quickstart"))


def outputs_of_ours(run: FinishedRun, level: int, pixels: Tensor) -> Tensor:
    """Of the level's model as it was trained, on pictures prepared as for training."""
    preprocessing = run.origin.preprocessing
    assert preprocessing is not None
    with torch.no_grad():
        outputs: Tensor = run.method.level_model(run.state, level).eval()(preprocessing.evaluate(pixels))
    return outputs


@pytest.mark.parametrize(("level", "name"), cells(NOW, CROSS))
def test_a_file_does_what_the_model_does(exported: Exported, finished: FinishedRun, level: int, name: str) -> None:
    folder, card = exported[level, name]
    runtime = FORMATS[name].read(folder / FORMATS[name].file_name)
    pixels = pixels_of(finished, 40)
    expected = outputs_of_ours(finished, level, pixels)
    torch.testing.assert_close(runtime(pixels), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(runtime(pixels[:1]), expected[:1], rtol=0, atol=1e-4)
    [figures] = [figures for figures in card.files if figures.format == name]
    assert figures.bytes == (folder / figures.file).stat().st_size
    assert figures.difference is not None
    assert figures.difference < 1e-4
    assert (figures.dense_milliseconds is None) == (level == 1)
    assert finished.experiment is not None
    model, task = finished.method.level_model(finished.state, level), finished.method.problem.task
    accuracy = {
        test.domain: evaluate(model, task, test, torch.device("cpu")).headline for test in finished.experiment.tests
    }
    assert figures.accuracy == pytest.approx(accuracy, abs=0.51)  # one picture of 200 on the edge


@pytest.mark.parametrize("level", sampled(LEVELS, always=("1", "3", "5"), quick=("3",)))
def test_the_sidecar_says_what_a_device_of_the_level_carries(
    exported: Exported, finished: FinishedRun, level: int
) -> None:
    about, footprint = read_sidecar(exported[level, "onnx"][0]), finished.record.footprints[level - 1]
    assert (about.level, about.ratio) == (level, footprint.ratio)
    assert (about.parameters, about.macs) == (footprint.params, footprint.macs)
    assert about.classes == tuple("0123456789")
    assert about.input.shape == (None, 3, 16, 16)
    assert (about.input.name, about.output.name, about.output.shape) == ("pixels", "scores", (None, 10))


@pytest.mark.nightly
@pytest.mark.parametrize("which", ["exported", pytest.param("exported_own", marks=pytest.mark.nightly)])
def test_a_program_without_this_package_gets_the_same(
    request: pytest.FixtureRequest, tmp_path: Path, which: str
) -> None:
    exported: Exported = request.getfixturevalue(which)
    run: FinishedRun = request.getfixturevalue("finished" if which == "exported" else "finished_own")
    [small] = write_pictures(run, tmp_path / "small", 1)
    picture = tmp_path / "photo.png"
    Image.open(small).resize((48, 48), Image.Resampling.NEAREST).save(picture)
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", OUTSIDER, picture, exported.middle],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    side = Image.open(picture).resize((16, 16), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.asarray(side).transpose(2, 0, 1).copy())[None]
    expected = outputs_of_ours(run, MIDDLE, pixels)[0]
    assert found.keys() == {"onnx", "torch-export", "torchscript"}
    for name, scores in found.items():
        torch.testing.assert_close(torch.tensor(scores), expected, rtol=0, atol=1e-4, msg=name)


@pytest.mark.long
@pytest.mark.parametrize("name", FORMATS)
def test_a_file_does_not_say_where_it_was_made(exported_own: Exported, finished_own: FinishedRun, name: str) -> None:
    path = exported_own[MIDDLE, name][0] / FORMATS[name].file_name
    contents = [path.read_bytes()]
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            contents += [archive.read(member) for member in archive.namelist()]
    places = (str(ROOT), str(finished_own.folder.parent), "site-packages", "in forward")
    said = [place for place in places if any(place.encode() in content for content in contents)]
    assert not said


@pytest.mark.long
def test_an_onnx_file_holds_no_notes_of_its_exporter(exported_own: Exported) -> None:
    model = onnx.load(exported_own[MIDDLE, "onnx"][0] / "model.onnx")
    assert not any(noted.metadata_props for noted in (model, model.graph, *model.graph.node, *model.graph.input))
    assert not any(node.doc_string for node in model.graph.node)


def test_the_page_s_lines_see_pictures_as_training_does(tmp_path: Path) -> None:
    """Of 16 bits, transparent in several ways, grey, for print, turned by their camera."""
    functions, _, _ = _page_s_lines().partition("about = ")
    scope: dict[str, Any] = {}
    exec(functions, scope)  # the page's own
    drawn = np.random.default_rng(0)
    colours = Image.fromarray(drawn.integers(0, 256, (6, 4, 4), dtype=np.uint8), "RGBA")
    palette = colours.convert("RGB").quantize(8)
    turned = Image.Exif()
    turned[0x0112] = 6
    pictures: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "deep.png": (Image.fromarray(drawn.integers(0, 1 << 16, (6, 4), dtype=np.uint16)), {}),
        "clear.png": (colours, {}),
        "grey.png": (colours.convert("LA"), {}),
        "palette.png": (palette, {"transparency": 3}),
        "plain.png": (colours.convert("L"), {}),
        "print.jpg": (colours.convert("RGB").convert("CMYK"), {}),
        "turned.jpg": (colours.convert("RGB"), {"exif": turned}),
    }
    for name, (picture, options) in pictures.items():
        picture.save(tmp_path / name, **options)
        with Image.open(tmp_path / name) as ours, Image.open(tmp_path / name) as theirs:
            assert np.array_equal(np.asarray(scope["rgb"](theirs)), np.asarray(to_rgb(ours))), name


def _page_s_lines() -> str:
    [code] = re.findall(r"```python\n(import json.*?)```", (ROOT / "docs" / "export.md").read_text(), re.DOTALL)
    assert isinstance(code, str)
    return code


def test_the_page_s_lines_name_a_picture_s_class(exported: Exported, finished: FinishedRun, tmp_path: Path) -> None:
    [picture] = write_pictures(finished, tmp_path / "shots", 1)
    picture.rename(tmp_path / "picture.png")
    (tmp_path / "phone").symlink_to(exported.middle)
    told = subprocess.run(
        [sys.executable, "-c", _page_s_lines()], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    [expected] = predict(exported.middle, [tmp_path / "picture.png"])
    assert told.stdout == f"{expected.label}\n"


@pytest.mark.nightly
@pytest.mark.parametrize(("level", "name"), cells([(2, "torchscript")], [(5, "onnx")]))
def test_so_it_is_for_the_quickstart(
    exported_quickstart: Exported, finished_quickstart: FinishedRun, level: int, name: str
) -> None:
    assert_is_the_models(exported_quickstart, finished_quickstart, level, name, network="resnet10")


@pytest.mark.parametrize(("level", "name"), cells([(2, "torchscript")], [(MIDDLE, "onnx")]))
def test_so_it_is_for_a_network_of_ones_own(
    exported_own: Exported, finished_own: FinishedRun, level: int, name: str
) -> None:
    assert_is_the_models(exported_own, finished_own, level, name, network="Net")


def assert_is_the_models(exported: Exported, run: FinishedRun, level: int, name: str, network: str) -> None:
    folder, card = exported[level, name]
    pixels = pixels_of(run, 40)
    runtime = FORMATS[name].read(folder / FORMATS[name].file_name)
    torch.testing.assert_close(runtime(pixels), outputs_of_ours(run, level, pixels), rtol=0, atol=1e-4)
    assert card.about.network == network
    assert card.about.parameters == run.record.footprints[level - 1].params


def test_weights_go_into_a_network_of_ones_own_and_bring_its_code_along(exported_own: Exported) -> None:
    folder, _ = exported_own[2, "safetensors"]
    assert (folder / "my_model.py").is_file()
    assert b"/my_model.py" not in (folder / "model.safetensors").read_bytes()  # nor where it was on this machine
    net = fedml_dapper.load_model(folder / "model.safetensors")
    assert {name.partition(".")[0] for name in net.state_dict()} == {"features", "fc"}


def test_batchnorm_is_folded_where_runtimes_do_not(exported: Exported) -> None:
    onnx = pytest.importorskip("onnx")
    folder = exported.middle
    operators = {node.op_type for node in onnx.load(folder / "model.onnx").graph.node}
    assert "BatchNormalization" not in operators
    assert "Slice" not in operators  # strides are the convolutions' own
    scripted = torch.jit.load(folder / "model.torchscript")
    assert "batch_norm" not in str(scripted.inlined_graph)
