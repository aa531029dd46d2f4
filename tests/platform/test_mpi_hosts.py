"""MPI ranks on two machines: two network namespaces with a cable between them, where this machine lets us make some."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedml_dapper.config import Settings
from fedml_dapper.federation import build_experiment, simulate

from .processes import ROOT

SettingsFactory = Callable[..., Settings]
ADDRESSES = ("10.177.0.1", "10.177.0.2")
LAUNCHER = """#!/usr/bin/env bash
# As mpiexec calls ssh: options, a machine, and what to start there.
while [[ $1 == -* ]]; do shift; done
machine=$1
shift
echo "$machine" >> {log}
exec ip netns exec {prefix}-${{machine##*.}} bash -c "$*"
"""

needs_installed = pytest.mark.skipif(
    not (ROOT / ".venv" / "installed").exists(), reason="the run scripts use .venv; make it with run/setup.sh"
)


@dataclass
class Machines:
    """``hosts`` is mpiexec's file of them; ``enter`` is how a command is started on the first."""

    hosts: Path
    enter: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    started_on: Path | None = None
    """Which machines the launcher was asked for; None where mpiexec forks."""


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    prefix, hosts = f"dapper-{os.getpid()}", tmp_path / "hosts.txt"
    names = [f"{prefix}-{number}" for number in (1, 2)]
    commands = [
        *(["ip", "netns", "add", name] for name in names),
        ["ip", "-n", names[0], "link", "add", "cable1", "type", "veth", "peer", "name", "cable2", "netns", names[1]],
        *(
            command
            for number, name in enumerate(names, 1)
            for command in (
                ["ip", "-n", name, "addr", "add", f"{ADDRESSES[number - 1]}/24", "dev", f"cable{number}"],
                ["ip", "-n", name, "link", "set", f"cable{number}", "up"],
                ["ip", "-n", name, "link", "set", "lo", "up"],
            )
        ),
    ]
    try:
        if all(run(command) for command in commands):
            hosts.write_text(f"{ADDRESSES[0]}:1\n{ADDRESSES[1]}:2\n")
            launcher, log = tmp_path / "launcher.sh", tmp_path / "started_on"
            launcher.write_text(LAUNCHER.format(log=log, prefix=prefix))
            launcher.chmod(0o755)
            environment = {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": str(launcher), "HYDRA_IFACE": "cable1"}
            yield Machines(hosts, ["ip", "netns", "exec", names[0]], environment, log)
        else:
            hosts.write_text("localhost:3\n")
            yield Machines(hosts, environment={"HYDRA_LAUNCHER": "fork"})
    finally:
        for name in names:
            run(["ip", "netns", "delete", name])


def run(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:  # no ip
        return False


@pytest.mark.nightly
@needs_installed
def test_ranks_of_two_machines_give_the_model_of_one_process(
    machines: Machines, tiny_settings: SettingsFactory, tmp_path: Path
) -> None:
    settings = tiny_settings("backend=MPI", "comm_round=2", "epochs=1", "threads=1")
    config = tmp_path / "tiny.yaml"
    config.write_text(settings.as_yaml())
    script = ["bash", str(ROOT / "run" / "mpi.sh"), str(config), "-n", "3", "--hosts", str(machines.hosts)]
    finished = subprocess.run(
        [*machines.enter, *script, "--output", str(tmp_path / "run")],
        env=os.environ | machines.environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    if machines.started_on is not None:
        assert machines.started_on.read_text().split() == [ADDRESSES[1]]
    found = load_file(tmp_path / "run" / "global_model.safetensors")
    server, _ = simulate(build_experiment(tiny_settings("comm_round=2", "epochs=1", "threads=1")))
    assert all(torch.equal(found[name], tensor) for name, tensor in server.state.weights.items())


@pytest.mark.nightly
@needs_installed
def test_a_job_of_slurm_without_slurm(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    config = tmp_path / "tiny.yaml"
    config.write_text(tiny_settings("backend=MPI", "comm_round=1", "epochs=1", "threads=1").as_yaml())
    folder = ROOT / "runs" / f"slurm-{os.getpid()}"
    job = {"SLURM_NTASKS": "3", "SLURM_JOB_ID": str(os.getpid()), "HYDRA_LAUNCHER": "fork", "HYDRA_RMK": "user"}
    script = ["bash", str(ROOT / "run" / "slurm.sbatch"), str(config), "--output", str(tmp_path / "run")]
    finished = subprocess.run(
        script, env=os.environ | job, capture_output=True, text=True, timeout=240, check=False
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "run" / "global_model.safetensors").exists()
    assert not folder.exists()


def test_a_host_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    script = [
        "bash",
        str(ROOT / "run" / "mpi.sh"),
        "config/quickstart.yaml",
        "-n",
        "3",
        "--hosts",
        str(tmp_path / "no"),
    ]
    finished = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 2
    assert finished.stderr == f"run/mpi.sh: no host file {tmp_path}/no; it has a line NAME:RANKS per machine\n"
