"""Who holds which data under each partition: a small suite, dealt out by the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from docs.pictures.canvas import Colour, Picture
from fedml_dapper.config import DataArgs
from fedml_dapper.datasets import ClientData, ClientSamples, Domain, ImageSet, Suite, TestData, TestSamples, divide

_COLOURS: tuple[Colour, ...] = ("blue", "orange", "green", "purple")
_SIZES = {"chalk": 400, "ink": 300, "paint": 200, "print": 100}
"""Training images of each domain; a quarter as many are for testing."""
_CLASSES = ("a", "b", "c", "d")
_SHARE, _ALPHA = 0.3, 0.3
_SEED, _BATCH = 1, 16
_BAR, _ROW, _GAP = 190, 28, 1.5
_Fill = Literal["full", "tint", "line"]


def _images(count: int) -> ImageSet:
    return ImageSet(torch.zeros(count, 3, 8, 8, dtype=torch.uint8), torch.arange(count) % len(_CLASSES))


def _suite(sizes: dict[str, int]) -> Suite:
    domains = tuple(Domain(name, _images(size), _images(size // 4), "drawn", False) for name, size in sizes.items())
    return Suite("small", domains, _CLASSES, None, swap_in_missing_classes=False)


def picture() -> Picture:
    drawn = Picture(
        "Who holds which data under each partition",
        "Three panels with a bar for each client. Under domain_shares a client holds a share of one domain's training"
        " images. Under one_per_domain a client holds a whole domain, split for training, validation and testing. Under"
        " dirichlet every client holds uneven parts of all classes of one domain.",
        height=420,
    )
    _domain_shares(drawn, 16)
    _one_per_domain(drawn, 316)
    _dirichlet(drawn, 616)
    drawn.line((300, 20), (300, 400))
    drawn.line((600, 20), (600, 400))
    return drawn


def _domain_shares(drawn: Picture, left: int) -> None:
    args = DataArgs(dataset="small", partition="domain_shares", client_share=_SHARE)
    division = divide(_suite(_SIZES), args, 8, _BATCH, _SEED)
    _heading(drawn, left, "domain_shares", "Each client: a share of a domain,", f"here {_SHARE:g} of its training set.")
    scale = _BAR / max(_SIZES.values())
    for row, client in enumerate(division.clients):
        colour = _COLOURS[list(_SIZES).index(client.domain)]
        _bar(drawn, left, row, scale, [(client.num_samples, colour, "full")])
        rest = _SIZES[client.domain] - client.num_samples
        _bar(drawn, left, row, scale, [(rest, colour, "line")], start=client.num_samples)
    _legend(drawn, left, list(_SIZES))
    drawn.text(left, 400, "Outline: the domain's training set.", size=12, colour="soft")


def _one_per_domain(drawn: Picture, left: int) -> None:
    division = divide(_suite(_SIZES), DataArgs(dataset="small", partition="one_per_domain"), 4, _BATCH, _SEED)
    _heading(drawn, left, "one_per_domain", "Each client: a whole domain,", "with tests of its own.")
    totals = [size + size // 4 for size in _SIZES.values()]
    for row, (client, tests) in enumerate(zip(division.clients, division.client_tests, strict=True)):
        colour = _COLOURS[list(_SIZES).index(client.domain)]
        parts: list[tuple[int, Colour, _Fill]] = [(client.num_samples, colour, "full")]
        if tests.validation is not None:
            parts.append((tests.validation.num_samples, colour, "tint"))
        parts.append((tests.test.num_samples, colour, "line"))
        _bar(drawn, left, row, _BAR / max(totals), parts)
    fills: tuple[tuple[_Fill, str], ...] = (("full", "to train on"), ("tint", "for validation"), ("line", "to test on"))
    for number, (fill, meaning) in enumerate(fills):
        y = 250 + number * 26
        drawn.box(left, y, 22, 16, colour="ink", fill=fill, round_by=2)
        drawn.text(left + 32, y + 13, meaning, size=13)
    _legend(drawn, left, list(_SIZES))


def _dirichlet(drawn: Picture, left: int) -> None:
    args = DataArgs(dataset="small", partition="dirichlet", dirichlet_alpha=_ALPHA)
    division = divide(_suite({"all": sum(_SIZES.values())}), args, 8, _BATCH, _SEED)
    _heading(drawn, left, "dirichlet", "One domain, dealt out by classes,", f"here dirichlet_alpha {_ALPHA:g}.")
    held = [
        _by_class(client) + _by_class(tests.test)
        for client, tests in zip(division.clients, division.client_tests, strict=True)
    ]
    scale = _BAR / max(int(counts.sum()) for counts in held)
    for row, counts in enumerate(held):
        _bar(drawn, left, row, scale, [(count, _COLOURS[label], "full") for label, count in enumerate(counts.tolist())])
    _legend(drawn, left, [f"class {name}" for name in _CLASSES])
    drawn.text(left, 400, "Half to train on, half to test on.", size=12, colour="soft")


def _by_class(data: ClientData | TestData) -> Tensor:
    """How many of ``data`` are of each class."""
    assert isinstance(data, ClientSamples | TestSamples)
    labels = data.samples.labels
    assert labels is not None
    return torch.bincount(labels, minlength=len(_CLASSES))


def _heading(drawn: Picture, left: int, name: str, *meaning: str) -> None:
    drawn.text(left, 36, name, size=16, bold=True)
    drawn.lines(left, 60, *meaning, size=13)
    drawn.text(left, 104, "client", size=12, colour="soft")


def _bar(
    drawn: Picture, left: int, row: int, scale: float, parts: Sequence[tuple[int, Colour, _Fill]], start: int = 0
) -> None:
    """A client's images from left to right; its number before, how many there are behind."""
    y = 112 + row * _ROW
    x = left + 22 + start * scale
    for count, colour, fill in parts:
        if count:
            drawn.box(x, y, max(1, count * scale - _GAP), 18, colour=colour, fill=fill, round_by=0)
        x += count * scale
    if not start:
        drawn.text(left + 10, y + 14, str(row), size=13, anchor="middle")
        drawn.text(left + 22 + _BAR + 8, y + 14, str(sum(count for count, _, _ in parts)), size=13)


def _legend(drawn: Picture, left: int, names: Sequence[str]) -> None:
    x = left
    for name, colour in zip(names, _COLOURS, strict=True):
        drawn.box(x, 362, 12, 12, colour=colour, fill="full", round_by=2)
        drawn.text(x + 17, 373, name, size=12)
        x += 66
