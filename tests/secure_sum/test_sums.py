"""Secure sums are the plain ones bit for bit, of those they name, or there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from fedml_dapper.errors import ProtocolError
from fedml_dapper.secure_sum import Roster, Rules, Summation, TooFewError, cells_of
from fedml_dapper.secure_sum.keys import KeyPair
from fedml_dapper.secure_sum.protocol import point_of
from fedml_dapper.secure_sum.seeds import commitment, following
from fedml_dapper.secure_sum.shamir import Recombination

from .identities import people
from .made_up_sums import (
    Case,
    Drops,
    Transcript,
    cases,
    gone,
    num_holders,
    participants,
    plain_sum,
    play,
    roster_of,
)


def left_at(case: Case) -> tuple[list[int], list[int], list[int], list[int]]:
    """Who deals, who survives, who signs, and who tells shares."""
    sharers = gone(case.clients, case.drops.dealing)
    survivors = gone(sharers, case.drops.masking)
    return (
        sharers,
        survivors,
        gone(survivors, case.drops.agreeing),
        gone(survivors, case.drops.agreeing | case.drops.revealing),
    )


@settings(max_examples=150, deadline=None)
@given(cases())
def test_equals_the_plain_sum_of_those_it_names_and_below_the_threshold_there_is_none(case: Case) -> None:
    sharers, survivors, signers, tellers = left_at(case)
    if min(map(len, (sharers, survivors, signers, tellers))) < case.rules.threshold:
        with pytest.raises(TooFewError, match="and the threshold is"):
            play(case)
        return
    seen = play(case)
    assert seen.opened is not None
    assert list(seen.opened.clients) == survivors
    expected = np.where(seen.is_open(), plain_sum(case, survivors), 0)
    assert np.array_equal(seen.sums(), expected)
    lost = len(sharers) - len(survivors)
    assert np.array_equal(seen.is_open(), num_holders(case, sharers) - lost >= case.rules.min_holders)
    assert (num_holders(case, survivors)[seen.is_open()] >= case.rules.min_holders).all()


@settings(max_examples=50, deadline=None)
@given(cases())
def test_what_too_few_hold_is_not_even_sent(case: Case) -> None:
    case = replace(case, drops=Drops())
    sent = num_holders(case, case.clients) >= case.rules.min_holders
    seen = play(case)
    for number, client in enumerate(case.clients):
        assert len(seen.masked[client]) == int((case.holders[number] & sent).sum())


NONE = Drops()


def dense(count: int, coordinates: int = 5, threshold: int = 3, min_holders: int = 2, drops: Drops = NONE) -> Case:
    values = np.random.default_rng(7).integers(-1000, 1000, (count, coordinates), dtype=np.int32)
    return Case(np.ones((count, coordinates), dtype=bool), values, Rules(threshold, min_holders), drops)


def test_a_client_tells_one_of_a_peers_two_secrets_and_once() -> None:
    case = dense(4)
    parts = participants(case.clients, case.rules)
    roster = roster_of(parts)
    cells, _ = cells_of(case.clients, np.full((1, 1), 0b1111, dtype=np.uint64), np.array([5]))
    server = Summation(roster, case.rules, cells, people(case.clients)[0])
    for client, part in parts.items():
        server.take_deal(client, part.deal(roster))
    for client, inbox in server.end_dealing().items():
        parts[client].mask(inbox, np.zeros(5, dtype=np.uint32), cells)
    consents = {client: parts[client].agree([0, 3, 6]) for client in (0, 3, 6)}
    told = parts[0].reveal(consents)
    assert told.seeds.keys() == {0, 3, 6}
    assert told.keys.keys() == {9}
    for survivors in ([0, 3, 6], [0, 3, 9], [0, 3, 6, 9]):
        with pytest.raises(ProtocolError, match="never again"):
            parts[0].agree(survivors)
    with pytest.raises(ProtocolError, match="never again"):
        parts[0].reveal(consents)


@pytest.mark.parametrize("survivors", [[0, 3], [3, 6, 9], [0, 3, 6, 12]])
def test_who_is_asked_for_what_no_honest_server_asks_tells_nothing_more(survivors: list[int]) -> None:
    """Too few; without the client that is asked; a stranger."""
    case = dense(4)
    parts = participants(case.clients, case.rules)
    roster = roster_of(parts)
    cells, _ = cells_of(case.clients, np.full((1, 1), 0b1111, dtype=np.uint64), np.array([5]))
    deals = {client: part.deal(roster) for client, part in parts.items()}
    parts[0].mask({peer: deals[peer].sealed[0] for peer in (3, 6, 9)}, np.zeros(5, dtype=np.uint32), cells)
    with pytest.raises(ProtocolError):
        parts[0].agree(survivors)
    with pytest.raises(ProtocolError, match="never again"):
        parts[0].agree([0, 3, 6, 9])


@pytest.mark.parametrize("threshold", [3, 4])
def test_of_what_clients_tell_one_share_less_than_the_threshold_opens_nothing(threshold: int) -> None:
    """Neither a survivor's seed, which is the one that it committed to, nor the key of one that dropped out."""
    seen = play(dense(5, threshold=threshold, drops=Drops(masking=frozenset({12}))))
    seeds_left = 5 - threshold  # of a seed for each client that may drop out, and one more, but for the first

    def secrets(tellers: int) -> tuple[bytes, bytes]:
        told = dict(list(seen.revealed.items())[:tellers])
        opened = Recombination([point_of(teller) for teller in told])
        seed = opened.secret({point_of(teller): each.seeds[0] for teller, each in told.items()})
        key = opened.secret({point_of(teller): each.keys[12] for teller, each in told.items()})
        return commitment(following(seed, seeds_left)[-1]), KeyPair(key).public

    expected = seen.deals[0].commitment, seen.keys[12].masking
    assert secrets(threshold) == expected
    assert not set(secrets(threshold - 1)) & set(expected)


