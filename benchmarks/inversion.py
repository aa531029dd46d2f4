"""Can a server draw the pictures that a client trained on? Gradients inverted, by what it sees in a round.

The attack is that of Geiping et al. ("Inverting Gradients", NeurIPS 2020): pictures are changed until their gradient
points where the change of the model that is seen points, and neighbouring pixels are alike. It is made as easy as this
package lets it be: one step on one batch of two pictures, which are neither shifted nor flipped, from a model that has
not been trained, without momentum, without teaching of smaller networks; the labels are known.

What is seen is a client's upload, as the slim model that it is, without noise or with that of ``where: client``; or the
sum of all clients' changes, as a server sees that opens sums alone, of which the pictures of all of them are sought
together. ``psnr`` is how near what is found comes to the pictures, in dB, over pixels from 0 to 1. ``area`` is how
often its pixels go more with those of its picture than with those of another test image of its domain, in percent: 50
is a coin. Resumable: an attack is a line of the output.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from itertools import product
from math import log10
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import click
import torch
from PIL import Image
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.func import functional_call

from benchmarks.resumable import run_missing
from fedml_dapper.config import load_settings
from fedml_dapper.datasets import ClientSamples, ImageSet, Preprocessing, TestSamples, images_of
from fedml_dapper.federation import ClientSide, Experiment, Server, build_experiment
from fedml_dapper.federation.privacy.accountant import epsilon
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.pruning import slim_tensors
from fedml_dapper.randomness.seeding import Stream, torch_generator

QUICKSTART = Path(__file__).parents[1] / "config" / "quickstart.yaml"
PICTURES = 2
"""Of a client; a batch has no fewer."""
STEPS = 800
_CLIENTS, _APART = 10, 3
_RATE, _SMOOTHNESS = 0.1, 1.0

Seen = Literal["upload", "sum"]


@dataclass(frozen=True)
class Cell:
    """An attack on one client, which is of ``level``, or on all clients where the sum is seen. Seeds differ in the
    client; levels and methods do not. ``noise`` is the multiplier of what clients add to uploads whose change is cut to
    a norm of 1."""

    method: str
    seen: Seen
    level: int | None
    """None for those that the quickstart deals."""
    noise: float | None
    seed: int
    steps: int = STEPS
    overrides: tuple[str, ...] = ()

    @property
    def settings(self) -> list[str]:
        privacy = {"clip": 1.0, "noise_multiplier": self.noise, "delta": 1e-5, "where": "client"}
        teaching = ["dapper_args.params={dapperfl_slim: {distillation: 0}}"] if self.method == "dapperfl_slim" else []
        levels = [] if self.level is None else [f"dapper_args.levels.assignment={[self.level] * _CLIENTS}"]
        return [
            f"random_seed={self.seed}", f"dapper_args.method={self.method}", "threads=1", "workers=1",
            "comm_round=1", "epochs=1", f"batch_size={PICTURES}", "max_grad_norm=null", "weight_decay=0",
            "dapper_args.aggregation_weights=uniform", *levels, *teaching,
            *([f"dapper_args.privacy={json.dumps(privacy)}"] if self.noise is not None else []), *self.overrides,
        ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Observed:
    """A client's message pair, and the pictures behind it, which the server does not see."""

    downlink: Downlink
    upload: Upload
    pictures: ImageSet


def run(cell: Cell, made_by: str | None) -> dict[str, Any]:
    """Make the attack: how near it came, and what it drew."""
    begun = time.perf_counter()
    experiment = build_experiment(load_settings([QUICKSTART], cell.settings))
    server = Server(experiment)
    chosen = sorted(server.round_clients())
    clients = chosen if cell.seen == "sum" else [chosen[_APART * cell.seed % _CLIENTS]]
    seen = [observed(experiment, server, client_id) for client_id in clients]
    found = inverted(experiment, server, seen, cell.steps, cell.seed)
    truth = torch.cat([_pixels(one.pictures) for one in seen])
    labels = torch.cat([one.pictures.labels for one in seen])
    found = found[_matched(found, truth, labels)]
    privacy = experiment.method.problem.privacy
    domains = [experiment.clients[client_id].domain for client_id in clients for _ in range(PICTURES)]
    return {
        **asdict(cell),
        "psnr": round(mean(_psnr(one, other) for one, other in zip(found, truth, strict=True)), 2),
        "area": round(100 * mean(map(_area, found, truth, [_others(experiment, one) for one in domains])), 1),
        "epsilon": None if privacy is None else round(epsilon(privacy, 1), 1),
        "pictures": {"trained on": _as_png(truth[:PICTURES]), "drawn": _as_png(found[:PICTURES])},
        "commit": made_by,
        "seconds": round(time.perf_counter() - begun),
    }


