"""The packages of FedML's launch: built offline, unpacked, bootstrapped and started as FedML's agents do it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from fedml_dapper.config import load_settings
from fedml_dapper.federation import read_ledger

from .conftest import OfflineProcess
from .processes import OVERLAY, ROOT, address_table

NUM_SILOS = 4  # one per domain at least
WITHIN = 600
"""Seconds; many times what a process needs on a busy machine."""

AGENT = """
import sys
from pathlib import Path
import yaml
from fedml.computing.scheduler.comm_utils.job_utils import JobRunnerUtils

job = yaml.safe_load(Path(sys.argv[1]).read_text())
for rank, folder in enumerate(sys.argv[2:]):
    package = Path(folder)
    entry = yaml.safe_load((package / "conf" / "fedml.yaml").read_text())["entry_config"]
    config = yaml.safe_load((package / "fedml" / entry["conf_file"]).read_text()) | {"job_yaml": job}
    (command,) = JobRunnerUtils.generate_job_execute_commands(
        7, 100 + rank, "release", entry["package_type"], "bash", str(package / entry["entry_file"]), config,
        None, None, None, max(rank, 1),
    )
    print("COMMAND", command)
"""
"""What an agent starts, by FedML's own function: it puts its variables into the package's entry script."""


def tiny_experiment(folder: Path) -> Path:
    table = address_table(folder, NUM_SILOS)
    silos = [str(ROOT / "config" / "silos" / f"silo_{rank}.yaml") for rank in range(1, NUM_SILOS + 1)]
    settings = load_settings(
        [OVERLAY, OVERLAY.with_name("fedml_grpc.yaml")],
        [
            "width=8", "comm_round=2", "epochs=1", "client_share=0.08", f"client_num_in_total={NUM_SILOS}",
            f"client_num_per_round={NUM_SILOS}", f"grpc_ipconfig_path={table}", f"data_silo_config={silos}",
        ],
    )  # fmt: skip
    file = folder / "tiny.yaml"
    file.write_text(settings.as_yaml())
    return file


def environment(offline: OfflineProcess) -> dict[str, str]:
    """No network; ``python3`` is the one that runs the tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in offline.environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PATH": path, "GRPC_VERBOSITY": "ERROR"}


def run(command: list[str], offline: OfflineProcess, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=offline.folder, env=environment(offline) | variables,
        capture_output=True, text=True, timeout=WITHIN, check=False,
    )  # fmt: skip


def build(offline: OfflineProcess, out: Path) -> None:
    command = ["bash", str(ROOT / "run" / "build_packages.sh"), str(out), str(tiny_experiment(offline.folder))]
    built = run(command, offline)
    assert built.returncode == 0, built.stderr
    assert built.stdout.split() == [str(out / "client-package.zip"), str(out / "server-package.zip")]


def unpack(out: Path, role: str, folder: Path) -> Path:
    with zipfile.ZipFile(out / f"{role}-package.zip") as package:
        package.extractall(folder)
    return folder / f"{role}-package"


def start_as_agents_do(packages: list[Path], offline: OfflineProcess) -> list[subprocess.Popen[bytes]]:
    agent = offline.run("-c", AGENT, ROOT / "run" / "launch" / "job.yaml", *packages)
    assert agent.returncode == 0, agent.stderr
    commands = [line.removeprefix("COMMAND ") for line in agent.stdout.splitlines() if line.startswith("COMMAND ")]
    for command in commands:
        script = Path(command.removeprefix("bash "))
        text = script.read_text()
        assert "export FEDML_USING_MLOPS=true\n" in text
        # there is no dashboard here
        script.write_text(text.replace("FEDML_USING_MLOPS=true", "FEDML_USING_MLOPS=false"))
    processes = []
    for package, command in zip(packages, commands, strict=True):
        with package.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(
                command, shell=True, start_new_session=True,
                cwd=package / "fedml", env=environment(offline), stdout=log, stderr=log,
            )  # fmt: skip
        processes.append(process)
    return processes


