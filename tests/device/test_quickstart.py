"""The quickstart on eight devices of 512 MB each, of which two are killed and one is cut off for a minute."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from PIL import Image
from safetensors.torch import load_file

from fedml_dapper.config import DataArgs, load_settings
from fedml_dapper.datasets import load_suite
from fedml_dapper.federation import build_experiment, simulate

from ..line import Line
from ..platform.processes import ROOT, Silos, free_port
from ..waiting import wait_until
from .conftest import Devices

CGROUPS = Path("/sys/fs/cgroup")
LIMIT = 512 << 20
NUM_DEVICES = 8
CUT_OFF = 5
CUT_OFF_SECONDS = 60.0
"""A time, and no event: longer than the 40 seconds after which both ends take a silent line for dead."""


@pytest.fixture
def cgroup() -> Iterator[Path | None]:
    """A maker of limits: a folder below which groups can be made, of either version; None where that is not allowed."""
    top = CGROUPS / "memory" if (CGROUPS / "memory").is_dir() else CGROUPS
    folder = top / f"dapper-devices-{time.monotonic_ns()}"
    try:
        folder.mkdir()
    except OSError:
        yield None
        return
    yield folder
    for inside in (*folder.glob("device-*"), folder):
        inside.rmdir()


def limited(folder: Path, rank: int) -> list[str]:
    """Words before a command that run it in a group of its own, with the limit."""
    group = folder / f"device-{rank}"
    group.mkdir(exist_ok=True)
    name = "memory.limit_in_bytes" if (group / "memory.limit_in_bytes").exists() else "memory.max"
    (group / name).write_text(str(LIMIT))
    return ["bash", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "bash"]


def write_pictures(folder: Path) -> None:
    """The quickstart's pictures as files, as a device has them."""
    suite = load_suite(DataArgs(dataset="digits_offline"))
    for domain in suite.domains:
        for part, samples in (("train", domain.train), ("test", domain.test)):
            for number, (image, label) in enumerate(zip(samples.images, samples.labels.tolist(), strict=True)):
                place = folder / domain.name / part / suite.classes[label]
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{number:05}.png")


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def line(port: int) -> Iterator[Line]:
    """The way of one device to the server at ``port``."""
    with Line(port) as line:
        yield line


@pytest.mark.nightly
def test_eight_small_devices_train_the_bits_of_one_process(
    tmp_path: Path, cgroup: Path | None, port: int, line: Line, request: pytest.FixtureRequest
) -> None:
    write_pictures(tmp_path / "pictures")
    subprocess.run(["bash", ROOT / "run" / "make_certs.sh", tmp_path / "certs", "8"], check=True, capture_output=True)
    content = yaml.safe_load((ROOT / "config" / "quickstart.yaml").read_text())
    content["data_args"] = {"dataset": "folder", "data_cache_dir": "pictures", "image_size": 32, "client_share": 0.1}
    content["train_args"] |= {"client_num_in_total": NUM_DEVICES, "client_num_per_round": NUM_DEVICES}
    content["device_args"] |= {"threads": 1, "workers": 1}
    (tmp_path / "simulation.yaml").write_text(yaml.safe_dump(content))
    grpc = {"server_address": f"localhost:{port}", "certificates": "certs"}
    content["common_args"]["training_type"] = "cross_silo"
    content["comm_args"] = {"backend": "DAPPER_GRPC", "dapper_grpc": grpc}
    del content["device_args"]["workers"]
    (tmp_path / "shared.yaml").write_text(yaml.safe_dump(content))
    by_line = {"comm_args": {"dapper_grpc": {"server_address": f"localhost:{line.port}"}}}
    (tmp_path / "by_line.yaml").write_text(yaml.safe_dump(by_line))
    devices = Devices(tmp_path)
    server = Silos(tmp_path, tmp_path / "shared.yaml", NUM_DEVICES)
    request.addfinalizer(devices.stop)
    request.addfinalizer(server.stop)

    def start(rank: int, *files: str) -> None:
        devices.start(rank, *files, before=[] if cgroup is None else limited(cgroup, rank))

    server.start(0)
    for rank in range(1, NUM_DEVICES + 1):
        start(rank, *(["by_line.yaml"] if rank == CUT_OFF else []))
    server.wait_for_round(2, 900)
    for rank in (2, 7):
        devices.processes[rank].kill()
        devices.processes[rank].wait()
        start(rank)
    server.wait_for_round(4, 900)
    line.cut()
    cut_off_at = time.monotonic()
    wait_until(lambda: time.monotonic() - cut_off_at > CUT_OFF_SECONDS)
    connections = line.connections
    line.mend()
    assert server.wait(0, 1800) == 0, server.output(0)
    for rank, process in devices.processes.items():
        assert process.wait(300) == 0, devices.output(rank)
    assert line.connections > connections
    simulate(build_experiment(load_settings([tmp_path / "simulation.yaml"])), run_dir=tmp_path / "alone")
    alone = load_file(tmp_path / "alone" / "global_model.safetensors")
    across = load_file(server.run_dir / "global_model.safetensors")
    assert all(alone[name].equal(across[name]) for name in alone)
