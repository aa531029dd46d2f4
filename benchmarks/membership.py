"""Can a server tell which images a client trained on? Attacks on membership by what it sees in a round.

Two published attacks, each a score per image of which those that were trained on have more:

* ``loss``: the smaller the loss under the model that is seen, the likelier a member (Yeom et al., CSF 2018).
* ``gain``: how much smaller it is than under the model of the round before, which takes away how hard an image is for
  everybody (Watson et al., ICLR 2022).

Members are a client's training images. Others are as many test images of its domain, or what there are, of classes
that the client has. What is seen is a client's upload, as the slim model that it is, or the model that the sum of all
uploads makes, as a server sees that opens sums alone. The figure is the area under the receiver's curve: 50 is a coin,
100 is every image. It is of the quickstart's last round, the mean over clients of a level. Resumable: a run is a line
of the output.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import click
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from benchmarks.resumable import run_missing
from fedml_dapper.config import load_settings
from fedml_dapper.datasets import ClientSamples, ImageSet, TestSamples, images_of
from fedml_dapper.federation import ClientSide, Experiment, RoundRecord, RunObserver, Server, build_experiment
from fedml_dapper.federation.privacy.accountant import epsilon
from fedml_dapper.federation.rounds import run_rounds
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import slim_tensors

QUICKSTART = Path(__file__).parents[1] / "config" / "quickstart.yaml"
SEEN = ("upload", "sum")
ATTACKS = ("loss", "gain")


@dataclass(frozen=True)
class Cell:
    """A run. ``noise`` is the multiplier of what clients add to uploads whose change is cut to a norm of 1."""

    method: str
    noise: float | None
    seed: int
    overrides: tuple[str, ...] = ()

    @property
    def settings(self) -> list[str]:
        privacy = {"clip": 1.0, "noise_multiplier": self.noise, "delta": 1e-5, "where": "client"}
        return [
            f"random_seed={self.seed}", f"dapper_args.method={self.method}", "threads=1", "workers=1",
            "frequency_of_the_test=1000", "dapper_args.aggregation_weights=uniform",
            *([f"dapper_args.privacy={json.dumps(privacy)}"] if self.noise is not None else []), *self.overrides,
        ]  # fmt: skip


class Onlooker(RunObserver):
    """Keeps what the last round's clients were sent and what they sent."""

    def __init__(self, experiment: Experiment, server: Server) -> None:
        self._experiment, self._server = experiment, server
        self._clients = ClientSide(experiment, server.memories)
        self.seen: dict[int, tuple[Downlink, Upload]] = {}
        self.accuracy = 0.0

    def run(self) -> None:
        run_rounds(self._experiment, self._server, self._clients, self._update, [self])

    def round_finished(self, record: RoundRecord) -> None:
        if record.scores is not None:
            self.accuracy = record.scores.global_accuracy

    def _update(self, downlink: Downlink) -> Upload:
        upload = self._clients.update(downlink, self._experiment.clients[downlink.client_id])
        self.seen[downlink.client_id] = downlink, upload
        return upload


def run(cell: Cell, made_by: str | None) -> dict[str, Any]:
    """The areas under the curves in percent, by level, by what is seen and by attack."""
    begun = time.perf_counter()
    experiment = build_experiment(load_settings([QUICKSTART], cell.settings))
    server = Server(experiment)
    onlooker = Onlooker(experiment, server)
    onlooker.run()
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for client_id, (downlink, upload) in onlooker.seen.items():
        level = found.setdefault(str(experiment.profiles[client_id].level), {})
        before = _loaded(experiment, downlink)
        for what, after in zip(SEEN, (_loaded(experiment, upload), _cut(experiment, server, upload)), strict=True):
            for attack, area in _areas(experiment, client_id, before, after).items():
                level.setdefault(what, {}).setdefault(attack, []).append(round(100 * area, 2))
    privacy, rounds = experiment.method.problem.privacy, experiment.settings.train_args.comm_round
    return {
        **asdict(cell),
        "areas": dict(sorted(found.items())),
        "accuracy": round(onlooker.accuracy, 2),
        "epsilon": None if privacy is None else round(epsilon(privacy, rounds), 1),
        "commit": made_by,
        "seconds": round(time.perf_counter() - begun),
    }


