"""Memory of a device's process: the peak of ``dapper-device check``, beside those of bare torch and of FedML."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import yaml
from PIL import Image

from benchmarks.output import Figure, Findings, json_option

ROOT = Path(__file__).parents[1]
RATIOS = [0.0, 0.2, 0.4, 0.6, 0.8]
NETWORKS: dict[str, dict[str, dict[str, Any]]] = {
    "the quickstart's network, ResNet10 of width 16 at 32x32": {
        "model_args": {"model": "resnet10", "width": 16, "norm": "standardised"},
        "data_args": {"image_size": 32},
    },
    "ResNet18 of width 64 at 64x64, micro_batch_size 8": {
        "model_args": {"model": "resnet18", "width": 64, "norm": "standardised"},
        "data_args": {"image_size": 64},
        "train_args": {"micro_batch_size": 8},
    },
}


@click.command()
@click.option("--runs", default=3, show_default=True)
@json_option
def main(runs: int, as_json: bool) -> None:
    """Peak of resident memory, in MB (10^6 bytes), of a level-5 device that trains one step."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _draw(folder / "pictures")
        subprocess.run(["bash", ROOT / "run" / "make_certs.sh", folder / "certs", "1"], check=True, capture_output=True)
        torch = _peak(["-c", "import torch"], folder, runs)
        rows: list[dict[str, Figure]] = [
            {"what": "import torch", "peak": torch, "above torch": 0.0},
            _row("import fedml", _peak(["-W", "ignore", "-c", "import fedml"], folder, runs), torch),
        ]
        for network, settings in NETWORKS.items():
            (folder / "shared.yaml").write_text(yaml.safe_dump(_experiment(settings)))
            peak = _peak(["-m", "fedml_dapper.device.entry", "check", "shared.yaml"], folder, runs)
            rows.append(_row(network, peak, torch))
    Findings("Memory of a device's process", runs, rows, are="medians of runs").show(as_json)


def _row(what: str, peak: float, torch: float) -> dict[str, Figure]:
    return {"what": what, "peak": peak, "above torch": round(peak - torch, 1)}


def _experiment(settings: dict[str, dict[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {
        "common_args": {"training_type": "cross_silo"},
        "data_args": {"dataset": "folder", "data_cache_dir": "pictures", "partition": "own", "classes": ["a", "b"]},
        "train_args": {"client_num_in_total": 1, "client_num_per_round": 1, "batch_size": 16, "max_grad_norm": 2},
        "comm_args": {
            "backend": "DAPPER_GRPC",
            "dapper_grpc": {"server_address": "localhost:8890", "certificates": "certs"},
        },
        "device_args": {"threads": 1, "using_gpu": False},
        "dapper_args": {"method": "dapperfl_slim", "levels": {"ratios": RATIOS}},
        "silo_args": {"domain": "noise", "level": 5},
    }
    for section, values in settings.items():
        content[section] = content.get(section, {}) | values
    return content


def _peak(arguments: Sequence[str], folder: Path, runs: int) -> float:
    """Return the median peak of so many processes, in MB."""
    peaks = []
    for _ in range(runs):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen([sys.executable, *arguments], cwd=folder, env=environment, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise click.ClickException(f"{' '.join(arguments)} ended with {process.returncode}")
        peaks.append(usage.ru_maxrss * 1024 / 1e6)
    return round(median(peaks), 1)


def _draw(folder: Path) -> None:
    pixels = np.random.default_rng(0)
    for label in ("a", "b"):
        for part in ("train", "test"):
            place = folder / part / label
            place.mkdir(parents=True)
            for number in range(16):
                Image.fromarray(pixels.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(place / f"{number}.png")


if __name__ == "__main__":
    main()
