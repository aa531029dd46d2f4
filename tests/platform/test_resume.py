"""Runs that were interrupted, or killed as the kernel kills, and gone on with by ``--resume``."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from safetensors.torch import load_file

from fedml_dapper.commands.fedml import main
from fedml_dapper.config import Settings
from fedml_dapper.federation import (
    CHECKPOINTS_NAME,
    LEDGER_NAME,
    MODEL_NAME,
    SETTINGS_NAME,
    RoundRecord,
    Server,
    build_experiment,
    read_ledger,
    simulate,
)

from ..federation.interruptions import run_until
from ..holding import held_before
from ..waiting import wait_until
from .nursery import Fork, nursery
from .test_mpi import MPIEXEC
from .test_parity import without_seconds

pytest.importorskip("fedml", reason="fedml is not installed")

SettingsFactory = Callable[..., Settings]
FEW = (
    "method=scaffold", "client_num_in_total=4", "client_num_per_round=3", "client_share=0.05", "epochs=1", "threads=1",
    "checkpoint_every=1",
)  # fmt: skip
LIFE = """
import os, signal, sys
from pathlib import Path

from fedml_dapper.commands.experiment import run_experiment

config, run_dir, flushes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
fsync = os.fsync

def fatal_in_the_end(descriptor):
    global flushes
    flushes -= 1
    if flushes == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)

os.fsync = fatal_in_the_end
run_experiment([config], output=run_dir, resume=True)
"""
"""A run, which ends at a flush where their number is given."""


def command(config: Path, run_dir: Path, *program: str | Path) -> list[str | Path]:
    program = program or ("-m", "fedml_dapper")
    return [*nursery().python, *program, "--cf", config, "--output", run_dir, "--resume"]


def held_command(round_: int, config: Path, run_dir: Path) -> list[str | Path]:
    """As :func:`command`, of a run that does not begin ``round_``."""
    program = run_dir.parent / "held.py"
    program.write_text(f'{held_before(round_)}\nimport runpy\nrunpy.run_module("fedml_dapper", run_name="__main__")\n')
    return command(config, run_dir, program)


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"HOME": str(folder), "OMP_NUM_THREADS": "1"}


def assert_same(run_dir: Path, server: Server, records: list[RoundRecord]) -> None:
    saved = load_file(run_dir / MODEL_NAME)
    assert saved.keys() == server.state.weights.keys()
    assert all(tensor.equal(saved[name]) for name, tensor in server.state.weights.items())
    assert without_seconds(read_ledger(run_dir / LEDGER_NAME)[1]) == without_seconds(records)
    assert not [path for path in run_dir.rglob("*") if path.name.startswith(".")]


def lines_of(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def killed_in_round(round_: int, words: list[str | Path], run_dir: Path) -> None:
    """Start a run with all its processes, and kill them when ``round_`` is under way, or one soon after it."""
    process = subprocess.Popen(
        words, cwd=run_dir.parent, env=environment(run_dir.parent), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    ledger = run_dir / LEDGER_NAME
    wait_until(lambda: process.poll() is not None or lines_of(ledger) >= round_)
    assert process.poll() is None, process.communicate()[1]
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=120)  # to the end of their output: until all of them are gone
    assert process.returncode == -signal.SIGKILL


def finished(words: list[str | Path], run_dir: Path) -> subprocess.CompletedProcess[str]:
    folder = run_dir.parent
    return subprocess.run(
        words, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=600, check=True
    )


@pytest.mark.long
def test_a_run_goes_on_and_a_finished_one_only_reports(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    config, run_dir, settings = tmp_path / "tiny.yaml", tmp_path / "run", tiny_settings(*FEW, "comm_round=4")
    config.write_text(settings.as_yaml())
    run_until(3, settings, run_dir)

    def go_on() -> Result:
        return CliRunner().invoke(main, ["--cf", str(config), "--output", str(run_dir), "--resume"])

    first = go_on()
    assert first.exit_code == 0, first.output
    assert "round 3/4" in first.stderr
    assert "going on after round 2/4" in first.stderr
    assert first.stderr.count("round 2/4") == 1
    assert_same(run_dir, *simulate(build_experiment(settings)))
    (run_dir / "report.html").unlink()
    before = (run_dir / LEDGER_NAME).read_bytes()
    second = go_on()
    assert f"The run in {run_dir} is finished already." in " ".join(second.stdout.split())
    assert "round 4/4" not in second.stderr
    assert (run_dir / "report.html").is_file()
    assert (run_dir / LEDGER_NAME).read_bytes() == before


@pytest.mark.nightly
@pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec: pip install 'fedml-dapper[mpi]'")
def test_under_mpi_too(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    config, run_dir = tmp_path / "tiny.yaml", tmp_path / "run"
    settings = tiny_settings(*FEW, "comm_round=5", "backend=MPI")
    config.write_text(settings.as_yaml())
    ranks = [MPIEXEC, "-n", "3"]
    killed_in_round(3, [*ranks, *held_command(5, config, run_dir)], run_dir)
    words = [*ranks, *command(config, run_dir)]
    first = finished(words, run_dir)
    assert "going on after round" in first.stderr
    assert_same(run_dir, *simulate(build_experiment(settings)))


@pytest.mark.parametrize(
    ("kills", "at_flushes_only"),
    [
        pytest.param((4, 1, 9), True, marks=pytest.mark.nightly, id="at flushes"),
        pytest.param(range(50), False, marks=pytest.mark.nightly, id="at random moments"),
    ],
)
def test_kills_change_nothing(
    kills: Sequence[int], at_flushes_only: bool, tiny_settings: SettingsFactory, tmp_path: Path, chance: random.Random
) -> None:
    """At the flush of that number in the run's life, or at any flush and in between."""
    rounds = 10 + 3 * len(kills)
    config, run_dir, settings = tmp_path / "tiny.yaml", tmp_path / "run", tiny_settings(*FEW, f"comm_round={rounds}")
    config.write_text(settings.as_yaml())
    expected = simulate(build_experiment(settings))
    life, said = tmp_path / "life.py", tmp_path / "said"

    def live(flushes: int, program: str) -> Fork:
        life.write_text(program)
        with said.open("ab") as output:
            words = [str(word) for word in (life, config, run_dir, flushes)]
            return nursery().start(words, tmp_path, environment(tmp_path), output.fileno())

    for number in kills:
        begun, done = time.time(), lines_of(run_dir / LEDGER_NAME)
        at_a_flush = at_flushes_only or number % 2 == 1
        flushes = number if at_flushes_only else chance.randint(1, 9)
        last = max(done, 1) + 3  # the first line is the run's
        process = live(flushes if at_a_flush else -1, held_before(last) + LIFE)
        if not at_a_flush:
            settings_file = run_dir / SETTINGS_NAME
            while not settings_file.exists() or settings_file.stat().st_mtime < begun:
                assert process.poll() is None, said.read_text()[-3000:]
                time.sleep(0.01)  # between looks
            lines = chance.randint(done, last)
            while lines_of(run_dir / LEDGER_NAME) < lines:
                assert process.poll() is None, said.read_text()[-3000:]
                time.sleep(0.005)  # between looks, at what takes little longer than that
            time.sleep(chance.uniform(0, 0.1))  # any moment is a good one; none is to make a difference
            process.kill()
        assert process.wait(300) == -signal.SIGKILL, said.read_text()[-3000:]
    assert live(-1, LIFE).wait(900) == 0, said.read_text()[-3000:]
    assert_same(run_dir, *expected)
    assert not list((run_dir / CHECKPOINTS_NAME).glob("*.refused")), said.read_text()[-3000:]