def _loaded(experiment: Experiment, message: Downlink | Upload) -> Backbone:
    """The model that was sent."""
    model = experiment.method.local_model(message.plan)
    model.load_state_dict({**model.state_dict(), **message.weights})
    return model.eval()


def _cut(experiment: Experiment, server: Server, upload: Upload) -> Backbone:
    """The new global model's part of what the client holds."""
    layout, weights = experiment.method.problem.layout, server.state.weights
    sent = slim_tensors({name: weights[name] for name in upload.weights}, layout, upload.plan)
    model = experiment.method.local_model(upload.plan)
    model.load_state_dict({**model.state_dict(), **sent})
    return model.eval()


def _areas(experiment: Experiment, client_id: int, before: Backbone, after: Backbone) -> dict[str, float]:
    """By attack, of one client."""
    members, others = _members(experiment, client_id)
    losses = {name: [_losses(model, images) for images in (members, others)] for name, model in
              (("before", before), ("after", after))}  # fmt: skip
    is_member = torch.cat([torch.ones(len(members)), torch.zeros(len(others))]).numpy()
    earlier, later = torch.cat(losses["before"]), torch.cat(losses["after"])
    scores = {"loss": -later, "gain": earlier - later}
    return {attack: float(roc_auc_score(is_member, scores[attack].numpy())) for attack in ATTACKS}


def _members(experiment: Experiment, client_id: int) -> tuple[ImageSet, ImageSet]:
    """What a client trained on, and what it might have: test images of its domain and classes."""
    data = experiment.clients[client_id]
    assert isinstance(data, ClientSamples), "the quickstart's suite holds images"
    (members,) = images_of([data.samples])
    (test,) = [test for test in experiment.tests if test.domain == data.domain]
    assert isinstance(test, TestSamples)
    (others,) = images_of([test.samples])
    alike = torch.isin(others.labels, members.labels).nonzero().flatten()[: len(members)]
    return members, others.take(alike)


@torch.no_grad()
def _losses(model: Backbone, images: ImageSet) -> Tensor:
    """Cross entropy of each image, float64; finite also where noise has made a model of anything."""
    outputs = model(images.preprocessing.evaluate(images.images)).double()
    return torch.nn.functional.cross_entropy(outputs, images.labels, reduction="none").nan_to_num(0, 1e6, -1e6)


def _cell_of(figures: Mapping[str, Any]) -> Cell:
    return Cell(figures["method"], figures["noise"], figures["seed"], tuple(figures["overrides"]))


@click.command()
@click.option("--seeds", default="1,2,3", show_default=True)
@click.option("--methods", default="fedavg,dapperfl_slim", show_default=True)
@click.option(
    "--noises", default="0.001,0.01,0.1", show_default=True, help="Multipliers, of runs besides those without."
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="JSON lines, one a run.")
def main(seeds: str, methods: str, noises: str, overrides: tuple[str, ...], output: Path) -> None:
    """Run what OUTPUT does not hold yet, then show it all."""
    multipliers: list[float | None] = [None, *(float(noise) for noise in noises.split(",") if noise)]
    grid = [
        Cell(method, noise, int(seed), overrides)
        for noise, method, seed in product(multipliers, methods.split(","), seeds.split(","))
    ]
    found = run_missing(grid, output, run, _cell_of)
    click.echo("\n".join(table(found)))


def table(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Markdown: areas in percent, mean over seeds and standard deviation, by level of the client."""
    levels = sorted({level for figures in found for level in figures["areas"]})
    headings = ["method", "noise", "epsilon", "seen", "attack", *(f"level {level}" for level in levels), "accuracy"]
    yield from (f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}")
    kinds = [replace(_cell_of(figures), seed=0) for figures in found]
    for kind in dict.fromkeys(kinds):
        runs = [figures for figures, its in zip(found, kinds, strict=True) if its == kind]
        for what, attack in product(SEEN, ATTACKS):
            shown = [_shown([mean(figures["areas"][level][what][attack]) for figures in runs]) for level in levels]
            accuracy = _shown([figures["accuracy"] for figures in runs])
            spent = "none" if kind.noise is None else f"{runs[0]['epsilon']:.0f}"
            trained = ", ".join([f"`{kind.method}`", *kind.overrides])
            yield f"| {' | '.join([trained, str(kind.noise or 'none'), spent, what, attack, *shown, accuracy])} |"


def _shown(values: Sequence[float]) -> str:
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