def observed(experiment: Experiment, server: Server, client_id: int) -> Observed:
    """What a client sends after a step on its first pictures of different classes."""
    data = experiment.clients[client_id]
    assert isinstance(data, ClientSamples), "the quickstart's suite holds images"
    (images,) = images_of([data.samples])
    first = sorted(images.labels.tolist().index(label) for label in set(images.labels.tolist()))
    few = images.take(torch.tensor(first[:PICTURES]))
    few = replace(few, preprocessing=replace(few.preprocessing, crop_padding=0))
    downlink = server.downlink(client_id)
    upload = ClientSide(experiment, server.memories).update(downlink, replace(data, samples=few))
    return Observed(downlink, upload, few)


def inverted(experiment: Experiment, server: Server, seen: Sequence[Observed], steps: int, seed: int) -> Tensor:
    """Pictures whose gradient points where what is ``seen`` has moved, in pixels from 0 to 1 (N, 3, S, S)."""
    start = {name: tensor.clone() for name, tensor in server.state.weights.items() if tensor.is_floating_point()}
    target = [tensor.flatten() for tensor in _moved(experiment, start, seen)]
    labels = torch.cat([one.pictures.labels for one in seen])
    rules = seen[0].pictures.preprocessing
    generator = torch_generator(seed, Stream.AUGMENTATION)
    noise = torch.randn(len(labels), 3, rules.input_size, rules.input_size, generator=generator)
    pixels = (0.5 + 0.1 * noise).clamp(0, 1).requires_grad_()
    optimizer = torch.optim.Adam([pixels], lr=_RATE)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        ours = [tensor.flatten() for tensor in _gradients(experiment, start, seen, _input(pixels, rules), labels)]
        loss = 1 - _cosine(ours, target) + _SMOOTHNESS * _roughness(pixels)
        (pixels.grad,) = torch.autograd.grad(loss, [pixels])
        pixels.grad.sign_()
        optimizer.step()
        slower.step()
        with torch.no_grad():
            pixels.clamp_(0, 1)
    return pixels.detach()


def _moved(experiment: Experiment, start: Mapping[str, Tensor], seen: Sequence[Observed]) -> list[Tensor]:
    """By tensor, the sum over clients of where their weights went, in the full shapes; against the gradient."""
    layout, total = experiment.method.problem.layout, torch.zeros(())
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    for one in seen:
        cut = slim_tensors(leaves, layout, one.upload.plan)
        for name in start:  # the gradient of such a product is the difference, each entry where it belongs
            total = total + (cut[name] * (one.downlink.weights[name] - one.upload.weights[name])).sum()
    return list(torch.autograd.grad(total, list(leaves.values())))


def _gradients(
    experiment: Experiment, start: Mapping[str, Tensor], seen: Sequence[Observed], inputs: Tensor, labels: Tensor
) -> list[Tensor]:
    """The sum over clients of their gradients on ``inputs``, in the full shapes."""
    problem = experiment.method.problem
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    total = torch.zeros(())
    for one, own, targets in zip(seen, _by_client(inputs), _by_client(labels), strict=True):
        model = experiment.method.local_model(one.upload.plan).train()
        outputs = functional_call(model, slim_tensors(leaves, problem.layout, one.upload.plan), (own,))
        total = total + problem.task.loss(outputs, targets)
    return list(torch.autograd.grad(total, list(leaves.values()), create_graph=True))


def _by_client(values: Tensor) -> Iterator[Tensor]:
    return iter(torch.split(values, PICTURES))