@pytest.mark.nightly
def test_unpacked_packages_run_a_federation(offline: OfflineProcess) -> None:
    folder = offline.folder
    build(offline, folder / "out")
    left = {path.name for path in folder.iterdir()} - {"sitecustomize.py", "__pycache__"}  # the network's guard
    assert left == {"out", "tiny.yaml", "grpc_ipconfig.csv"}

    roles = ["server", *["client"] * NUM_SILOS]
    packages = [unpack(folder / "out", role, folder / f"rank_{rank}") for rank, role in enumerate(roles)]
    for package in packages:
        content = {path.name for path in (package / "fedml").iterdir()}
        assert {"fedml_dapper", "experiment", "setup.py", "constraints.txt"} <= content
        assert not {".venv", ".git", "runs", "results", "tests", "data"} & content
        assert (package / "fedml" / "experiment" / "silos" / "silo_4.yaml").is_file()

    processes = start_as_agents_do(packages, offline)
    logs = [package.with_suffix(".log") for package in packages]
    try:
        for process, log in zip(processes, logs, strict=True):
            assert process.wait(WITHIN) == 0, log.read_text()
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    (ledger,) = (packages[0] / "fedml" / "runs").glob("*/ledger.jsonl")
    run, rounds = read_ledger(ledger)
    assert [client.level for client in run.clients] == [1, 2, 3, 4]  # from the silo files in the package
    assert [len(record.clients) for record in rounds] == [NUM_SILOS] * 2
    for package in packages:
        assert (package / "fedml" / "fedml_dapper" / "__pycache__").is_dir()  # this code ran, not the repository's
    assert not offline.network_attempts()


def test_a_workspace_has_what_an_experiment_names_and_the_secrets_of_broker_and_store(tmp_path: Path) -> None:
    method = "from fedml_dapper.methods import FedAvg\n\n\nclass Mine(FedAvg):\n    name = 'mine'\n"
    (tmp_path / "mine.py").write_text(method)
    content = yaml.safe_load(tiny_experiment(tmp_path).read_text())
    content["comm_args"] = yaml.safe_load((ROOT / "config" / "mqtt.yaml").read_text())["comm_args"]
    content["dapper_args"]["method"] = "mine.py:Mine"
    content["comm_args"]["customized_training_mqtt_config"]["MQTT_PWD"] = "the broker's"
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(content))
    workspace = tmp_path / "workspace"
    program = ROOT / "run" / "launch" / "fill_workspace.py"
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "experiment.yaml"), str(workspace)],
        capture_output=True, text=True, timeout=WITHIN, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "holds the broker's password" in done.stderr
    (tmp_path / "mine.py").unlink()
    gathered = load_settings([workspace / "experiment" / "experiment.yaml"])
    mqtt, store = gathered.comm_args.customized_training_mqtt_config, gathered.comm_args.customized_training_s3_config
    assert mqtt is not None
    assert store is not None
    assert (mqtt.MQTT_PWD, store.CN_S3_SAK) == ("the broker's", "testtest")
    copied = workspace / "experiment" / "method" / "mine.py"
    assert gathered.dapper_args.method == f"{copied}:Mine"
    assert copied.read_text() == method


@pytest.mark.nightly
def test_bootstrap_installs_the_package(offline: OfflineProcess) -> None:
    folder = offline.folder
    build(offline, folder / "out")
    package = unpack(folder / "out", "client", folder)
    bootstrap = package / "fedml" / "fedml_bootstrap_generated.sh"
    bootstrap.chmod(0o755)
    only_ours = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    command = ["sh", "-c", f"cd {bootstrap.parent}; ./{bootstrap.name}"]
    done = run(command, offline, PIP_TARGET=str(folder / "site"), **only_ours)
    assert done.returncode == 0, done.stderr
    assert (folder / "site" / "fedml_dapper" / "__main__.py").is_file()
