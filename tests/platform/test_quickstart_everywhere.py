"""The quickstart experiment over MPI, gRPC and MQTT, by the scripts people type, without any network but loopback."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

import pytest

from fedml_dapper.config import load_settings
from fedml_dapper.federation import RoundRecord, build_experiment, read_ledger, simulate

from .conftest import OfflineProcess
from .processes import ROOT

SILOS = ("training_type=cross_silo", "round_timeout_s=600")
COMMANDS = {
    "mpi": ("run/mpi.sh", "config/quickstart.yaml", "-n", "3"),
    "grpc": (
        "run/silo_grpc.sh", "config/quickstart.yaml", "--set", "backend=GRPC", "--set", "allow_pickle=true",
        "--set", "grpc_ipconfig_path=config/grpc_ipconfig.csv",
    ),
    "mqtt": ("run/silo_mqtt.sh", "config/quickstart.yaml"),
}  # fmt: skip

pytestmark = [
    pytest.mark.long,
    pytest.mark.alone,
    pytest.mark.skipif(
        shutil.which("unshare") is None or subprocess.run(["unshare", "--net", "true"], check=False).returncode != 0,
        reason="this machine does not let us make network namespaces (unshare --net)",
    ),
    pytest.mark.skipif(
        not (ROOT / ".venv" / "installed").exists(), reason="the run scripts use .venv; make it with run/setup.sh"
    ),
]


FEW_ROUNDS = 2
"""Of the silos, of which every round is the in-process one's; MPI runs all rounds."""
ALL_ROUNDS = 12
"""None may take longer, start and end included, than so many rounds in one process with one thread: 180 s where a round
takes 15 s, as on the machine of docs/performance.md."""


def simulated() -> list[RoundRecord]:
    overrides = [f"comm_round={FEW_ROUNDS}", "threads=1", "workers=1"]
    return simulate(build_experiment(load_settings([ROOT / "config" / "quickstart.yaml"], overrides)))[1]


@pytest.fixture(scope="module")
def in_process() -> list[RoundRecord]:
    return simulated()


def seconds_allowed(in_process: list[RoundRecord]) -> float:
    return ALL_ROUNDS * fmean(record.seconds.total for record in in_process)


@pytest.mark.parametrize("transport", COMMANDS)
def test_quickstart(offline: OfflineProcess, in_process: list[RoundRecord], transport: str) -> None:
    if transport == "mqtt" and not (shutil.which("mosquitto") or Path("/usr/sbin/mosquitto").exists()):
        pytest.skip("no mosquitto on this machine: apt-get install mosquitto")
    silos = () if transport == "mpi" else (*SILOS, f"comm_round={FEW_ROUNDS}")
    overrides = [f"output_dir={offline.folder}/runs", "threads=1", *silos]
    scratch = offline.folder / "scratch"
    scratch.mkdir()
    command = ["unshare", "--net", sys.executable, Path(__file__).with_name("loopback_only.py"), "bash"]
    script = [*COMMANDS[transport], *(part for override in overrides for part in ("--set", override))]
    started = time.monotonic()
    finished = subprocess.run(
        [*command, *script], cwd=ROOT, env={**offline.environment, "TMPDIR": str(scratch)},
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - started
    assert finished.returncode == 0, finished.stderr[-3000:]
    if seconds > seconds_allowed(in_process):  # others may use the machine now that did not when that was measured
        assert seconds < seconds_allowed(simulated())
    assert offline.network_attempts() == ""
    [ledger] = (offline.folder / "runs").glob("*/ledger.jsonl")
    rounds = read_ledger(ledger)[1]
    assert [record.scores for record in rounds[:FEW_ROUNDS]] == [record.scores for record in in_process]
    if transport == "mpi":
        last = rounds[-1]
        assert last.scores is not None
        assert last.scores.global_accuracy >= 90
        assert min(last.scores.domain_accuracy.values()) > 70
        assert last.devices is not None
        levels = [level.accuracy for level in last.devices.sent.levels]
        assert len(levels) == 5
        assert min(accuracy or 0 for accuracy in levels) >= 90, levels  # every device's model works
    assert [file for file in scratch.iterdir() if not file.name.startswith("torchinductor_")] == []  # torch's own cache
    assert processes_of(offline.folder) == []


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that still have ``folder`` as their HOME."""
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"HOME={folder}\0" in (process / "environ").read_text():
                left.append((process / "cmdline").read_text())
        except (OSError, UnicodeDecodeError):
            continue  # gone, or not ours to read
    return left
