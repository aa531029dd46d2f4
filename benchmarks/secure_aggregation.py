"""What secure aggregation costs over the plain sum in fixed point: seconds of clients and server, and bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, TypeVar

import click
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.output import Figure, Findings, json_option
from benchmarks.uploads import RATIOS
from fedml_dapper.config import ModelArgs
from fedml_dapper.models import BACKBONES, build_backbone, example_image
from fedml_dapper.pruning import (
    DENSE,
    ChannelLayout,
    Packing,
    PruningPlan,
    plan_at_random,
    plan_window,
    solve_widths,
    trace_layout,
)
from fedml_dapper.secure_sum import Participant, Roster, Rules, Summation
from fedml_dapper.secure_sum.fixed_point import as_words

Plans = Literal["full", "nested", "random"]
T = TypeVar("T")


@dataclass
class Watch:
    """Seconds of every part, each time it was done."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.seconds.setdefault(name, []).append(time.perf_counter() - begun)

    def total(self, *names: str) -> float:
        return sum(sum(self.seconds.get(name, ())) for name in names)


def plans_of(kind: Plans, layout: ChannelLayout, clients: int) -> dict[int, PruningPlan]:
    """Full models (FedAvg); five levels that hold one another (HeteroFL); or channels drawn anew (FedDrop)."""
    generator, plans = np.random.default_rng(1), dict[int, PruningPlan]()
    for client in range(clients):
        widths = solve_widths(layout, RATIOS[client % len(RATIOS)], "parameters") if kind != "full" else {}
        drawn = plan_at_random(layout, widths, generator) if kind == "random" else plan_window(layout, widths)
        plans[client] = drawn if widths else DENSE
    return plans


def numbers_of(layout: ChannelLayout, plan: PruningPlan) -> dict[str, NDArray[np.int32]]:
    """A client's change in fixed point, made up."""
    generator = np.random.default_rng(1)
    floats = {name: spec for name, spec in layout.tensors.items() if spec.dtype.is_floating_point}
    return {
        name: generator.integers(-(2**20), 2**20, spec.shape_at(plan.widths) or (1,), dtype=np.int32)
        for name, spec in floats.items()
    }


def side_by_side(work: Callable[[int], T], clients: Sequence[int], threads: int) -> Mapping[int, T]:
    with ThreadPoolExecutor(threads) as pool:
        return dict(zip(clients, pool.map(work, clients), strict=True))


def measured(kind: Plans, layout: ChannelLayout, clients: int, masking: int, threads: int) -> dict[str, Figure]:
    """One round of so many clients, on as many threads; where not all go on to ``masking``, it ends there."""
    watch, everyone = Watch(), list(range(clients))
    plans, rules = plans_of(kind, layout, clients), Rules(clients // 2 + 1, 2)

    with watch.part("set-up"):
        parts = side_by_side(lambda client: Participant(client, rules), everyone, threads)
        roster = Roster(b"benchmark", {client: part.public_keys for client, part in parts.items()})
        with watch.part("server"):
            packing = Packing(layout, plans)
            server = Summation(roster, rules, packing.cells)
        for client, deal in side_by_side(lambda client: parts[client].deal(roster), everyone, threads).items():
            server.take_deal(client, deal)
        inboxes = server.end_dealing()
    setting_up = sum(len(sealed) for inbox in inboxes.values() for sealed in inbox.values()) + 64 * clients
    masked_bytes = plain_bytes = 0

    def masked(client: int) -> NDArray[np.uint32]:
        numbers = numbers_of(layout, plans[client])
        begun = time.perf_counter()
        own = Packing(layout, plans)  # every client finds the cells by itself
        words = parts[client].mask(inboxes[client], as_words(own.pack(client, numbers)), own.cells)
        watch.seconds.setdefault("client", []).append(time.perf_counter() - begun)
        return words

    for first in range(0, masking, threads):
        some = everyone[first : min(first + threads, masking)]
        with watch.part("masking"):
            uploads = side_by_side(masked, some, threads)
        for client, words in uploads.items():
            masked_bytes += words.nbytes
            plain_bytes += 4 * sum(numbers.size for numbers in numbers_of(layout, plans[client]).values())
            with watch.part("server"):
                server.take_masked(client, words)
    row: dict[str, Figure] = {
        "plans": kind,
        "clients": clients,
        "cells": len(packing.cells.sizes),
        "set-up s, all": watch.total("set-up"),
        "client s": median(watch.seconds["client"]),
        "MB plain, a client": plain_bytes / masking / 1e6,
        "MB masked": masked_bytes / masking / 1e6,
        "MB shares": setting_up / clients / 1e6,
        "bytes, of plain": (masked_bytes / masking + setting_up / clients) / (plain_bytes / masking),
    }
    if masking < clients:
        return row | {"server s": "", "all s": ""}
    with watch.part("server"):
        survivors = server.end_masking()
    told = {client: parts[client].reveal(survivors) for client in survivors}
    with watch.part("server"):
        for client, revealed in told.items():
            server.take_revealed(client, revealed)
        packing.unpack(server.open())
    return row | {
        "server s": watch.total("server"),
        "all s": watch.total("set-up", "masking") + watch.total("server") - watch.seconds["server"][0],
    }


@click.command()
@click.option("--model", type=click.Choice(sorted(BACKBONES)), default="resnet18", show_default=True)
@click.option("--clients", default="10,50", show_default=True, help="Numbers of clients, with commas.")
@click.option("--masking", default=10, show_default=True, help="How many of a round's clients mask an upload at most.")
@click.option("--threads", default=2, show_default=True, help="On which all clients and the server run.")
@click.option("--runs", default=1, show_default=True)
@json_option
def main(model: str, clients: str, masking: int, threads: int, runs: int, as_json: bool) -> None:
    """Sum up made-up changes of a model under masks, with all clients on this machine."""
    torch.set_num_threads(1)
    backbone = build_backbone(ModelArgs(model=model), 10, 1, example_image(32))
    layout = trace_layout(backbone, example_image(32), "internal")
    rows = []
    for count in map(int, clients.split(",")):
        kinds: tuple[Plans, ...] = ("full", "nested", "random")
        for kind in kinds:
            found = [measured(kind, layout, count, min(masking, count), threads) for _ in range(runs)]
            rows.append(
                {
                    name: median(float(each[name]) for each in found) if isinstance(value, float) else value
                    for name, value in found[0].items()
                }
            )
    Findings(f"Secure aggregation of {model}, {threads} threads", runs, rows).show(as_json)


if __name__ == "__main__":
    main()