def again(case: Case, seen: Transcript) -> Summation:
    """A server that begins to hear the same."""
    assert seen.cells is not None
    return Summation(Roster(b"made up", seen.keys), case.rules, seen.cells, people(case.clients)[0])


def test_a_sum_opens_once() -> None:
    case = dense(4)
    seen = play(case)
    server = again(case, seen)
    for client, deal in seen.deals.items():
        server.take_deal(client, deal)
    server.end_dealing()
    for client, masked in seen.masked.items():
        server.take_masked(client, masked)
    with pytest.raises(ProtocolError, match="not due now"):
        server.take_masked(0, seen.masked[0])
    server.end_masking()
    for client, consent in seen.consents.items():
        server.take_consent(client, consent)
    server.end_agreeing()
    for client, revealed in seen.revealed.items():
        server.take_revealed(client, revealed)
    server.open()
    with pytest.raises(AssertionError):
        server.open()


def test_rules_are_the_clients_own() -> None:
    parts = participants(range(6), Rules(3, 2))
    part, keys = parts[0], roster_of(parts).keys
    with pytest.raises(ProtocolError, match="3 is not more than half of 6"):
        part.deal(Roster(b"", keys))
    with pytest.raises(ProtocolError, match="never again"):
        part.deal(Roster(b"", dict(list(keys.items())[:5])))
    with pytest.raises(TooFewError):
        participants(range(6), Rules(3, 2))[0].deal(Roster(b"", dict(list(keys.items())[:2])))
    with pytest.raises(ProtocolError, match="own keys"):
        participants(range(6), Rules(3, 2))[0].deal(Roster(b"", dict(list(keys.items())[:3])))
    fresh = participants(range(6), Rules(3, 2))[0]
    with pytest.raises(ProtocolError, match="the same"):
        fresh.deal(Roster(b"", {0: fresh.public_keys, 1: keys[1], 2: keys[1]}))


def test_shares_for_another_sum_or_another_client_are_not_read() -> None:
    case = dense(3)
    parts = participants(case.clients, case.rules)
    roster = roster_of(parts)
    cells, _ = cells_of(case.clients, np.full((1, 1), 0b111, dtype=np.uint64), np.array([5]))
    deals = {client: part.deal(roster) for client, part in parts.items()}
    swapped = {3: deals[3].sealed[6], 6: deals[6].sealed[0]}
    with pytest.raises(ProtocolError, match="not sealed for this client"):
        parts[0].mask(swapped, np.zeros(5, dtype=np.uint32), cells)


@pytest.mark.parametrize("wrong", ["seeds", "keys"])
def test_a_wrong_share_is_noticed_and_gives_no_sum(wrong: str) -> None:
    case = dense(4, drops=Drops(masking=frozenset({9})))
    seen = play(case)
    server = again(case, seen)
    for client, deal in seen.deals.items():
        server.take_deal(client, deal)
    server.end_dealing()
    for client, masked in seen.masked.items():
        if client != 9:
            server.take_masked(client, masked)
    server.end_masking()
    for client, consent in seen.consents.items():
        server.take_consent(client, consent)
    server.end_agreeing()
    for client, revealed in seen.revealed.items():
        shares = {"seeds": revealed.seeds, "keys": revealed.keys}
        if client == 3:
            shares[wrong] = {peer: bytes(33) for peer in shares[wrong]}
        server.take_revealed(client, replace(revealed, **shares))
    with pytest.raises(ProtocolError, match="shares"):
        server.open()


def test_cells_of_more_clients_than_a_word_has_bits() -> None:
    held = np.random.default_rng(3).random((70, 900)) < 0.5
    bits = np.zeros((2, 900), dtype=np.uint64)
    for client in range(70):
        bits[client // 64] |= held[client].astype(np.uint64) << np.uint64(client % 64)
    cells, numbers = cells_of(range(70), bits, np.full(900, 2))
    assert np.array_equal(cells.members[numbers].T, held)
    assert cells.sizes.sum() == 1800


def test_who_is_asked_to_deal_twice_takes_no_further_step() -> None:
    """As by a server that would have other keys and cells used in the place of those that were checked."""
    case = dense(4)
    parts = participants(case.clients, case.rules)
    roster = roster_of(parts)
    cells, _ = cells_of(case.clients, np.full((1, 1), 0b1111, dtype=np.uint64), np.array([5]))
    deals = {client: part.deal(roster) for client, part in parts.items()}
    with pytest.raises(ProtocolError, match="asked to deal at a time when a client masks"):
        parts[0].deal(roster)
    with pytest.raises(ProtocolError, match="never again"):
        parts[0].mask({peer: deals[peer].sealed[0] for peer in (3, 6, 9)}, np.zeros(5, dtype=np.uint32), cells)
