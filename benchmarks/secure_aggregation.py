"""What secure aggregation costs over the plain sum in fixed point: seconds of clients and server, and bytes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Literal, TypeVar

import click
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.output import Figure, Findings, json_option
from benchmarks.uploads import RATIOS
from fedml_dapper.config import ModelArgs, SecureGrpcConfig
from fedml_dapper.device.certificate_signatures import CertifiedIdentity
from fedml_dapper.models import BACKBONES, build_backbone, example_image
from fedml_dapper.operations.credentials import read_credentials
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
from fedml_dapper.secure_sum import Deal, Participant, Roster, Rules, Summation
from fedml_dapper.secure_sum.fixed_point import as_words

ROOT = Path(__file__).parents[1]
Plans = Literal["full", "nested", "random"]
T = TypeVar("T")


@dataclass
class Watch:
    """Seconds of processor and of the clock that each part took, each time."""

    seconds: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What this thread does in here."""
        processor, clock = time.thread_time(), time.perf_counter()
        yield
        took = (time.thread_time() - processor, time.perf_counter() - clock)
        self.seconds.setdefault(name, []).append(took)

    def processor(self, name: str) -> list[float]:
        return [processor for processor, _ in self.seconds[name]]

    def clock(self, name: str) -> float:
        return sum(clock for _, clock in self.seconds[name])


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


def certified(clients: int) -> list[CertifiedIdentity]:
    """Silos with certificates as run/make_certs.sh makes them."""
    with TemporaryDirectory() as folder:
        place = Path(folder) / "certs"
        subprocess.run(["bash", ROOT / "run" / "make_certs.sh", place, str(clients)], check=True, capture_output=True)
        config = SecureGrpcConfig(server_address="localhost:1", certificates=place)
        return [CertifiedIdentity(config, read_credentials(config, 1 + client)) for client in range(clients)]


def measured(kind: Plans, layout: ChannelLayout, clients: int, masking: int, threads: int) -> dict[str, Figure]:
    """One round of so many clients, on as many threads; where not all go on to ``masking``, it ends there."""
    watch, everyone, some = Watch(), list(range(clients)), list(range(masking))
    plans = plans_of(kind, layout, clients)
    rules = Rules(clients // 2 + 1, 2)
    identities = certified(clients)
    numbers = {kept: numbers_of(layout, plans[kept]) for kept in some}

    def begin(client: int) -> Participant:
        with watch.part("set-up"):
            return Participant(client, rules, identities[client], b"benchmark", bytes(32))

    def deal(client: int) -> Deal:
        with watch.part("set-up"):
            return parts[client].deal(roster)

    def mask(client: int) -> NDArray[np.uint32]:
        with watch.part("mask"):
            own = Packing(layout, plans)  # every client finds the cells by itself
            return parts[client].mask(inboxes[client], as_words(own.pack(client, numbers[client])), own.cells)

    with watch.part("setting up"):
        parts = side_by_side(begin, everyone, threads)
        roster = Roster(b"benchmark", {client: part.public_keys for client, part in parts.items()})
        with watch.part("server"):
            packing = Packing(layout, plans)
            server = Summation(roster, rules, packing.cells, identities[0])
        deals = side_by_side(deal, everyone, threads)
        with watch.part("server"):
            for client, dealt in deals.items():
                server.take_deal(client, dealt)
            inboxes = server.end_dealing()
    row: dict[str, Figure] = {"plans": kind, "clients": clients, "cells": len(packing.cells.sizes)}
    with watch.part("the rest"):
        masked_bytes = 0
        for first in range(0, masking, threads):
            for client, words in side_by_side(mask, some[first : first + threads], threads).items():
                masked_bytes += words.nbytes
                with watch.part("server"):
                    server.take_masked(client, words)
        if masking == clients:
            survivors = server.end_masking()
            for client in survivors:
                with watch.part("signatures"):
                    consent = parts[client].agree(survivors)
                with watch.part("server"):
                    server.take_consent(client, consent)
            consents = server.end_agreeing()
            for client in survivors:
                with watch.part("signatures"):
                    told = parts[client].reveal(consents)
                with watch.part("server"):
                    server.take_revealed(client, told)
            with watch.part("server"):
                packing.unpack(server.open())
    plain = sum(each.nbytes for client in some for each in numbers[client].values()) / masking
    own = roster.keys[0]
    signed = len(own.sealing + own.masking + own.part + own.certificate) + 2 * len(own.signature)
    shares = signed + sum(len(sealed) for inbox in inboxes.values() for sealed in inbox.values()) / clients
    row |= {
        "set-up CPU s, of all": sum(watch.processor("set-up")),
        "set-up s": watch.clock("setting up"),
        "mask CPU s, of one": median(watch.processor("mask")),
        "MB plain": plain / 1e6,
        "MB masked, and shares": (masked_bytes / masking + shares) / 1e6,
        "of plain": (masked_bytes / masking + shares) / plain,
    }
    if masking < clients:
        return row | {"signatures CPU s, of one": "", "server CPU s": "", "all CPU s": "", "all s": ""}
    parts_of_all = [second for name in ("set-up", "mask", "signatures", "server") for second in watch.processor(name)]
    return row | {
        "signatures CPU s, of one": sum(watch.processor("signatures")) / clients,
        "server CPU s": sum(watch.processor("server")),
        "all CPU s": sum(parts_of_all),
        "all s": watch.clock("setting up") + watch.clock("the rest"),
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
