"""Other simulators beside ours: that all do the same work, and that nothing of them is left."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks.peers import __main__ as peers
from benchmarks.peers.watching import FailedError, Watched, watch
from benchmarks.peers.work import Work
from benchmarks.processes import marked, processor_seconds, proportional_mb

from ..waiting import wait_until

INSTALLED = [name for name, peer in peers.PEERS.items() if peer.python.exists()]
BURN = """
import sys, time
while time.process_time() < 0.5:
    pass
print("burnt", flush=True)
sys.stdin.read()
"""


@pytest.mark.nightly
def test_all_that_are_installed_do_the_same_work() -> None:
    pytest.importorskip("fedml")
    command = ["--check", "--json", "--peers", ",".join(INSTALLED)]
    result = CliRunner().invoke(peers.main, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [row["simulator"] for row in rows] == INSTALLED
    assert all(row["largest difference"] < peers.TOLERANCE for row in rows)


@pytest.mark.long
def test_who_does_less_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.PEERS, "lazy", peers.Peer("tests.benchmarks.lazy_peer"))
    with pytest.raises(click.ClickException, match=r"lazy: did \(2, 0, \d+\) rounds, steps and parameters"):
        peers.run_peer("lazy", peers.CHECKED)


def test_steps_are_those_of_whole_epochs() -> None:
    work = Work(clients=3, images=10, width=4, epochs=2, batch=4, rounds=5)
    assert work.steps == 5 * 3 * 2 * 3
    assert replace(work, batch=16).steps == 5 * 3 * 2


def test_work_is_read_as_it_was_written(tmp_path: Path) -> None:
    peers.CHECKED.write(tmp_path / "work.json")
    assert Work.read(tmp_path / "work.json") == peers.CHECKED


@pytest.mark.parametrize(
    ("names", "message"), [("ours,flwr", "`flwr` is none of"), ("elsewhere", "has no environment; run")]
)
def test_unknown_peers_are_named(names: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.PEERS, "elsewhere", peers.Peer("benchmarks.peers.flower", "nowhere"))
    result = CliRunner().invoke(peers.main, ["--peers", names])
    assert result.exit_code == 2
    assert message in result.stderr


def test_what_a_simulator_leaves_behind_is_ended(tmp_path: Path) -> None:
    left = f"setsid sleep 600 & echo $! > {tmp_path / 'left'}"
    watch(["bash", "-c", left], {"PATH": "/usr/bin:/bin"}, tmp_path / "log.txt")
    process = int((tmp_path / "left").read_text())
    stat = Path(f"/proc/{process}/stat")
    wait_until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_a_simulator_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(FailedError, match="no such thing"):
        watch(["bash", "-c", "echo no such thing; exit 3"], {"PATH": "/usr/bin:/bin"}, tmp_path / "log.txt")


def test_seconds_and_memory_are_a_process_s_own() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BURN], env={"MARK": "this one"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"burnt\n"
        assert 0.4 < processor_seconds(process.pid) < 5
        assert 1 < proportional_mb(process.pid) < 200
        assert marked("MARK=this one") == [process.pid]
        process.communicate()
    assert processor_seconds(process.pid) == 0


def test_seconds_between_looks_are_interpolated() -> None:
    watched = Watched(times=[0, 10, 20], seconds=[0, 10, 30], peak_mb=0)
    assert watched.seconds_between(5, 15) == pytest.approx(15)