def _cosine(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
    product_ = torch.stack([(one * other).sum() for one, other in zip(ours, theirs, strict=True)]).sum()
    norms = [torch.stack([each.square().sum() for each in side]).sum().sqrt() for side in (ours, theirs)]
    return product_ / (norms[0] * norms[1] + 1e-12)


def _roughness(pixels: Tensor) -> Tensor:
    """Total variation: the mean difference between neighbours."""
    return pixels.diff(dim=2).abs().mean() + pixels.diff(dim=3).abs().mean()


def _input(pixels: Tensor, rules: Preprocessing) -> Tensor:
    average, deviation = _normal(rules)
    return (pixels - average) / deviation


def _pixels(pictures: ImageSet) -> Tensor:
    """From 0 to 1, of the size that a network gets."""
    average, deviation = _normal(pictures.preprocessing)
    return pictures.preprocessing.evaluate(pictures.images) * deviation + average


def _normal(rules: Preprocessing) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of pixels, by channel."""
    return torch.tensor(rules.mean).view(3, 1, 1), torch.tensor(rules.std).view(3, 1, 1)


def _matched(found: Tensor, truth: Tensor, labels: Tensor) -> Tensor:
    """Which of ``found`` is to be held against which true picture: those of one label are in no order."""
    apart = torch.cdist(truth.flatten(1), found.flatten(1)) + 1e6 * (labels[:, None] != labels[None])
    return torch.from_numpy(linear_sum_assignment(apart.numpy())[1])


def _psnr(found: Tensor, truth: Tensor) -> float:
    return -10 * log10(float((found - truth).square().mean()) + 1e-10)


def _others(experiment: Experiment, domain: str) -> Tensor:
    (test,) = [test for test in experiment.tests if test.domain == domain]
    assert isinstance(test, TestSamples)
    (images,) = images_of([test.samples])
    return _pixels(images)


def _area(found: Tensor, truth: Tensor, others: Tensor) -> float:
    """How many of the ``others`` are less like what was ``found`` than the ``truth`` is, whatever their contrast."""
    return float((_likeness(found, others) < _likeness(found, truth[None])).float().mean())


def _likeness(found: Tensor, pictures: Tensor) -> Tensor:
    """Pearson's correlation of pixels, with each picture."""
    own, theirs = found.flatten() - found.mean(), pictures.flatten(1) - pictures.mean(dim=(1, 2, 3))[:, None]
    likeness: Tensor = torch.mv(theirs, own) / (theirs.norm(dim=1) * own.norm() + 1e-12)
    return likeness


def _as_png(pictures: Tensor) -> list[str]:
    """In base64."""
    files = []
    for picture in pictures:
        file = BytesIO()
        Image.fromarray((255 * picture).round().byte().permute(1, 2, 0).numpy()).save(file, "PNG", optimize=True)
        files.append(base64.b64encode(file.getvalue()).decode())
    return files


def _cell_of(figures: Mapping[str, Any]) -> Cell:
    names = ("method", "seen", "level", "noise", "seed", "steps")
    return Cell(**{name: figures[name] for name in names}, overrides=tuple(figures["overrides"]))


@click.command()
@click.option("--seeds", default="1,2,3", show_default=True)
@click.option("--noises", default="0.001,0.01,0.1", show_default=True, help="Multipliers, besides none.")
@click.option("--steps", default=STEPS, show_default=True, help="Of each attack; half as many where the sum is seen.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="JSON lines, one an attack.")
def main(seeds: str, noises: str, steps: int, overrides: tuple[str, ...], output: Path) -> None:
    """Make the attacks that OUTPUT does not hold yet, then show all."""
    multipliers: list[float | None] = [None, *(float(noise) for noise in noises.split(",") if noise)]
    kinds: list[tuple[str, Seen, int | None, float | None]] = [
        (method, "upload", level, noise)
        for noise, (method, level) in product(multipliers, (("fedavg", 1), ("dapperfl_slim", 1), ("dapperfl_slim", 5)))
    ]
    kinds += [(method, "sum", None, None) for method in ("fedavg", "dapperfl_slim")]
    grid = [
        Cell(method, seen, level, noise, int(seed), steps // 2 if seen == "sum" else steps, overrides)
        for seed, (method, seen, level, noise) in product(seeds.split(","), kinds)
    ]
    click.echo("\n".join(table(run_missing(grid, output, run, _cell_of))))


def table(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Markdown: mean over seeds and standard deviation."""
    headings = ["method", "seen", "steps", "noise", "epsilon of one round", "PSNR, dB", "more alike than others, %"]
    yield from (f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}")
    for kind in dict.fromkeys(_kind(figures) for figures in found):
        runs = [figures for figures in found if _kind(figures) == kind]
        method, seen, level, noise, steps, overrides = kind
        what = "sum of all clients" if seen == "sum" else f"upload of level {level}"
        spent = "none" if noise is None else f"{runs[0]['epsilon']:,.0f}"
        shown = [_shown([figures[name] for figures in runs]) for name in ("psnr", "area")]
        trained = ", ".join([f"`{method}`", *overrides])
        yield f"| {' | '.join([trained, what, str(steps), str(noise or 'none'), spent, *shown])} |"


def _kind(figures: Mapping[str, Any]) -> tuple[str, Seen, int | None, float | None, int, tuple[str, ...]]:
    cell = _cell_of(figures)
    return cell.method, cell.seen, cell.level, cell.noise, cell.steps, cell.overrides


def _shown(values: Sequence[float]) -> str:
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
