"""What a device of the weakest level holds over a round, counted as ``fedml-dapper footprint`` counts it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from docs.pictures.canvas import Colour, Picture
from fedml_dapper.config import LevelArgs, ModelArgs, PruningArgs, TrainArgs
from fedml_dapper.fleet.demand import DemandCounter, network_memory
from fedml_dapper.methods import METHODS, ClientProfile, Problem
from fedml_dapper.models import build_backbone, example_image

_METHODS = ("dapperfl", "dapperfl_slim")
_IMAGE, _WIDTH, _BATCH, _EPOCHS, _LEVEL = 64, 64, 64, 5, 5
_PARTS: tuple[tuple[Colour, str], ...] = (
    ("blue", "received model"),
    ("orange", "weights, gradients, momentum"),
    ("purple", "activations"),
    ("green", "one layer's gradients"),
)
_FLOOR, _TALLEST, _MOST, _GAP = 372, 300, 1000, 1.5
"""Where bars stand, how high the scale is in pixels, how many MB that are, and what is between parts."""


@dataclass(frozen=True)
class Round:
    """Bytes of each of the parts, epoch by epoch, and the peak that the footprint says."""

    method: str
    epochs: tuple[tuple[int, ...], ...]
    peak: int


@cache
def held(method: str) -> Round:
    """By a client of level 5."""
    levels = LevelArgs()
    example = example_image(_IMAGE)
    backbone = build_backbone(ModelArgs(model="resnet18", width=_WIDTH, norm="standardised"), 10, 0, example)
    training = TrainArgs(batch_size=_BATCH, epochs=_EPOCHS)
    pruning = PruningArgs()
    problem = Problem(backbone, example, training, pruning, uniform_weights=False, seed=0, ratios=levels.ratios)
    found = METHODS.find(method)
    built = found(found.check_params({}), problem)
    ratio = levels.ratios[_LEVEL - 1]
    demand = DemandCounter(built).demand(_LEVEL, ratio)
    epochs: list[tuple[int, ...]] = []
    for phase in built.local_phases(ClientProfile(0, "", _LEVEL, ratio, 0)):
        [one] = phase.passes  # nobody is weaker, so nobody is taught
        memory = network_memory(built, one)
        model = memory.weights + memory.gradients + memory.optimizer
        working = round(_BATCH * memory.working_per_sample)
        saved = memory.saved(_BATCH) + memory.holes.lost(_BATCH)
        epochs += [(demand.bytes_down, model, saved, working)] * int(phase.epochs)
    return Round(method, tuple(epochs), demand.memory_bytes)


def picture() -> Picture:
    rounds = [held(method) for method in _METHODS]
    paper, slim = (f"{one.peak / 1e6:.0f}" for one in rounds)
    drawn = Picture(
        "What a device of level 5 holds in memory over a round",
        f"Bars for the {_EPOCHS} epochs of a round, under DapperFL and under dapperfl_slim. DapperFL's first epoch"
        f" trains the full model and takes {paper} MB. Its later epochs train the slim model. dapperfl_slim trains the"
        f" slim model in all epochs and takes {slim} MB. Activations make up most of it.",
        height=470,
    )
    drawn.text(16, 26, "MB, counted", size=13, colour="soft")
    for mark in range(0, _MOST, 250):
        y = _FLOOR - mark * _TALLEST / _MOST
        drawn.line((62, y), (884, y), dashed=mark > 0)
        drawn.text(54, y + 5, str(mark), size=13, anchor="end", colour="soft")
    for place, one in enumerate(rounds):
        _bars(drawn, 84 + place * 410, one)
    drawn.text(62, 436, "from below:", size=13, colour="soft")
    x = 150
    for colour, name in _PARTS:
        drawn.box(x, 424, 14, 14, colour=colour, fill="full", round_by=2)
        drawn.text(x + 20, 436, name, size=13)
        x += 44 + 7 * len(name)
    network = f"ResNet18 of width {_WIDTH}, standardised weights, {_IMAGE}×{_IMAGE} images, batches of {_BATCH}"
    level = f"level {_LEVEL} (ratio {LevelArgs().ratios[_LEVEL - 1]:g}), internal scope"
    drawn.text(62, 460, f"{network}, {level}", size=12, colour="soft")
    return drawn


def _bars(drawn: Picture, left: float, one: Round) -> None:
    drawn.text(left + 185, 30, one.method, size=16, anchor="middle", bold=True)
    drawn.text(left + 185, 50, f"peak {one.peak / 1e6:.0f} MB", size=13, anchor="middle")
    for epoch, parts in enumerate(one.epochs):
        x, y = left + epoch * 74, float(_FLOOR)
        for (colour, _), size in zip(_PARTS, parts, strict=True):
            height = size / 1e6 * _TALLEST / _MOST
            y -= height
            drawn.box(x, y, 54, height - _GAP, colour=colour, fill="full", round_by=0)
        drawn.text(x + 27, y - 6, f"{sum(parts) / 1e6:.0f}", size=13, anchor="middle")
        drawn.text(x + 27, _FLOOR + 20, f"epoch {epoch + 1}", size=13, anchor="middle")
