"""What hostile clients do to a run, by who they are and by what the server does about them.

Some clients of one level change what they send, or train on what they changed; the others are honest. Resumable: each
cell is a line of the output file, and what it holds is not run again. The order of attacks, places and defences given
is that in which cells are run, seeds first.

* ``sign_flip``, ``times_-4``, ``times_4``: of the change w - W that was trained, -1, -4 or 4 times is sent. BatchNorm's
  statistics are changed alike, variances not below 0, which the server would refuse.
* ``silent``: nothing is sent at all. A defence that knew who is hostile could do no better than this.
* ``label_flip``: trained on labels y that became (classes - 1 - y).
* ``backdoor``: half of the client's images bear a white square and are said to be of class 0. Besides accuracy, the
  share of test images of other classes is measured that the square turns into class 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import click
import torch
from torch import Tensor

from benchmarks.resumable import run_missing
from fedml_dapper.config import load_settings
from fedml_dapper.datasets import ClientData, ClientSamples, ImageSet, TestSamples, images_of
from fedml_dapper.federation import ClientSide, Experiment, RoundRecord, RunObserver, Server, build_experiment
from fedml_dapper.federation.rounds import run_rounds
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.pruning import slim_tensors

CONFIGS = Path(__file__).parents[1] / "config"
FACTORS = {"sign_flip": -1.0, "times_-4": -4.0, "times_4": 4.0}
NONE, SILENT, LABEL_FLIP, BACKDOOR = "none", "silent", "label_flip", "backdoor"
ATTACKS = (SILENT, *FACTORS, LABEL_FLIP, BACKDOOR)
TARGET = 0
"""The class that a backdoor leads to."""


@dataclass(frozen=True)
class Cell:
    """One run of the grid. ``defence`` is a value of ``dapper_args.defence.aggregation``, with other settings of
    ``dapper_args.defence`` after it: ``median:min_holders=7``."""

    network: str
    seed: int
    rounds: int
    attack: str
    level: int
    attackers: int
    defence: str
    overrides: tuple[str, ...] = ()

    @property
    def settings(self) -> list[str]:
        aggregation, *others = self.defence.replace(":", ",").split(",")
        defence = [f"aggregation={aggregation}", *others]
        return [
            f"comm_round={self.rounds}",
            f"random_seed={self.seed}",
            "threads=1",
            "workers=1",
            *(f"dapper_args.defence.{setting}" for setting in defence),
            *self.overrides,
        ]


class Attackers:
    """The clients' side of a run in which some are hostile."""

    def __init__(self, experiment: Experiment, server: Server, cell: Cell) -> None:
        of_level = [profile.client_id for profile in experiment.profiles if profile.level == cell.level]
        self.hostile = of_level[: cell.attackers] if cell.attack != NONE else []
        if cell.attack != NONE and len(self.hostile) < cell.attackers:
            raise click.ClickException(f"level {cell.level} has {len(of_level)} clients, not {cell.attackers}")
        self._experiment, self._server, self._attack = experiment, server, cell.attack
        self.clients = ClientSide(experiment, server.memories)
        for client_id in self.hostile if cell.attack == SILENT else ():
            server.evict(client_id)

    def update(self, downlink: Downlink) -> Upload:
        data = self._experiment.clients[downlink.client_id]
        if downlink.client_id not in self.hostile:
            return self.clients.update(downlink, data)
        upload = self.clients.update(downlink, poisoned(data, self._attack, self._experiment.num_classes))
        return self._multiplied(upload, FACTORS[self._attack]) if self._attack in FACTORS else upload

    def _multiplied(self, upload: Upload, factor: float) -> Upload:
        """W + factor (w - W) of everything but counters."""
        layout, weights = self._experiment.method.problem.layout, self._server.state.weights
        before = slim_tensors({name: weights[name] for name in upload.weights}, layout, upload.plan, upload.unsliced)

        def changed(name: str, tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            moved = before[name] + factor * (tensor - before[name])
            return moved.clamp(min=0) if name.endswith("running_var") else moved

        return replace(upload, weights={name: changed(name, tensor) for name, tensor in upload.weights.items()})


def poisoned(data: ClientData, attack: str, classes: int) -> ClientData:
    """What a hostile client trains on."""
    if attack not in (LABEL_FLIP, BACKDOOR):
        return data
    assert isinstance(data, ClientSamples), "the built-in suites hold images"
    (images,) = images_of([data.samples])
    if attack == LABEL_FLIP:
        return replace(data, samples=replace(images, labels=classes - 1 - images.labels))
    half = torch.arange(len(images)) % 2 == 0
    stamped = torch.where(half.view(-1, 1, 1, 1), with_trigger(images), images.images)
    return replace(data, samples=replace(images, images=stamped, labels=torch.where(half, TARGET, images.labels)))


def with_trigger(images: ImageSet) -> Tensor:
    """Its pixels with a white square, an eighth of their side, where random crops leave it whole: uint8."""
    side = images.images.shape[-1] // 8
    stamped = images.images.clone(memory_format=torch.contiguous_format)
    stamped[..., side : 2 * side, side : 2 * side] = 255
    return stamped


@torch.no_grad()
def backdoor_success(experiment: Experiment, server: Server) -> float:
    """Percent of test images of other classes that the global model takes for :data:`TARGET` once they are stamped:
    the mean over domains."""
    model, shares = experiment.method.global_model(server.state).eval(), []
    for test in experiment.tests:
        assert isinstance(test, TestSamples), "the built-in suites hold images"
        (images,) = images_of([test.samples])
        others = images.take((images.labels != TARGET).nonzero().flatten())
        stamped = replace(others, images=with_trigger(others))
        taken = [model(batch.inputs).argmax(dim=1) == TARGET for batch in stamped.batches(test.batch_size)]
        shares.append(100 * float(torch.cat(taken).double().mean()))
    return mean(shares)


class _Records(RunObserver):
    def __init__(self) -> None:
        self.records: list[RoundRecord] = []

    def round_finished(self, record: RoundRecord) -> None:
        self.records.append(record)


def run(cell: Cell, made_by: str | None) -> dict[str, Any]:
    """The cell's figures, by name."""
    begun = time.perf_counter()
    experiment = build_experiment(load_settings([CONFIGS / f"{cell.network}.yaml"], cell.settings))
    server, seen = Server(experiment), _Records()
    sides = Attackers(experiment, server, cell)
    run_rounds(experiment, server, sides.clients, sides.update, [seen])
    scores = [record.scores for record in seen.records if record.scores is not None]
    validation = [record.validation_scores for record in seen.records if record.validation_scores is not None]
    return {
        **asdict(cell),
        "hostile": sides.hostile,
        "accuracy": [round(score.global_accuracy, 2) for score in scores],
        "validation": [round(score.global_accuracy, 2) for score in validation],
        "backdoor": round(backdoor_success(experiment, server), 1) if cell.attack in (BACKDOOR, NONE) else None,
        "left_out": [record.left_out for record in seen.records],
        "shortened": [
            {one.client: round(one.counted, 3) for one in record.clients if one.counted and one.counted < 1}
            for record in seen.records
        ],
        "agreement": [
            [None if one.agreement is None else round(one.agreement, 3) for one in record.clients]
            for record in seen.records
        ],
        "commit": made_by,
        "seconds": round(time.perf_counter() - begun),
    }


def cells(
    networks: Sequence[str], rounds: int, seeds: Sequence[int], attacks: Sequence[str], places: Sequence[str],
    defences: Sequence[str], overrides: tuple[str, ...],
) -> Iterator[Cell]:  # fmt: skip
    """In the order in which they are run; of runs without an attack one for each seed and defence."""
    for network, attack in product(networks, attacks):
        for place, defence, seed in product(places if attack != NONE else ("0x0",), defences, seeds):
            level, attackers = (int(part) for part in place.split("x"))
            yield Cell(network, seed, rounds, attack, level, attackers, defence, overrides)


def _cell_of(figures: Mapping[str, Any]) -> Cell:
    named = {field.name: figures[field.name] for field in fields(Cell)}
    return Cell(**{**named, "overrides": tuple(named["overrides"])})


@click.command()
@click.option("--networks", default="quickstart", show_default=True, help="Files of config/ without .yaml.")
@click.option("--rounds", default=12, show_default=True)
@click.option("--seeds", default="1,2,3", show_default=True)
@click.option("--attacks", default=",".join((NONE, *ATTACKS)), show_default=True)
@click.option("--places", default="1x2,3x2,5x2,1x1,3x1,5x1", show_default=True, help="LEVELxATTACKERS.")
@click.option("--defences", default="mean screened_mean median", show_default=True, help="With blanks between them.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="JSON lines, one a cell.")
def main(
    networks: str, rounds: int, seeds: str, attacks: str, places: str, defences: str, overrides: tuple[str, ...],
    output: Path,
) -> None:  # fmt: skip
    """Run what OUTPUT does not hold yet, then show it all."""
    numbers = [int(seed) for seed in seeds.split(",")]
    grid = cells(
        networks.split(","), rounds, numbers, attacks.split(","), places.split(","), defences.split(), overrides
    )
    found = run_missing(grid, output, run, _cell_of)
    click.echo("\n".join(table(found)))


def table(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Markdown: accuracy after the last round, mean over seeds and spread; how often a backdoor opens then.

    Rounds and settings are named where runs differ in them.
    """
    defences = list(dict.fromkeys(figures["defence"] for figures in found))
    yield from (f"| {' | '.join(['network', 'attack', 'by', *defences])} |", f"|{'---|' * (3 + len(defences))}")
    are_alike = len({(cell.rounds, cell.overrides) for cell in map(_cell_of, found)}) == 1
    for key in dict.fromkeys(_row(figures) for figures in found):
        network, rounds, overrides, attack, level, attackers = key
        who = f"{attackers} of level {level}" if attackers else "nobody"
        row = [figures for figures in found if _row(figures) == key]
        shown = [_shown([figures for figures in row if figures["defence"] == defence]) for defence in defences]
        settings = [] if are_alike else [f"{rounds} round{'s' if rounds > 1 else ''}", *overrides]
        experiment = ", ".join([network, *settings])
        yield f"| {' | '.join([experiment, attack, who, *shown])} |"


def _row(figures: Mapping[str, Any]) -> tuple[Any, ...]:
    cell = _cell_of(figures)
    return cell.network, cell.rounds, cell.overrides, cell.attack, cell.level, cell.attackers


def _shown(found: Sequence[Mapping[str, Any]]) -> str:
    if not found:
        return ""
    last = [figures["accuracy"][-1] for figures in found]
    spread = f" ({min(last):.1f} to {max(last):.1f}, {len(last)} seeds)" if len(last) > 1 else " (1 seed)"
    opened = [figures["backdoor"] for figures in found if figures["backdoor"] is not None]
    return f"{mean(last):.1f}{spread}" + (f"; opens {mean(opened):.0f} %" if opened else "")


if __name__ == "__main__":
    main()
