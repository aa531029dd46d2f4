"""The quickstart experiment over MPI, gRPC and MQTT, by the scripts people type, without any network but loopback."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedml_dapper.config import load_settings
from fedml_dapper.federation import RoundRecord, build_experiment, read_ledger, simulate

from .conftest import OfflineProcess
from .processes import ROOT, needs_broker

COMMANDS = {
    "mpi": ("run/mpi.sh", "config/quickstart.yaml", "-n", "3"),
    "grpc": (
        "run/silo_grpc.sh", "config/quickstart.yaml", "--set", "backend=GRPC", "--set", "allow_pickle=true",
        "--set", "grpc_ipconfig_path=config/grpc_ipconfig.csv",
    ),
    "mqtt": ("run/silo_mqtt.sh", "config/quickstart.yaml"),
}  # fmt: skip
SILOS = ("training_type=cross_silo", "round_timeout_s=3600")
SMALL = (
    "client_num_in_total=4", "client_num_per_round=4", "width=8", "client_share=0.08", "epochs=2", "threads=1"
)  # fmt: skip
FEW_ROUNDS = "comm_round=2"

pytestmark = [
    pytest.mark.skipif(
        shutil.which("unshare") is None or subprocess.run(["unshare", "--net", "true"], check=False).returncode != 0,
        reason="this machine does not let us make network namespaces (unshare --net)",
    ),
    pytest.mark.skipif(
        not (ROOT / ".venv" / "installed").exists(), reason="the run scripts use .venv; make it with run/setup.sh"
    ),
]


def rounds_of(transport: str, offline: OfflineProcess, *overrides: str) -> list[RoundRecord]:
    """What the transport's script comes to, which leaves nothing behind and looks for nothing elsewhere."""
    scratch = offline.folder / "scratch"
    scratch.mkdir()
    command = ["unshare", "--net", sys.executable, str(Path(__file__).with_name("loopback_only.py")), "bash"]
    settings = [part for override in (f"output_dir={offline.folder}/runs", *overrides) for part in ("--set", override)]
    finished = subprocess.run(
        [*command, *COMMANDS[transport], *settings], cwd=ROOT, env={**offline.environment, "TMPDIR": str(scratch)},
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert offline.network_attempts() == ""
    assert [file for file in scratch.iterdir() if not file.name.startswith("torchinductor_")] == []  # torch's own cache
    assert processes_of(offline.folder) == []
    [ledger] = (offline.folder / "runs").glob("*/ledger.jsonl")
    return read_ledger(ledger)[1]


@pytest.mark.nightly
@pytest.mark.parametrize("transport", ["mpi", "grpc", pytest.param("mqtt", marks=needs_broker)])
def test_in_small_its_rounds_are_those_of_one_process(offline: OfflineProcess, transport: str) -> None:
    file = ROOT / "config" / "quickstart.yaml"
    _, expected = simulate(build_experiment(load_settings([file], [*SMALL, FEW_ROUNDS, "workers=1"])))
    rounds = rounds_of(transport, offline, *SMALL, FEW_ROUNDS, *(() if transport == "mpi" else SILOS))
    assert [record.scores for record in rounds] == [record.scores for record in expected]


@pytest.mark.nightly
def test_as_shipped_it_learns_and_every_devices_model_works(offline: OfflineProcess) -> None:
    last = rounds_of("mpi", offline, "threads=1")[-1]
    assert last.scores is not None
    assert last.scores.global_accuracy >= 90
    assert min(last.scores.domain_accuracy.values()) > 70
    assert last.devices is not None
    levels = [level.accuracy for level in last.devices.sent.levels]
    assert len(levels) == 5
    assert min(accuracy or 0 for accuracy in levels) >= 90, levels


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
