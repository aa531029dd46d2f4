"""Real processes on a disk that fills up, and told to stop at any moment."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.federation import (
    CHECKPOINTS_NAME,
    LEDGER_NAME,
    MODEL_NAME,
    SETTINGS_NAME,
    SharedSettings,
    build_experiment,
    read_ledger,
    simulate,
)
from fedml_dapper.federation.run_folder.checkpoint import load_checkpoint
from fedml_dapper.process.interruption import GOING_ON, INTERRUPTED

from ..holding import held_before
from ..waiting import wait_until
from .test_mpi import MPIEXEC
from .test_resume import FEW, assert_same, environment, lines_of

pytest.importorskip("fedml", reason="fedml is not installed")

SettingsFactory = Callable[..., Settings]
WITHIN_S = 300
"""For an end that takes a moment, on a machine that does much else."""
NAMESPACES = (("unshare", "--mount"), ("unshare", "--user", "--map-root-user", "--mount"))
ON_A_SMALL_DISK = """
set -e
small=$1 disk=$2 copy=$3; shift 3
mount -t tmpfs -o size=$small tmpfs "$disk"
"$@" && exit 90 || [ $? = 2 ] || exit 91
cp -a "$disk/run" "$copy"
mount -o remount,size=200m "$disk"
echo "--- more space ---" >&2
"$@"
cp -a "$disk/run" "$(dirname "$copy")/run"
"""
MANY_INTERRUPTIONS = """
import os, random, signal, sys, time
from pathlib import Path

import fedml_dapper.platform.launch  # slow, so only once: every life is a fork of this process
from fedml_dapper.cli import main
from fedml_dapper.process.interruption import ending_in_order

config, run_dir, chance = Path(sys.argv[1]), Path(sys.argv[2]), random.Random(int(sys.argv[3]))
lives, fsync, told = [int(word) for word in sys.argv[4:]], os.fsync, [signal.SIGINT, signal.SIGTERM]

def lines():
    ledger = run_dir / "ledger.jsonl"
    return ledger.read_bytes().count(b"\\n") if ledger.exists() else 0

def life(number, flushes):
    log = os.open(f"life_{number:02}.log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, told)  # it has a log for what it says then
    def telling_in_the_end(descriptor):
        nonlocal flushes
        flushes -= 1
        if flushes == 0:
            os.kill(os.getpid(), told[number % 2])
        fsync(descriptor)
    os.fsync = telling_in_the_end
    main(["run", "-c", str(config), "--output", str(run_dir), "--resume"])

with ending_in_order("it"):
    for number, flushes in enumerate(lives):
        done = lines()
        last = max(done, 1) + 3
        signal.pthread_sigmask(signal.SIG_BLOCK, told)
        child = os.fork()
        if child == 0:
            life(number, flushes)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, told)
        if flushes == 0:  # at any moment
            until = chance.randint(done, last)
            while lines() < until:
                time.sleep(0.005)  # between looks, at what takes little longer than that
            time.sleep(chance.uniform(0, 0.1))  # none is to make a difference
            os.kill(child, chance.choice(told))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    last = None
    life(len(lives), -1)
"""
FIRST_LINE = 3
"""The flush of the ledger's first line, when no round has begun; settings.yaml takes two."""


def cold(config: Path, run_dir: Path) -> list[str | Path]:
    """No fork of the nursery: that would neither see the small disk nor hear mpiexec's signals."""
    return [sys.executable, "-m", "fedml_dapper", "--cf", config, "--output", run_dir, "--resume"]


def mount_namespace() -> tuple[str, ...]:
    """The words that start a command where it may mount what nobody else sees."""
    for words in NAMESPACES:
        probe = [*words, "sh", "-c", "mount -t tmpfs -o size=64k tmpfs /mnt"]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            return words
    return pytest.skip("no mount namespace can be made here, by root or by a user")


