"""``export``, ``adapt`` and ``predict`` on the command line: what they write, and what they refuse in one line."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image
from safetensors.torch import load_file

from fedml_dapper.cli import main
from fedml_dapper.errors import ConfigError
from fedml_dapper.export import CARD_NAME, FORMATS, SIDECAR_NAME, Exporter, choose, read_sidecar
from fedml_dapper.federation import MODEL_NAME
from fedml_dapper.federation.run_folder import own_code
from fedml_dapper.federation.run_folder.finished import FinishedRun
from fedml_dapper.files.atomic import SCRATCH_PREFIX
from fedml_dapper.methods import recalibrate
from tests.examples.pictures import make_pictures

from .conftest import ROOT, finish, pixels_of, write_pictures


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env={"COLUMNS": "160"})


def assert_refused(result: Result, message: str, out: Path) -> None:
    """One line, exit code 2, and nothing written."""
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not out.exists()
    assert not list(out.parent.glob(f"{SCRATCH_PREFIX}*"))


def test_a_folder_with_file_sidecar_and_card(finished: FinishedRun, tmp_path: Path) -> None:
    out = tmp_path / "new" / "phone"
    result = call("export", finished.folder, "--level", 4, "--format", "torchscript", "-o", out)
    assert result.exit_code == 0, result.output
    assert {file.name for file in out.iterdir()} == {"model.torchscript", SIDECAR_NAME, CARD_NAME}
    card = (out / CARD_NAME).read_text()
    footprint = finished.record.footprints[3]
    for fact in (
        "| model | the global model as devices of capability level 4 carry it (pruning ratio 0.6) |",
        f"| parameters | {footprint.params} (39.",
        f"| MACs | {footprint.macs} an input",
        "| method | dapperfl, 1 rounds, 5 clients |",
        "commit ",
        "uint8 (N, 3, 16, 16)",
        "| model.torchscript |",
        "Compared on real test samples.",
        "| scans (200 samples) |",
    ):
        assert fact in card
    assert "Top-1 accuracy (%) on each test set" in result.stdout
    assert f"Card: {out / CARD_NAME}" in result.stdout.replace("\n", "")
    kept = sorted((file, file.read_bytes()) for file in out.iterdir())
    again = call("export", finished.folder, "--format", "torchscript", "-o", out)
    assert (again.exit_code, "is there already and not empty" in again.stderr) == (2, True)
    assert sorted((file, file.read_bytes()) for file in out.iterdir()) == kept


@pytest.mark.nightly
def test_int8_beside_onnx_and_what_it_costs(finished: FinishedRun, tmp_path: Path) -> None:
    out = tmp_path / "phone"
    result = call("export", finished.folder, "--level", 3, "--int8", "-o", out)
    assert result.exit_code == 0, result.output
    about = read_sidecar(out)
    assert about.files == {"onnx": "model.onnx", "onnx-int8": "model.int8.onnx"}
    assert (out / "model.int8.onnx").stat().st_size < 0.7 * (out / "model.onnx").stat().st_size
    card = (out / CARD_NAME).read_text()
    assert "| test set | model.onnx | model.int8.onnx |" in card
    assert "| quantised |" in card
    assert_refused(
        call("export", finished.folder, "--int8", "--format", "torchscript", "-o", tmp_path / "other"),
        "add --format onnx",
        tmp_path / "other",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--level", "6"], "has levels 1 to 5"),
        (["--client", "5"], "has clients 0 to 4"),
        (["--calibrate", "nowhere"], "no folder"),
    ],
)
def test_models_and_folders_that_there_are_not(
    finished: FinishedRun, tmp_path: Path, words: list[str], message: str
) -> None:
    assert_refused(call("export", finished.folder, *words, "-o", tmp_path / "out"), message, tmp_path / "out")


def test_the_working_directory_is_not_replaced(
    finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("export", finished.folder, "-o", ".")
    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert ". is no name that the new folder could have; name one by -o" in result.stderr


def test_a_missing_package_is_named_before_anything_is_done(
    finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = call("export", finished.folder, "-o", tmp_path / "out")
    assert_refused(result, "needs onnxruntime; pip install 'fedml-dapper[export]'", tmp_path / "out")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_went_astray_is_called_that(finished: FinishedRun, tmp_path: Path, value: float) -> None:
    subject = choose(finished, 2)
    model = copy.deepcopy(subject.model)
    torch.nn.init.constant_(model.predictor.weight, value)
    with pytest.raises(
        ConfigError, match=r"capability level 2 .* numbers that are not finite .* `predictor.weight` fir"
    ):
        Exporter(finished, tuple(FORMATS)).export(replace(subject, model=model), tmp_path / "out")
    torch.nn.init.constant_(model.predictor.weight, 3e38)
    with pytest.raises(ConfigError, match="the model's own outputs are not finite"):
        Exporter(finished, ("torchscript",)).export(replace(subject, model=model), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_no_run_or_half_a_run(finished: FinishedRun, tmp_path: Path) -> None:
    assert_refused(call("export", tmp_path, "-o", tmp_path / "out"), "no ledger at", tmp_path / "out")
    half = tmp_path / "half"
    shutil.copytree(finished.folder, half)
    (half / MODEL_NAME).unlink()
    assert_refused(call("export", half, "-o", tmp_path / "out"), "no global model at", tmp_path / "out")


def test_calibrated_statistics_are_those_of_the_pictures(finished: FinishedRun, tmp_path: Path) -> None:
    write_pictures(finished, tmp_path / "shots", 8)
    out = tmp_path / "out"
    result = call(
        "export", finished.folder, "--level", 4, "--calibrate", tmp_path / "shots", "--format", "safetensors", "-o", out
    )
    assert result.exit_code == 0, result.output
    expected = finished.method.level_model(finished.state, 4)
    assert finished.origin.preprocessing is not None
    batch = finished.origin.preprocessing.evaluate(pixels_of(finished, 8))
    statistics = recalibrate(expected, [(batch, None)], torch.device("cpu"))  # type: ignore[arg-type]  # one batch
    written = load_file(out / "model.safetensors")
    for name, tensor in statistics.items():
        torch.testing.assert_close(written[name], tensor)
    assert "BatchNorm statistics measured on 8 pictures (shots), without labels" in (out / CARD_NAME).read_text()


def test_a_client_s_level_with_its_own_statistics(finished: FinishedRun, tmp_path: Path) -> None:
    weakest = next(client for client in finished.record.clients if client.level == 5)
    out = tmp_path / "out"
    result = call("export", finished.folder, "--client", weakest.client, "--format", "safetensors", "-o", out)
    assert result.exit_code == 0, result.output
    about = read_sidecar(out)
    assert (about.level, about.client) == (5, weakest.client)
    assert about.changes == (
        f"BatchNorm statistics measured on client {weakest.client}'s training images, without labels",
    )
    assert f"client {weakest.client}'s own" in (out / CARD_NAME).read_text()
    assert finished.experiment is not None
    model, images = finished.method.level_model(finished.state, 5), finished.experiment.data_of(weakest.client)
    written = load_file(out / "model.safetensors")
    for name, tensor in recalibrate(model, images, torch.device("cpu")).items():
        assert written[name].equal(tensor)


@pytest.mark.nightly
def test_without_the_data_it_goes_on_and_says_so(tmp_path: Path) -> None:
    make_pictures(tmp_path / "pictures", per_class=6)
    config = tmp_path / "pictures.yaml"
    config.write_text((ROOT / "examples" / "own_pictures" / "experiment.yaml").read_text())
    run = finish(
        tmp_path / "run",
        f"data_cache_dir={tmp_path}/pictures",
        "data_args.clients=null",
        "client_share=null",
        config=config,
    )
    shutil.rmtree(tmp_path / "pictures")
    out = tmp_path / "out"
    result = call("export", run.folder, "--level", 2, "--format", "torchscript", "--format", "safetensors", "-o", out)
    assert result.exit_code == 0, result.output
    assert "accuracy was not measured: data_args.data_cache_dir: no folder" in result.stdout.replace("\n", " ")
    card = (out / CARD_NAME).read_text()
    assert "Compared on random inputs." in card
    assert "Not measured: data_args.data_cache_dir: no folder" in card
    assert read_sidecar(out).classes == ("bar", "circle", "cross", "diamond", "square", "triangle")
    assert_refused(call("export", run.folder, "--int8", "-o", tmp_path / "other"), "--calibrate", tmp_path / "other")


def test_int8_takes_pictures_where_there_are_no_statistics_to_measure(
    finished_quickstart: FinishedRun, tmp_path: Path
) -> None:
    write_pictures(finished_quickstart, tmp_path / "shots")
    out = tmp_path / "out"
    refused = call("export", finished_quickstart.folder, "--calibrate", tmp_path / "shots", "-o", out)
    assert_refused(refused, "has no BatchNorm", out)
    result = call("export", finished_quickstart.folder, "--int8", "--calibrate", tmp_path / "shots", "-o", out)
    assert result.exit_code == 0, result.output
    assert (out / "model.int8.onnx").exists()


def test_somebody_else_s_code_runs_with_consent_alone(
    finished_own: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of another user"))
    monkeypatch.setattr(own_code, "_noted_here", set())
    [picture] = write_pictures(finished_own, tmp_path / "shots", 1)
    out = tmp_path / "phone"
    for words in (("export", finished_own.folder), ("adapt", finished_own.folder, picture.parent)):
        asked = call(*words, "--format", "safetensors", "-o", out)
        assert_refused(asked, "my_model.py:Net`, which no run of yours on this machine has run", out)
        assert "--trust-code" in asked.stderr
    trusted = call("export", finished_own.folder, "--format", "safetensors", "-o", out, "--trust-code")
    assert trusted.exit_code == 0, trusted.output
    assert call("predict", out, picture).exit_code == 0  # what one exported is one's own
    received = shutil.copytree(out, tmp_path / "received")
    assert_refused(call("predict", received, picture), "my_model.py:Net`, which no run of yours", tmp_path / "nothing")
    assert call("predict", received, picture, "--trust-code").exit_code == 0


@pytest.mark.nightly
def test_pictures_get_their_class_by_every_format(finished_own: FinishedRun, tmp_path: Path) -> None:
    pictures = write_pictures(finished_own, tmp_path / "shots", 5)
    out = tmp_path / "phone"
    formats = ("onnx", "torch-export", "torchscript", "safetensors")
    chosen = [word for name in formats for word in ("--format", name)]
    code = finished_own.folder.parent / "my_model.py"
    assert call("export", finished_own.folder, "--level", 2, *chosen, "--int8", "-o", out).exit_code == 0
    moved = code.rename(code.with_suffix(".gone"))  # the folder is enough
    try:
        found = {}
        for file in ("model.onnx", "model.pt2", "model.torchscript", "model.safetensors"):
            result = call("predict", out / file, *pictures, "--json")
            assert result.exit_code == 0, result.output
            found[file] = json.loads(result.stdout)
        shown = call("predict", out, *pictures).stdout
    finally:
        moved.rename(code)
    assert finished_own.origin.preprocessing is not None
    model = finished_own.method.level_model(finished_own.state, 2).eval()
    with torch.no_grad():
        shares = model(finished_own.origin.preprocessing.evaluate(pixels_of(finished_own, 5))).softmax(dim=1)
    for rows in found.values():
        assert [row["label"] for row in rows] == [str(label) for label in shares.argmax(dim=1).tolist()]
        assert [row["probability"] for row in rows] == pytest.approx(shares.amax(dim=1).tolist(), abs=1e-4)
        assert [row["picture"] for row in rows] == [str(picture) for picture in pictures]
    assert f"{100 * float(shares[0].amax()):.1f} %" in shown


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
def test_what_cannot_be_predicted_is_said(finished: FinishedRun, tmp_path: Path) -> None:
    out, shots = tmp_path / "phone", tmp_path / "shots"
    [picture] = write_pictures(finished, shots, 1)
    assert call("export", finished.folder, "--format", "torchscript", "-o", out).exit_code == 0
    damaged = shots / "damaged.png"
    damaged.write_bytes(picture.read_bytes()[:60])
    (out / "model.onnx").write_bytes(b"nothing")
    for words, message in [
        ((out, damaged), "damaged.png: not a readable picture"),
        ((out / "model.onnx", picture), "is no ONNX model that onnxruntime reads"),
        ((out / "model.pt2", picture), "no file"),
        ((out / CARD_NAME, picture), "is no exported model; these are: .onnx, .pt2"),
        ((tmp_path / "shots", picture), f"no {SIDECAR_NAME} in"),
    ]:
        assert_refused(call("predict", *words), message, tmp_path / "nothing")
    described = json.loads((out / SIDECAR_NAME).read_text())
    described["input"]["shape"] = [None, 3, 10**9, 10**9]
    (shots / SIDECAR_NAME).write_text(json.dumps(described))
    (out / "model.torchscript").rename(shots / "model.torchscript")
    assert_refused(call("predict", shots, picture), "does not say how large pictures are", tmp_path / "nothing")
    of_two_numbers = torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))  # type: ignore[no-untyped-call]
    of_two_numbers.save(str(out / "model.torchscript"))
    assert_refused(call("predict", out, picture), "model.torchscript is a program, and no export", tmp_path / "nothing")
    trusted = call("predict", out, picture, "--trust-code")
    assert_refused(trusted, "does not run on pictures as model.json", tmp_path / "nothing")
    (out / SIDECAR_NAME).write_text("{}")
    assert_refused(call("predict", out, picture), "is damaged or of another version", tmp_path / "nothing")


@pytest.mark.long
def test_a_photograph_of_any_size_and_mode_is_taken(finished: FinishedRun, tmp_path: Path) -> None:
    out = tmp_path / "phone"
    assert call("export", finished.folder, "--format", "torchscript", "-o", out).exit_code == 0
    photo = tmp_path / "a [red] photo.png"
    Image.new("RGBA", (120, 33), (200, 10, 10, 128)).save(photo)
    result = call("predict", out, photo)
    assert result.exit_code == 0, result.output
    assert "a [red] photo.png" in result.stdout
