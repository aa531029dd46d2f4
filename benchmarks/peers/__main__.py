"""Ours beside other simulators, on the same work: wall and processor seconds of a round, and peak memory."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median

import click
import torch
from torch import Tensor

from benchmarks.output import Figure, Findings, json_option
from benchmarks.paired import median_ratio, say_progress
from benchmarks.peers.watching import FailedError, watch
from benchmarks.peers.work import Diary, Work

ROOT = Path(__file__).parents[2]
OURS = "ours"
WORKS = {
    "large": Work(clients=10, images=160, width=64, epochs=5, batch=32, rounds=4),
    "small": Work(clients=40, images=32, width=8, epochs=5, batch=16, rounds=4),
}
CHECKED = Work(clients=4, images=8, width=4, epochs=2, batch=8, rounds=2)
"""A batch holds all pictures of a client, so that the order in which a simulator draws them does not matter."""
TOLERANCE = 1e-5
"""Largest difference of a weight; sums are made in another order, and ours in float64."""


@dataclass(frozen=True)
class Peer:
    """A simulator: its module, its environment, and how its processes are started."""

    module: str
    environment: str | None = None
    """Name below ``.venv-peers``; None for this process's own."""
    is_started_by_torchrun: bool = False
    """So it has one process per GPU, where there are any."""

    @property
    def python(self) -> Path:
        if self.environment is None:
            return Path(sys.executable)
        return ROOT / ".venv-peers" / self.environment / "bin" / "python"

    def command(self, work: Work, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs ``work``."""
        begin = [str(self.python), "-m"]
        if self.is_started_by_torchrun:
            processes = work.processes if work.device == "cpu" else torch.cuda.device_count()
            begin += ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
        return [*begin, self.module, *arguments]


PEERS = {
    OURS: Peer("benchmarks.peers.ours"),
    "plain torch": Peer("benchmarks.peers.plain_torch"),
    "pfl-research": Peer("benchmarks.peers.pfl_research", "pfl", is_started_by_torchrun=True),
    "Flower": Peer("benchmarks.peers.flower", "flower"),
    "FedML": Peer("benchmarks.peers.fedml_simulator"),
}


@dataclass(frozen=True)
class Measured:
    """A run of a simulator."""

    round_s: float
    """Seconds of a round, the median of all but the first."""
    processor_s: float
    """Seconds of the processor a round, of all processes, without the first round."""
    peak_mb: float
    weights: Mapping[str, Tensor]
    """Parameters of the global model after the last round."""


@click.command()
@click.option("--work", "works", multiple=True, type=click.Choice(sorted(WORKS)), help="All by default; repeatable.")
@click.option("--peers", default=",".join(PEERS), show_default=True, help="Who takes part; ours comes first.")
@click.option("--runs", default=3, show_default=True)
@click.option(
    "--rounds", type=click.IntRange(min=2), default=4, show_default=True, help="Of each run; the first warms up."
)
@click.option("--width", type=click.IntRange(min=1), help="Channels of the network's first layer, of every work.")
@click.option(
    "--processes", default=2, show_default=True, help="Clients at a time; FedML trains one by so many threads."
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--check", is_flag=True, help="Only check, on next to nothing, that all do the same work.")
@json_option
def main(
    works: Sequence[str], peers: str, runs: int, rounds: int, width: int | None, processes: int, device: str,
    check: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run the same work by each simulator in turns, and print what a round takes, and ratios to ours."""
    chosen = {name: PEERS[name] for name in _names(peers)}
    if check:
        _same_work(chosen, replace(CHECKED, processes=processes, device=device)).show(as_json)
        return
    rows: list[dict[str, Figure]] = []
    for name in works or WORKS:
        work = replace(WORKS[name], rounds=rounds, processes=processes, device=device)
        rows += _in_turns(name, chosen, work if width is None else replace(work, width=width), runs)
    Findings(f"A round of FedAvg by simulator, {processes} processes, {device}", runs, rows).show(as_json)


def _names(peers: str) -> list[str]:
    names = [name.strip() for name in peers.split(",")]
    for name in names:
        if name not in PEERS:
            raise click.UsageError(f"--peers: `{name}` is none of {', '.join(PEERS)}")
        if not PEERS[name].python.exists():
            raise click.UsageError(f"--peers: {name} has no environment; run `bash benchmarks/peers/setup.sh`")
    return [OURS, *(name for name in names if name != OURS)]


def _in_turns(name: str, peers: Mapping[str, Peer], work: Work, runs: int) -> list[dict[str, Figure]]:
    found: dict[str, list[Measured]] = {peer: [] for peer in peers}
    begun = time.perf_counter()
    for run in range(runs):
        for peer in peers:
            found[peer].append(run_peer(peer, work))
        say_progress(run + 1, runs, begun)
    return [
        {
            "work": name,
            "simulator": peer,
            **_beside_ours("s", [one.round_s for one in measured], [one.round_s for one in found[OURS]]),
            **_beside_ours("CPU s", [one.processor_s for one in measured], [one.processor_s for one in found[OURS]]),
            **_beside_ours("peak MB", [one.peak_mb for one in measured], [one.peak_mb for one in found[OURS]]),
        }
        for peer, measured in found.items()
    ]


def _beside_ours(unit: str, values: list[float], ours: list[float]) -> dict[str, Figure]:
    return {unit: median(values), f"{unit}, of ours": median_ratio(values, ours)}


def _same_work(peers: Mapping[str, Peer], work: Work) -> Findings:
    """The largest difference of a weight to ours.

    Raises:
        ClickException: It is more than rounding.
    """
    found = {peer: run_peer(peer, work).weights for peer in peers}
    differences = {peer: _difference(weights, found[OURS]) for peer, weights in found.items()}
    for peer, difference in differences.items():
        if not difference <= TOLERANCE:
            raise click.ClickException(f"{peer}: a weight differs from ours by {difference:.2g}; it does other work")
    rows: list[dict[str, Figure]] = [
        {"simulator": peer, "steps": work.steps, "parameters": _count(found[peer]), "largest difference": difference}
        for peer, difference in differences.items()
    ]
    return Findings(f"The same work, {work.rounds} rounds of {work.clients} clients", 1, rows, are="figures of one run")


def _difference(weights: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> float:
    if weights.keys() != ours.keys():
        return inf
    return max(float((weights[name] - tensor).abs().max()) for name, tensor in ours.items())


def _count(weights: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in weights.values())


def run_peer(peer: str, work: Work) -> Measured:
    """Run ``work`` by a simulator, one of :data:`PEERS`.

    Raises:
        ClickException: It failed, or did not do all of the work.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = folder / "work.json"
        work.write(task)
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        try:
            watched = watch(PEERS[peer].command(work, [str(task), name]), environment, folder / "log.txt")
        except FailedError as error:
            raise click.ClickException(str(error)) from error
        diary = Diary(folder)
        ends = diary.rounds
        done = (len(diary.rounds), diary.steps, _count(diary.weights))
        if done != (asked := (work.rounds, work.steps, _count(dict(work.network().named_parameters())))):
            raise click.ClickException(f"{peer}: did {done} rounds, steps and parameters, and was asked for {asked}")
        return Measured(
            round_s=median(end - begin for begin, end in pairwise(ends)),
            processor_s=watched.seconds_between(ends[0], ends[-1]) / (work.rounds - 1),
            peak_mb=watched.peak_mb,
            weights=diary.weights,
        )


if __name__ == "__main__":
    main()