@pytest.mark.nightly
def test_a_full_disk_is_said_and_with_more_space_the_run_goes_on(
    tiny_settings: SettingsFactory, tmp_path: Path
) -> None:
    settings = tiny_settings(*FEW, "comm_round=4", "checkpoints_kept=4")
    namespace, undisturbed = mount_namespace(), tmp_path / "undisturbed"
    expected = simulate(build_experiment(settings), run_dir=undisturbed)
    checkpoints = [undisturbed / CHECKPOINTS_NAME / f"round_0000{number}.safetensors" for number in (1, 2)]
    fits = [undisturbed / SETTINGS_NAME, undisturbed / LEDGER_NAME, undisturbed / MODEL_NAME, checkpoints[0]]
    small = sum(path.stat().st_size for path in fits) + checkpoints[1].stat().st_size // 2

    config, disk, full, run_dir = (tmp_path / name for name in ("tiny.yaml", "disk", "full", "run"))
    config.write_text(settings.as_yaml())
    disk.mkdir()
    ended = subprocess.run(
        [*namespace, "bash", "-c", ON_A_SMALL_DISK, "bash", str(small), disk, full, *cold(config, disk / "run")],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    before, _, after = ended.stderr.partition("--- more space ---")
    [line] = [line for line in before.splitlines() if line.startswith("fedml_dapper:")]
    assert f"cannot write {disk / 'run' / CHECKPOINTS_NAME / checkpoints[1].name}" in line
    assert "No space left on device" in line
    assert "mend that, then start it again, a run with --resume" in line
    assert "Traceback" not in ended.stderr

    assert sorted(path.name for path in full.rglob("*")) == sorted(
        [CHECKPOINTS_NAME, checkpoints[0].name, LEDGER_NAME, MODEL_NAME, SETTINGS_NAME]
    )
    shared = SharedSettings.of_experiment(build_experiment(settings))
    kept = load_checkpoint(full / CHECKPOINTS_NAME / checkpoints[0].name, shared, torch.device("cpu"))
    assert kept.round == 1
    assert len(read_ledger(full / LEDGER_NAME)[1]) == 2
    assert "going on after round 1" in after
    assert_same(run_dir, *expected)


@pytest.mark.parametrize(
    "flushes",
    [
        pytest.param([FIRST_LINE, 8], marks=pytest.mark.nightly, id="at flushes"),
        pytest.param([FIRST_LINE, *[0, 5, 0, 2, 0, 9, 0, 1, 0, 7, 0]], marks=pytest.mark.nightly, id="at any moment"),
    ],
)
def test_interruptions_change_nothing(
    flushes: list[int], tiny_settings: SettingsFactory, tmp_path: Path, chance: random.Random
) -> None:
    """A life of the run each: at the flush of that number, or with 0 at any moment."""
    settings = tiny_settings(*FEW, f"comm_round={4 * len(flushes)}")
    config, run_dir = tmp_path / "tiny.yaml", tmp_path / "run"
    config.write_text(settings.as_yaml())
    expected = simulate(build_experiment(settings))
    program = [
        "env", "--default-signal=INT", sys.executable, "-c", held_before("last") + MANY_INTERRUPTIONS, config, run_dir,
        str(chance.randrange(10**9)), *map(str, flushes),
    ]  # fmt: skip
    ended = subprocess.run(
        program, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=900, check=False
    )
    logs = [path.read_text() for path in sorted(tmp_path.glob("life_*.log"))]
    assert ended.stdout.split() == [str(INTERRUPTED)] * len(flushes), logs
    assert len(logs) == len(flushes) + 1
    assert "Stopped before the first round was finished" in logs[0]
    for log in logs[:-1]:
        assert "Traceback" not in log, log
        assert "Stopped " in log or GOING_ON in log, log
        assert log.count("--resume") == 1, log  # how to go on is said, and once
    assert ended.returncode == 0, logs[-1]
    assert_same(run_dir, *expected)


def listens_to(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for this signal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def mapped(process: subprocess.Popen[str]) -> str:
    """The libraries that the process has loaded."""
    return Path(f"/proc/{process.pid}/maps").read_text()


RUN, FEDML = ("-m", "fedml_dapper.entry", "run", "-c"), ("-m", "fedml_dapper", "--cf")
NUMPY, TORCH = "_multiarray_umath", "libtorch_python"


@pytest.mark.parametrize(
    ("words", "library", "number", "latest_s"),
    [
        pytest.param(RUN, NUMPY, signal.SIGTERM, 0, id="run-numpy"),
        pytest.param(FEDML, TORCH, signal.SIGINT, 0, id="fedml-torch"),
        *(
            pytest.param(*case, 0.5, marks=pytest.mark.nightly)
            for case in product((RUN, FEDML), ("", NUMPY, TORCH), (signal.SIGTERM, signal.SIGINT))
        ),
    ],
)
def test_a_program_that_is_still_loading_ends_at_once(
    words: tuple[str, ...], library: str, number: signal.Signals, latest_s: float, tiny_settings: SettingsFactory,
    tmp_path: Path, chance: random.Random,
) -> None:  # fmt: skip
    """Compiled modules make an error, or an abort, of what is raised while they are loaded: when ``library`` is, or at
    some moment up to ``latest_s`` after."""
    config = tmp_path / "tiny.yaml"
    config.write_text(tiny_settings(*FEW, "comm_round=100000").as_yaml())
    process = subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, *words, config, "--output", tmp_path / "run"],
        cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    had_loaded = seen = ""
    while not listens_to(process, signal.SIGTERM):
        had_loaded, seen = seen, mapped(process)  # what it had loaded when it did not listen yet
        time.sleep(0.005)  # between looks: what it loads tells nobody, and is loaded soon
    assert "libtorch" not in had_loaded
    while library not in mapped(process):
        time.sleep(0.005)  # as above
    time.sleep(chance.uniform(0, latest_s))  # none is to make a difference
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=WITHIN_S)
    assert process.returncode == INTERRUPTED, stderr
    assert "Traceback" not in stderr, stderr
    assert GOING_ON in stderr or "Stopped " in stdout  # where the machine is so fast that it has loaded all


@pytest.mark.nightly
@pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec: pip install 'fedml-dapper[mpi]'")
def test_under_mpi_too(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    settings = tiny_settings(*FEW, "comm_round=100000", "backend=MPI")
    config, run_dir = tmp_path / "tiny.yaml", tmp_path / "run"
    config.write_text(settings.as_yaml())
    process = subprocess.Popen(
        [MPIEXEC, "-n", "2", *cold(config, run_dir)], cwd=tmp_path, env=environment(tmp_path),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_until(lambda: process.poll() is not None or lines_of(run_dir / LEDGER_NAME) >= 3)
    assert process.poll() is None, process.communicate()[1]
    process.terminate()
    _, stderr = process.communicate(timeout=WITHIN_S)
    assert process.returncode == INTERRUPTED, stderr
    assert GOING_ON in stderr  # of rank 0, unless a library has swallowed its interruption: then another one is first
    assert "Traceback" not in stderr, stderr
    assert len(read_ledger(run_dir / LEDGER_NAME)[1]) >= 2
