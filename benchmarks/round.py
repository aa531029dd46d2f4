"""A whole round: DapperFL's slim models against the masks of the authors' code, which save nothing.

The public code keeps images with the channels first, as PyTorch does by itself; it is timed both so and laid out as we
do, to show what comes from slimming and what from layout and precision.
"""

from __future__ import annotations

from collections.abc import Callable
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
from fedml_dapper.profiling import Profiler

REFERENCE = "official_compat, channels first"


@click.command()
@click.option("--model", default="resnet18", show_default=True)
@click.option("--width", type=int, help="Channels of the first layer; as published when absent.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--runs", default=5, show_default=True, help="Rounds that count; one more warms up.")
@click.option("--threads", default=torch.get_num_threads(), show_default=True)
@json_option
def main(model: str, width: int | None, device: Device, runs: int, threads: int, as_json: bool) -> None:
    """Seconds of a round of the paper's Office-Caltech10 protocol: 10 clients, 5 levels, E = 5."""
    torch.set_num_threads(threads)

    def federation(
        label: str, precision: Precision = "fp32", channels_first: bool = False, round_to: int = 1
    ) -> Federation:
        overrides = {
            "model_args": {"model": model, "width": width}, "dapper_args": {"pruning": {"round_to": round_to}}
        }  # fmt: skip
        grid = cells(
            load_bench("official"), "paper", seeds=[1], device=device, precision=precision, overrides=overrides
        )
        return Federation.of(next(cell.settings for cell in grid if cell.variant.label == label), channels_first)

    federations = {
        REFERENCE: federation("official_compat", channels_first=True),
        "official_compat, channels last": federation("official_compat"),
        "DapperFL": federation("DapperFL"),
        "DapperFL, round_to 16": federation("DapperFL", round_to=16),
        "DapperFL, bf16": federation("DapperFL", "bf16"),
        "DapperFL, bf16, round_to 16": federation("DapperFL", "bf16", round_to=16),
    }
    work: dict[str, Callable[[], object]] = {name: one.round for name, one in federations.items()}
    seconds = time_in_turns(work, runs)
    rows: list[dict[str, Figure]] = []
    for name, times in seconds.items():
        parts = federations[name].profiler.seconds
        spent = federations[name].profiled
        training = parts["forward/backward"] + parts["optimizer"]
        row: dict[str, Figure] = {
            "round": name,
            "seconds": median(times),
            "times as fast": 1 / median_ratio(times, seconds[REFERENCE]),
            "outside of training": 1 - training / spent,
        }
        rows.append(row | {part: value / spent for part, value in parts.items() if part != "wire"})
    shape = f"{model}{'' if width is None else f' of width {width}'}, {device}"
    Findings(f"One round of Office-Caltech10, {shape}; parts as shares", runs, rows).show(as_json)


@dataclass
class Federation:
    """A run that is stepped round by round, every round but the first with its profile."""

    server: Server
    clients: ClientSide
    experiment: Experiment
    profiler: Profiler
    profiled: float = 0.0
    """Seconds of the rounds that the profiler saw."""

    @classmethod
    def of(cls, settings: Settings, channels_first: bool) -> Federation:
        experiment = build_experiment(settings)
        if channels_first:
            experiment = _channels_first(experiment)
        server = Server(experiment)
        return cls(server, ClientSide(experiment, server.memories), experiment, Profiler(experiment.device))

    def round(self) -> None:
        if self.server.state.round == 0:
            self._round()
            return
        with self.profiler.active():
            self._round()
        assert self.server.last_record is not None
        self.profiled += self.server.last_record.seconds.total

    def _round(self) -> None:
        for client_id in self.server.round_clients():
            downlink = self.server.downlink(client_id)
            self.server.receive(self.clients.update(downlink, self.experiment.clients[client_id]))
        self.server.close_round()


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
