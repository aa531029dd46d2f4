"""Two runs of different inputs, of which the opened sums are equal, look the same to the server.

The masks of one run are shifted by the difference of the inputs, under keys that the server cannot derive. Then its
whole view is the same bit for bit. A shift maps the masks of all runs onto themselves. So with words that are uniform
and independent, which ChaCha20's stand in for, either inputs make any view equally probable.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings

from fedml_dapper.secure_sum import Rules, TooFewError
from fedml_dapper.secure_sum.fixed_point import Words
from fedml_dapper.secure_sum.keystream import Given, MaskGenerator, Stream
from fedml_dapper.secure_sum.shamir import Randomness

from .made_up_sums import Case, Transcript, cases, gone, num_holders, play


def seeded(client: int) -> Randomness:
    return np.random.default_rng(client).bytes


class Oracle:
    """Uniform words by key, the same whenever that is asked for; some ``shifted``. Remembers who asked."""

    def __init__(self, shifted: dict[bytes, Words] | None = None) -> None:
        self._shifted = shifted or {}
        self.asked: dict[int | None, list[bytes]] = {}

    def of(self, who: int | None) -> MaskGenerator:
        self.asked.setdefault(who, [])

        def mask(key: bytes) -> Stream:
            self.asked[who].append(key)
            words = np.random.default_rng(list(key)).integers(0, 2**32, 64, dtype=np.uint32)
            shift = self._shifted.get(key, np.zeros(0, dtype=np.uint32))
            words[: len(shift)] += shift
            return Given(words)

        return mask


def other_inputs(case: Case, is_open: np.ndarray, survivors: list[int]) -> Case:
    """Others with the same sums where they are opened, and any where they are not."""
    changed = case.values.view(np.uint32) + np.random.default_rng(5).integers(
        0, 2**32, case.values.shape, dtype=np.uint32
    )
    rows = [case.clients.index(client) for client in survivors]
    for coordinate in np.flatnonzero(is_open):
        holders = [row for row in rows if case.holders[row, coordinate]]
        total = case.values.view(np.uint32)[holders, coordinate].sum(dtype=np.uint32)
        changed[holders[-1], coordinate] += total - changed[holders, coordinate].sum(dtype=np.uint32)
    return replace(case, values=changed.view(np.int32))


def shifts(before: Case, after: Case, seen: Transcript, oracle: Oracle) -> dict[bytes, Words]:
    """By key, by how much masks have to differ for every masked upload to be the same."""
    sharers = sorted(seen.masked)
    survivors = gone(sharers, before.drops.masking)
    held = num_holders(before, sharers)
    layer = np.minimum(held - before.rules.min_holders, len(sharers) - before.rules.threshold)
    order = np.argsort(seen.numbers, kind="stable")
    missing = before.values.view(np.uint32) - after.values.view(np.uint32)
    found: dict[bytes, Words] = {}

    def shift(key: bytes, covered: np.ndarray, coordinate: int, by: np.uint32) -> None:
        places = [place for place in order if covered[place]]
        words = found.setdefault(key, np.zeros(len(places), dtype=np.uint32))
        words[places.index(coordinate)] += by

    for coordinate in np.flatnonzero(layer >= 0):
        holders = [client for client in sharers if before.holders[before.clients.index(client), coordinate]]
        path = [client for client in holders if client in survivors and seen.is_open()[coordinate]]
        carried = np.uint32(0)
        for client, following in pairwise(path):  # along pairs of survivors, whose keys stay theirs
            rows = [before.clients.index(each) for each in (client, following)]
            carried = carried + missing[rows[0], coordinate]
            [key] = set(oracle.asked[client]) & set(oracle.asked[following])
            shift(key, before.holders[rows].all(axis=0) & (layer >= 0), coordinate, carried)
        for client in set(holders) - set(path):  # masks of their own, whose seeds stay theirs
            row = before.clients.index(client)
            key = oracle.asked[client][layer[coordinate]]
            shift(key, before.holders[row] & (layer == layer[coordinate]), coordinate, missing[row, coordinate])
    return found


@pytest.mark.nightly
@settings(max_examples=100, deadline=None)
@given(cases())
def test_equal_sums_look_the_same(case: Case) -> None:
    oracle = Oracle()
    try:
        with np.errstate(over="ignore"):
            seen = play(case, seeded, oracle.of)
            survivors = gone(seen.masked, case.drops.masking)
            other = other_inputs(case, seen.is_open(), survivors)
            shifted = shifts(case, other, seen, oracle)
    except TooFewError:
        assume(False)
    assert shifted.keys().isdisjoint(oracle.asked[None])  # the server never learns a key of what is shifted
    again = play(other, seeded, Oracle(shifted).of)
    assert (again.keys, again.deals, again.revealed) == (seen.keys, seen.deals, seen.revealed)
    assert all(np.array_equal(again.masked[client], seen.masked[client]) for client in seen.masked)
    assert np.array_equal(again.sums(), seen.sums())


def test_unequal_sums_do_not() -> None:
    """Or the test above would prove nothing."""
    one, two = (
        Case(np.ones((3, 4), dtype=bool), np.full((3, 4), value, dtype=np.int32), Rules(2, 2)) for value in (1, 2)
    )
    assert not np.array_equal(play(one, seeded).sums(), play(two, seeded).sums())


@pytest.mark.parametrize("client", [0, 3, 6])
def test_what_is_sent_looks_like_chance(client: int) -> None:
    """Without a mask of its own, or of pairs, zeros would show."""
    case = Case(np.ones((3, 20_000), dtype=bool), np.zeros((3, 20_000), dtype=np.int32), Rules(2, 2))
    masked = play(case).masked[client]
    bits = np.unpackbits(masked.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / len(bits) ** 0.5
    assert len(np.unique(masked)) > 19_900
