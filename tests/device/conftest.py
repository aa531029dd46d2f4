"""A federation of devices: an experiment of own pictures, a server with FedML, and devices that have none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from fedml_dapper.config import CheckInArgs, SecureGrpcConfig, Settings
from fedml_dapper.federation import build_experiment

from ..platform.processes import ROOT, Silos, free_port
from .answering import MAX_MB, Answering, made
from .trial import COME_BACK_S, TIMEOUT_S, Trial

LIGHTLY = Path(__file__).with_name("lightly.py")
NUM_DEVICES = 3
EXPERIMENT = """
common_args: {random_seed: 1}
data_args: {dataset: folder, data_cache_dir: pictures, image_size: 16, partition: domain_shares}
model_args: {model: resnet10, width: 8, norm: standardised}
train_args: {client_num_in_total: 3, client_num_per_round: 3, comm_round: 2, epochs: 2, batch_size: 8}
device_args: {threads: 1, using_gpu: false, workers: 1}
dapper_args: {levels: {ratios: [0.0, 0.4, 0.8]}, round_timeout_s: 120, output_dir: runs}
"""


class Devices:
    """The folder of an experiment, in which a server and devices run as processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.grpc = {"server_address": f"localhost:{free_port()}", "certificates": "certs"}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def write(self, method: str = "dapperfl_slim", kind: str = "cross_silo", **more: dict[str, object]) -> Path:
        """The experiment of devices; ``simulation.yaml`` beside it is the same in one process."""
        for name, training_type, comm_args in (
            ("shared", kind, {"backend": "DAPPER_GRPC", "dapper_grpc": self.grpc}),
            ("simulation", "simulation", {"backend": "sp"}),
        ):
            content = yaml.safe_load(EXPERIMENT)
            content["common_args"]["training_type"] = training_type
            content["comm_args"] = comm_args
            content["dapper_args"]["method"] = method
            for section, values in more.items():
                content[section] |= values
            if name == "simulation":
                content["dapper_args"].pop("check_in", None)
            (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
        return self.folder / "shared.yaml"

    def start(
        self,
        rank: int,
        *options: str,
        data_bytes: int | None = None,
        command: Sequence[str | Path] = (sys.executable, LIGHTLY),
        environment: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> None:
        """Start ``dapper-device run``, with a limit of its data if one is given, and words ``before`` the command."""

        limit = "unlimited" if data_bytes is None else str(data_bytes // 1024)
        arguments = [*command, "run", "shared.yaml", "--rank", str(rank), *options]
        limited = ["bash", "-c", f'ulimit -d {limit}; exec "$@"', "bash", *before, *arguments]
        around = self.environment | dict(environment or {})
        with self._log(rank).open("ab") as log:
            self.processes[rank] = subprocess.Popen(limited, cwd=self.folder, env=around, stdout=log, stderr=log)

    def told(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What ``dapper-device`` says and ends with."""
        command = [sys.executable, LIGHTLY, *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300, check=False
        )

    @property
    def environment(self) -> dict[str, str]:
        home = {"HOME": str(self.folder), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return os.environ | home | {"GRPC_VERBOSITY": "ERROR"}

    def output(self, rank: int) -> str:
        return self._log(rank).read_text(errors="replace")

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def _log(self, rank: int) -> Path:
        return self.folder / f"device_{rank}.log"


@pytest.fixture(scope="session")
def certificates_of_devices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("devices") / "certs"
    command = ["bash", ROOT / "run" / "make_certs.sh", folder, str(NUM_DEVICES)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def devices(tmp_path: Path, certificates_of_devices: Path) -> Iterator[Devices]:
    draw_pictures(tmp_path / "pictures")
    (tmp_path / "certs").symlink_to(certificates_of_devices)
    found = Devices(tmp_path)
    yield found
    found.stop()


def draw_pictures(folder: Path) -> None:
    """Two domains of three classes, whose pictures differ in brightness."""
    rng = np.random.default_rng(0)
    for domain in ("chalk", "ink"):
        for label, name in enumerate(("bar", "circle", "cross")):
            for part, count in (("train", 8), ("test", 3)):
                place = folder / domain / part / name
                place.mkdir(parents=True)
                for number in range(count):
                    pixels = rng.integers(0, 100, (16, 16, 3)) + 70 * label
                    Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")


@pytest.fixture
def server(devices: Devices) -> Iterator[Callable[..., Silos]]:
    """``server()``: the server of the experiment, started, by a program of the user's own where one is given."""
    started: list[Silos] = []

    def start(program: Path | None = None) -> Silos:
        silos = Silos(devices.folder, devices.folder / "shared.yaml", NUM_DEVICES)
        silos.start(0, program=program)
        started.append(silos)
        return silos

    yield start
    for silos in started:
        silos.stop()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("callers") / "certs")


@pytest.fixture
def config(certificates: Path) -> SecureGrpcConfig:
    address = f"localhost:{free_port()}"
    return SecureGrpcConfig(server_address=address, certificates=certificates, max_message_mb=MAX_MB)


@pytest.fixture
def serve() -> Iterator[Callable[..., Answering]]:
    """``serve(config)``: a server of calls, with further arguments of :class:`Answering`."""
    running: list[Answering] = []

    def start(*arguments: Any, **named: Any) -> Answering:
        running.append(Answering(*arguments, **named))
        return running[-1]

    yield start
    for one in running:
        one.stop()


@pytest.fixture
def trial(tiny_settings: Callable[..., Settings]) -> Callable[..., Trial]:
    def make(*overrides: str, **dapper_args: object) -> Trial:
        few = ("method=fedavg", "epochs=1", "client_share=0.02", "client_num_per_round=4", "comm_round=2")
        settings = tiny_settings(*few, *overrides)
        args = settings.dapper_args.model_copy(
            update={
                "round_timeout_s": TIMEOUT_S,
                "min_clients_per_round": 2,
                "check_in": CheckInArgs(over_selection=1.5, come_back_s=COME_BACK_S),
                **dapper_args,
            }
        )
        values = settings.model_copy(update={"dapper_args": args}).model_dump()
        values["common_args"]["training_type"] = "cross_device"
        values["comm_args"] |= {"backend": "DAPPER_GRPC"}
        values["comm_args"]["dapper_grpc"] = {"server_address": "localhost:1", "certificates": Path(".")}
        return Trial(build_experiment(Settings.model_validate(values)))

    return make
