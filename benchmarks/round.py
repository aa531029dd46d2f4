"""A whole round: DapperFL's slim models against the masks of the authors' code, which save nothing.

The public code keeps images with the channels first, as PyTorch does by itself; it is timed both so and laid out as we
do, to show what comes from slimming and what from layout and precision. Ours is timed in one process as the masks are,
and by workers of one thread each, as many as masks have threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import median

import click
import torch
from torch import Tensor

from benchmarks.output import Figure, Findings, json_option
from benchmarks.paired import median_ratio, time_in_turns
from fedml_dapper.benches.choices import Device
from fedml_dapper.benches.grid import cells, load_bench
from fedml_dapper.config import Precision, Settings
from fedml_dapper.datasets import ClientSamples, ImageSet, Preprocessing, Samples, TestSamples
from fedml_dapper.federation import ClientSide, Experiment, Server, build_experiment
from fedml_dapper.federation.workers.training import Training, local_training
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.process.profiling import Profiler

REFERENCE = "official_compat, channels first"


@dataclass(frozen=True)
class Kind:
    """What is timed: a row of a bench at the paper's size."""

    bench: str = "official"
    label: str = "DapperFL"
    precision: Precision = "fp32"
    channels_first: bool = False
    round_to: int = 1
    by_workers: bool = False


def _slim(precision: Precision = "fp32", round_to: int = 1) -> Kind:
    return Kind("slim", "DapperFL-slim", precision, round_to=round_to, by_workers=True)


KINDS = {
    REFERENCE: Kind(label="official_compat", channels_first=True),
    "official_compat, channels last": Kind(label="official_compat"),
    "DapperFL": Kind(),
    "DapperFL, round_to 16": Kind(round_to=16),
    "DapperFL, bf16": Kind(precision="bf16"),
    "DapperFL, bf16, round_to 16": Kind(precision="bf16", round_to=16),
    "DapperFL, workers": Kind(by_workers=True),
    "DapperFL, bf16, workers": Kind(precision="bf16", by_workers=True),
    "DapperFL-slim, workers": _slim(),
    "DapperFL-slim, round_to 16, workers": _slim(round_to=16),
    "DapperFL-slim, bf16, workers": _slim("bf16"),
    "DapperFL-slim, bf16, round_to 16, workers": _slim("bf16", 16),
}
"""DapperFL-slim's network is the standardised one, as it has no use for BatchNorm; all rows hold the same images."""


@click.command()
@click.option("--model", default="resnet18", show_default=True)
@click.option("--width", type=int, help="Channels of the first layer; as published when absent.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--only", multiple=True, type=click.Choice(list(KINDS)), help="Rows besides the masks; all when absent.")
@click.option("--runs", default=5, show_default=True, help="Rounds that count; one more warms up.")
@click.option("--threads", default=torch.get_num_threads(), show_default=True)
@json_option
def main(
    model: str, width: int | None, device: Device, only: tuple[str, ...], runs: int, threads: int, as_json: bool
) -> None:
    """Seconds of a round of the paper's Office-Caltech10 protocol: 10 clients, 5 levels, E = 5."""
    torch.set_num_threads(threads)
    with ExitStack() as stack:
        federations: dict[str, Federation] = {}
        for name, kind in KINDS.items():
            if name == REFERENCE or not only or name in only:
                overrides = {
                    "model_args": {"model": model, "width": width},
                    "dapper_args": {"pruning": {"round_to": kind.round_to}},
                    "device_args": {"workers": threads if kind.by_workers else 1},
                }
                bench = load_bench(kind.bench)
                grid = cells(bench, "paper", seeds=[1], device=device, precision=kind.precision, overrides=overrides)
                (settings,) = [cell.settings for cell in grid if cell.variant.label == kind.label]
                federations[name] = stack.enter_context(Federation.opened(settings, kind.channels_first))
        work: dict[str, Callable[[], object]] = {name: one.round for name, one in federations.items()}
        seconds = time_in_turns(work, runs)
    rows: list[dict[str, Figure]] = []
    for name, times in seconds.items():
        row: dict[str, Figure] = {
            "round": name,
            "seconds": median(times),
            "times as fast": 1 / median_ratio(times, seconds[REFERENCE]),
        }
        rows.append(row | federations[name].parts)
    shape = f"{model}{'' if width is None else f' of width {width}'}, {device}"
    Findings(f"One round of Office-Caltech10, {shape}; parts as shares of the main process", runs, rows).show(as_json)


@dataclass
class Federation:
    """A run that is stepped round by round, every round but the first with its profile."""

    server: Server
    train: Training
    profiler: Profiler
    profiled: float = 0.0
    """Seconds of the rounds that the profiler saw."""

    @classmethod
    @contextmanager
    def opened(cls, settings: Settings, channels_first: bool) -> Iterator[Federation]:
        experiment = build_experiment(settings)
        if channels_first:
            experiment = _channels_first(experiment)
        server = Server(experiment)
        clients = ClientSide(experiment, server.memories)

        def update(downlink: Downlink) -> Upload:
            return clients.update(downlink, experiment.clients[downlink.client_id])

        with local_training(experiment, server, clients, update) as train:
            yield cls(server, train, Profiler(experiment.device))

    def round(self) -> None:
        if self.server.state.round == 0:
            self._round()
            return
        with self.profiler.active():
            self._round()
        assert self.server.last_record is not None
        self.profiled += self.server.last_record.seconds.total

    def _round(self) -> None:
        for upload in self.train(self.server.round_clients()):
            self.server.receive(upload)
        self.server.close_round()

    @property
    def parts(self) -> dict[str, Figure]:
        """What took which share of the profiled rounds, and what of it is not training."""
        seconds = self.profiler.seconds
        training = seconds["forward/backward"] + seconds["optimizer"]
        shares: dict[str, Figure] = {part: value / self.profiled for part, value in seconds.items() if part != "wire"}
        return {"outside of training": 1 - training / self.profiled, **shares}


class ChannelsFirst(Preprocessing):
    """Images as PyTorch lays them out by itself."""

    def evaluate(self, images: Tensor) -> Tensor:
        return super().evaluate(images).contiguous()


def _channels_first(experiment: Experiment) -> Experiment:
    return replace(
        experiment,
        clients=tuple(
            replace(one, samples=_laid_out(one.samples)) for one in experiment.clients if isinstance(one, ClientSamples)
        ),
        tests=tuple(
            replace(one, samples=_laid_out(one.samples)) for one in experiment.tests if isinstance(one, TestSamples)
        ),
    )


def _laid_out(samples: Samples) -> Samples:
    assert isinstance(samples, ImageSet)
    return replace(samples, preprocessing=ChannelsFirst(**asdict(samples.preprocessing)))


if __name__ == "__main__":
    main()
