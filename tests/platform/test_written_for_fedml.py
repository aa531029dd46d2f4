"""Programs and files that were written for FedML alone, with the lines changed that docs/fedml_program.md shows."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import read_ledger

from .processes import address_table

if TYPE_CHECKING:
    from .federation_in_threads import Federation

WRITTEN = Path(__file__).parent / "written_for_fedml"
PAGE = Path(__file__).parents[2] / "docs" / "fedml_program.md"
PROGRAM, SIMULATION, SILOS = range(3)
"""The page's diffs, in their order."""
MOST_CHANGED_LINES = 5


def changed(file: str, diff: int) -> str:
    """A file as the page's diff makes it: each line that is taken out gives way to what is added behind it, and what is
    only added comes after the last line that stays."""
    lines = (WRITTEN / file).read_text().splitlines()
    at = 0
    for line in re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)[diff].splitlines():
        kind, text = line[:1], line[1:]
        if kind == "+":
            lines.insert(at, text)
            at += 1
        elif kind == "-":
            at = lines.index(text)
            del lines[at]
        elif text:
            at = lines.index(text) + 1
    return "\n".join(lines) + "\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the changed program in it, from which it runs offline."""
    pytest.importorskip("fedml", reason="fedml is not installed")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.excepthook", sys.excepthook)
    (tmp_path / "program.py").write_text(changed("program.py", PROGRAM))
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, object]:
    monkeypatch.setattr("sys.argv", ["program.py", *arguments])
    return runpy.run_path("program.py", run_name="__main__")


@pytest.mark.parametrize("diff", [PROGRAM, SIMULATION, SILOS])
def test_few_lines_change(diff: int) -> None:
    block = re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)[diff]
    assert 0 < sum(line.startswith("+") for line in block.splitlines()) <= MOST_CHANGED_LINES


def test_a_simulation_runs_with_the_page_s_changes(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "fedml_config.yaml").write_text(changed("simulation.yaml", SIMULATION))
    outcome = run(monkeypatch, "--cf", "fedml_config.yaml")
    [folder] = (here / "runs").iterdir()
    run_, rounds = read_ledger(folder / "ledger.jsonl")
    assert (run_.method, run_.params["mu"], len(rounds)) == ("fedprox", 0.01, 3)
    assert [client.num_samples for client in run_.clients] == [40, 50, 60, 70, 80]
    assert [len(record.clients) for record in rounds] == [2, 2, 2]
    assert rounds[-1].scores is not None
    assert rounds[-1].scores.global_accuracy > 50  # four classes: chance is 25
    trained = outcome["model"].state_dict()  # type: ignore[attr-defined]
    assert torch.isfinite(trained["linear.weight"]).all()

    said = " ".join(capsys.readouterr().err.split())
    assert "note: keys of FedML's that have no part here" in said
    assert "note: the network is the program's; model_args.model lr is for what made it" in said
    assert "data_args.dataset corners is for its loader" in said
    assert re.search(r"round 3/3", said)
    assert (folder / "report.html").exists()
    assert said.count("Report:") == 1
    assert run_.settings["model_args"]["model"] is None  # type: ignore[index,call-overload]  # as where none is named


def test_keys_of_ours_may_stand_in_a_file_of_their_own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "fedml_config.yaml").write_text((WRITTEN / "simulation.yaml").read_text())
    (here / "ours.yaml").write_text(
        "train_args: {momentum: 0, comm_round: 1}\ndevice_args: {using_gpu: false}\ndapper_args: {method: scaffold}\n"
    )
    run(monkeypatch, "--cf", "fedml_config.yaml", "--cf", "ours.yaml")
    [ledger] = here.glob("runs/*/ledger.jsonl")
    run_, rounds = read_ledger(ledger)
    assert (run_.method, len(rounds)) == ("scaffold", 1)


def test_silos_run_with_the_page_s_changes(
    here: Path, monkeypatch: pytest.MonkeyPatch, in_threads: Callable[[Path, int], Federation]
) -> None:
    from fedml_dapper import platform as dapper  # noqa: PLC0415  # slow

    (here / "config").mkdir()
    address_table(here / "config", 2)
    config = here / "fedml_config.yaml"
    config.write_text(changed("silos.yaml", SILOS))
    federation = in_threads(config, 2)
    monkeypatch.chdir(here)
    written = runpy.run_path("program.py")
    for rank in range(3):
        monkeypatch.setattr("sys.argv", ["program.py", "--cf", str(config), "--rank", str(rank)])
        args = dapper.init()
        dataset, classes = written["load"](args)
        model = written["create"](args, classes)
        flow = dapper.runner_for(args, None, dataset, model, run_dir=federation.run_dir)
        assert isinstance(flow, dapper.DistributedRunner)
        federation.run(rank, flow)
    federation.wait()
    run_, rounds = read_ledger(federation.run_dir / "ledger.jsonl")
    assert [client.num_samples for client in run_.clients] == [40, 50]
    assert [len(record.clients) for record in rounds] == [2, 2]
    assert any("made data of 5 clients; silos 1 to 2 have the first" in note for note in run_.notes)
    assert (federation.run_dir / "report.html").exists()


def test_a_mistake_is_told_before_fedml_starts(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (WRITTEN / "simulation.yaml").read_text()
    (here / "fedml_config.yaml").write_text(
        text.replace("partition_alpha", "partition_alhpa").replace("epochs", "eposch")
    )
    with pytest.raises(ConfigError, match=r"fedml_config.yaml: 2 mistakes: \(1\) unknown key `partition_alhpa`"):
        run(monkeypatch, "--cf", "fedml_config.yaml")
    assert not (here / "runs").exists()
