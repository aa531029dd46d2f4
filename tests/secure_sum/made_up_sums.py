"""Secure sums over a few made-up coordinates, with clients that drop out at any step."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedml_dapper.secure_sum import (
    Cells,
    Consent,
    Deal,
    Opened,
    Participant,
    PublicKeys,
    Revealed,
    Roster,
    Rules,
    Summation,
    cells_of,
)
from fedml_dapper.secure_sum.fixed_point import Words
from fedml_dapper.secure_sum.keystream import ChaCha20Stream, MaskGenerator
from fedml_dapper.secure_sum.shamir import Randomness

from .identities import people

ABOUT, PART = b"a made-up round", bytes(32)


@dataclass(frozen=True)
class Drops:
    """Who is gone before which step; what those send who are gone before masking comes too late."""

    dealing: frozenset[int] = frozenset()
    masking: frozenset[int] = frozenset()
    agreeing: frozenset[int] = frozenset()
    revealing: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Case:
    """Clients that hold coordinates, and what of it goes wrong."""

    holders: NDArray[np.bool_]
    """Shape (clients, coordinates)."""
    values: NDArray[np.int32]
    """The same; only what is held counts."""
    rules: Rules
    drops: Drops = Drops()

    @property
    def clients(self) -> list[int]:
        return [3 * number for number in range(len(self.holders))]  # ids need not be neighbours


@dataclass
class Transcript:
    """All that a server sees of a sum."""

    keys: dict[int, PublicKeys] = field(default_factory=dict)
    deals: dict[int, Deal] = field(default_factory=dict)
    masked: dict[int, Words] = field(default_factory=dict)
    consents: dict[int, Consent] = field(default_factory=dict)
    revealed: dict[int, Revealed] = field(default_factory=dict)
    opened: Opened | None = None
    cells: Cells | None = None
    numbers: NDArray[np.intp] | None = None

    def sums(self) -> NDArray[np.int64]:
        """What was opened, coordinate by coordinate."""
        assert self.opened is not None
        assert self.numbers is not None
        found = np.zeros(len(self.numbers), dtype=np.int64)
        found[np.argsort(self.numbers, kind="stable")] = self.opened.totals
        return found

    def is_open(self) -> NDArray[np.bool_]:
        assert self.opened is not None
        assert self.numbers is not None
        return self.opened.cells[self.numbers]


def play(
    case: Case,
    randomness: Callable[[int], Randomness] = lambda client: os.urandom,
    masks: Callable[[int | None], MaskGenerator] = lambda client: ChaCha20Stream,
) -> Transcript:
    """The whole protocol; raises :class:`TooFewError` where it ends early. ``randomness`` and ``masks`` are those of
    each client, and None stands for the server."""
    seen, clients, drops = Transcript(), case.clients, case.drops
    bits = np.uint64(1) << np.arange(len(clients), dtype=np.uint64)
    sets = (case.holders.astype(np.uint64) * bits[:, None]).sum(axis=0, dtype=np.uint64)[None]
    cells, numbers = cells_of(clients, sets, np.ones(case.holders.shape[1], dtype=np.int64))
    seen.cells, seen.numbers = cells, numbers
    identities = people(clients)
    parts = {
        client: Participant(
            client, case.rules, identities[client], ABOUT, PART, randomness=randomness(client), masks=masks(client)
        )
        for client in clients
    }
    seen.keys = {client: part.public_keys for client, part in parts.items()}
    roster = Roster(b"made up", seen.keys)
    server = Summation(roster, case.rules, cells, identities[clients[0]], masks(None))
    for client in gone(clients, drops.dealing):
        seen.deals[client] = parts[client].deal(roster)
        server.take_deal(client, seen.deals[client])
    inboxes = server.end_dealing()
    for client in inboxes:
        number = clients.index(client)
        order = np.argsort(numbers, kind="stable")
        mine = case.values[number][order][case.holders[number][order]].view(np.uint32)
        seen.masked[client] = parts[client].mask(inboxes[client], mine, cells)
        if client not in drops.masking:
            server.take_masked(client, seen.masked[client])
    survivors = server.end_masking()
    for client in gone(survivors, drops.agreeing):
        seen.consents[client] = parts[client].agree(survivors)
        server.take_consent(client, seen.consents[client])
    consents = server.end_agreeing()
    for client in gone(consents, drops.revealing):
        seen.revealed[client] = parts[client].reveal(consents)
        server.take_revealed(client, seen.revealed[client])
    seen.opened = server.open()
    return seen


def participants(clients: Collection[int], rules: Rules) -> dict[int, Participant]:
    """These clients, who know each other's certificates."""
    return {client: Participant(client, rules, identity, ABOUT, PART) for client, identity in people(clients).items()}


def roster_of(parts: Mapping[int, Participant]) -> Roster:
    return Roster(b"made up", {client: part.public_keys for client, part in parts.items()})


def gone(clients: Collection[int], without: Collection[int]) -> list[int]:
    return [client for client in clients if client not in without]


def plain_sum(case: Case, clients: Collection[int]) -> NDArray[np.int64]:
    """Over these clients, without any masks."""
    numbers = [case.clients.index(client) for client in clients]
    return (case.values * case.holders)[numbers].sum(axis=0, dtype=np.int64)


def num_holders(case: Case, clients: Collection[int]) -> NDArray[np.int64]:
    return case.holders[[case.clients.index(client) for client in clients]].sum(axis=0)


@st.composite
def cases(draw: st.DrawFn, most_clients: int = 6) -> Case:
    count = draw(st.integers(2, most_clients))
    coordinates = draw(st.integers(1, 12))
    seed = draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    holders = generator.random((count, coordinates)) < draw(st.sampled_from([0.3, 0.7, 1.0]))
    values = generator.integers(-(2**31 // count), 2**31 // count, (count, coordinates), dtype=np.int32)
    rules = Rules(draw(st.integers(count // 2 + 1, count)), draw(st.integers(2, 4)))
    clients = [3 * number for number in range(count)]
    some = st.frozensets(st.sampled_from(clients), max_size=draw(st.integers(0, 2)))
    return Case(holders, values, rules, Drops(draw(some), draw(some), draw(some), draw(some)))
