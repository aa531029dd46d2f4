"""The front door in Python, used as in a notebook or a script."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import rich
import torch
from torch import nn

import fedml_dapper
from fedml_dapper import Run
from fedml_dapper.config import Settings, load_settings
from fedml_dapper.config.overrides import leaves
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.federation import MODEL_NAME, build_experiment, simulate
from fedml_dapper.runs import run as run_function

from .grids import sampled
from .holding import held_before
from .waiting import wait_until

pytestmark = pytest.mark.usefixtures("few_test_images")


SettingsFactory = Callable[..., Settings]
SECONDS = re.compile(rb'"seconds":(\{[^}]*\}|[0-9.e-]+)')


@pytest.fixture
def tiny(tmp_path: Path, tiny_settings: SettingsFactory) -> str:
    """The path of an experiment of seconds, as text."""
    file = tmp_path / "tiny.yaml"
    file.write_text(tiny_settings("epochs=1", "client_share=0.03", "image_size=16").as_yaml())
    return str(file)


@pytest.mark.nightly
def test_the_front_door_is_light_until_it_is_used() -> None:
    code = (
        "import sys, fedml_dapper; assert 'torch' not in sys.modules; fedml_dapper.run; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", f"{code}; assert 'fedml' not in sys.modules"], check=True, timeout=120)


@pytest.mark.long
def test_a_run_from_file_to_figures(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fedml_dapper.run(
        tiny, {"dapper_args.params.dapperfl.gamma": 0.0, "train_args.epochs": 1}, comm_round=3,
        frequency_of_the_test=2, output=str(tmp_path / "run"),
    )  # fmt: skip
    out, err = capsys.readouterr()
    assert out == ""
    assert re.findall(r"^round (\d)/3", err, re.MULTILINE) == ["1", "2", "3"]

    assert run.folder == tmp_path / "run"
    assert run.settings.train_args.comm_round == 3
    assert run.settings.dapper_args.params == {
        "dapperfl": {**run.settings.dapper_args.params["dapperfl"], "gamma": 0.0}
    }
    assert run.ledger.index.tolist() == [1, 2, 3]
    assert run.ledger["accuracy/global"].isna().tolist() == [True, False, False]
    assert run.ledger.loc[3, "accuracy/global"] == run.summary.global_accuracy.last
    domains = [f"accuracy/{name}" for name in ("scans", "blended", "fonts", "segments")]
    assert run.ledger.loc[3, domains].mean() == pytest.approx(run.ledger.loc[3, "accuracy/global"])
    assert len(run.clients) == 30
    totals = run.clients.groupby("round")["bytes_up"].sum()
    assert totals.tolist() == run.ledger["bytes/up"].tolist()
    assert run.report() == run.folder / "report.html"
    assert "dapperfl on digits_offline" in repr(run)
    assert "global (mean)" in run._repr_html_()
    assert (run.folder / "checkpoints" / "round_00003.safetensors").is_file()


@pytest.mark.nightly
def test_it_computes_what_simulate_does_and_is_found_again(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("dapper_args: {method: fedavg}\n")
    run = fedml_dapper.run([tiny, overlay], output=tmp_path / "run", progress=False)
    assert capsys.readouterr() == ("", "")
    simulate(build_experiment(load_settings([tiny, overlay])), run_dir=str(tmp_path / "direct"))
    for name in ("ledger.jsonl", "global_model.safetensors"):
        ours, theirs = ((tmp_path / place / name).read_bytes() for place in ("run", "direct"))
        assert SECONDS.sub(b"", ours) == SECONDS.sub(b"", theirs)
    again = Run.open(str(run.folder))
    assert again.ledger.equals(run.ledger)
    assert again.settings == run.settings
    for name, tensor in run.model().state_dict().items():
        assert tensor.equal(again.model().state_dict()[name])


def test_the_model_is_the_one_that_was_scored(tiny: str, tmp_path: Path) -> None:
    run = fedml_dapper.run(tiny, output=tmp_path / "run", progress=False)
    model, correct = run.model(), []
    assert isinstance(model, nn.Module)
    assert not model.training
    for test in build_experiment(run.settings).tests:
        with torch.no_grad():
            hits = [(model(batch.inputs).argmax(dim=1) == batch.targets).sum().item() for batch in test.batches()]
        correct.append(100 * sum(hits) / test.num_samples)
    assert sum(correct) / len(correct) == pytest.approx(run.summary.global_accuracy.last)


@pytest.mark.long
@pytest.mark.parametrize(
    "method",
    sampled(["dapperfl", "heterofl", "fedrolex", "feddrop", "fedmp", "nefl", "fjord", "fedecover", "fiarse"]),
)
def test_a_levels_model_costs_what_its_footprint_says(tiny: str, tmp_path: Path, method: str) -> None:
    run = fedml_dapper.run(tiny, comm_round=1, method=method, output=tmp_path / "run", progress=False)
    footprints = build_experiment(run.settings).record().footprints
    images = torch.randn(2, 3, 16, 16)
    for footprint in footprints:
        model = run.model(level=footprint.level)
        assert sum(parameter.numel() for parameter in model.parameters()) == footprint.params
        assert model(images).shape == (2, 10)
        assert not model.training
    whole = run.model().state_dict()
    cut = run.model(level=5).state_dict()
    assert cut["predictor.bias"].equal(whole["predictor.bias"])
    if method == "heterofl":
        for name, tensor in cut.items():
            assert tensor.equal(whole[name][tuple(slice(size) for size in tensor.shape)]), name
    if method == "dapperfl":
        assert kept_norms(cut, "stages.0.0.conv1.weight") == largest(whole, cut, "stages.0.0.conv1.weight")


def kept_norms(state: dict[str, torch.Tensor], name: str) -> list[float]:
    return [round(float(channel.abs().sum()), 4) for channel in state[name]]


def largest(whole: dict[str, torch.Tensor], cut: dict[str, torch.Tensor], name: str) -> list[float]:
    """Of the dense filters those of largest norm, as many as were kept, in their order."""
    norms = kept_norms(whole, name)
    chosen = sorted(sorted(range(len(norms)), key=norms.__getitem__)[-len(cut[name]) :])
    return [norms[place] for place in chosen]


def test_what_there_is_not_is_said_in_one_line(tiny: str, tmp_path: Path) -> None:
    run = fedml_dapper.run(tiny, comm_round=1, method="fedbn", output=tmp_path / "run", progress=False)
    with pytest.raises(ConfigError, match="method `fedbn` has no global model"):
        run.model()
    with pytest.raises(ConfigError, match=r"no capability level 6; .* has levels 1 to 5"):
        run.model(level=6)
    whole = fedml_dapper.run(tiny, comm_round=1, method="fedavg", output=tmp_path / "whole", progress=False)
    with pytest.raises(ConfigError, match=r"method `fedavg` trains the full model on everyone and has none .* level 4"):
        whole.model(level=4)
    assert isinstance(whole.model(level=1), nn.Module)  # of which nothing is cut
    (run.folder / MODEL_NAME).unlink()
    with pytest.raises(DataError, match="no global model at"):
        Run.open(run.folder).model()
    with pytest.raises(DataError, match="no ledger at"):
        Run.open(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changes", "bare", "message"),
    [
        ({}, {"comm_rounds": 3}, r"^comm_rounds: unknown key; did you mean `comm_round`\?$"),
        ({"train_args.comm_rounds": 3}, {}, "unknown key `comm_rounds` in train_args; did you mean `comm_round`"),
        ({}, {"comm_round": "many"}, "`comm_round` in train_args is 'many'"),
        ({"comm_args.backend.port": 1}, {}, "^comm_args.backend.port: `backend` is a value, not a section$"),
        ({}, {"backend": "MPI"}, "MPI takes several processes.*`mpiexec -n 3 fedml-dapper run -c .*tiny.yaml`"),
        ({}, {"using_mlops": True}, "`fedml-dapper run -c .*tiny.yaml`"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(
    tiny: str, tmp_path: Path, changes: dict[str, object], bare: dict[str, object], message: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=message) as caught:
        fedml_dapper.run(tiny, changes, output=tmp_path / "run", **bare)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_silos_are_told_their_command(tiny: str) -> None:
    with pytest.raises(ConfigError, match=r"`python -m fedml_dapper --cf .*tiny.yaml --rank N --role server\|client`"):
        fedml_dapper.run(tiny, training_type="cross_silo", backend="GRPC", allow_pickle=True, grpc_ipconfig_path=tiny)


def test_no_setting_is_named_as_an_argument() -> None:
    arguments = set(run_function.__code__.co_varnames[: run_function.__code__.co_argcount + 3]) - {"settings"}
    assert arguments == {"config", "changes", "output", "resume", "progress"}
    assert arguments.isdisjoint(path[-1] for path in leaves(Settings))


@pytest.mark.nightly
@pytest.mark.usefixtures("all_test_images")
def test_an_interrupted_run_says_how_it_goes_on_and_does(tiny: str, tmp_path: Path) -> None:
    code = f"{held_before(6)}\nfedml_dapper.run({tiny!r}, comm_round=6, output='cut')"
    process = subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-c", code],
        cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    ledger = tmp_path / "cut" / "ledger.jsonl"
    wait_until(lambda: process.poll() is not None or (ledger.exists() and ledger.read_bytes().count(b"\n") > 2))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert "Stopped; run(..., output='cut', resume=True) goes on from there." in errors
    finished = len(Run.open(tmp_path / "cut").ledger)
    assert 2 <= finished < 6
    again = fedml_dapper.run(tiny, comm_round=6, output=tmp_path / "cut", resume=True, progress=False)
    whole = fedml_dapper.run(tiny, comm_round=6, output=tmp_path / "whole", progress=False)
    assert (again.folder / MODEL_NAME).read_bytes() == (whole.folder / MODEL_NAME).read_bytes()
    assert again.ledger.drop(columns=["seconds/round", "seconds/evaluation"]).equals(
        whole.ledger.drop(columns=["seconds/round", "seconds/evaluation"])
    )


def test_a_notebook_shows_rounds_in_its_own_output(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console = rich.console.Console(force_jupyter=True)
    shown: list[str] = []
    monkeypatch.setattr(rich, "_console", console)
    monkeypatch.setattr("rich.jupyter.display", lambda segments, text: shown.append(text))
    fedml_dapper.run(tiny, comm_round=1, output=tmp_path / "run")
    assert "round 1/1" in "".join(shown)
    assert capsys.readouterr() == ("", "")


@pytest.mark.nightly
def test_the_pages_lines_work(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[1] / "docs" / "start.md").read_text()
    [code] = re.findall(r"## From Python\n\n```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    folder = fedml_dapper.run(tiny, comm_round=1, output="earlier", progress=False).folder
    for readers, ours in (('"quickstart.yaml"', repr(tiny)), ('"runs/<the run\'s folder>"', repr(str(folder)))):
        assert readers in code
        code = code.replace(readers, ours)
    names: dict[str, object] = {}
    exec(code, names)
    assert isinstance(names["weak"], nn.Module)
    assert isinstance(names["earlier"], Run)
