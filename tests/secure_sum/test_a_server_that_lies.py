"""A server that lies: whatever it tells whom, shares leave for one list of survivors alone, which enough signed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from fedml_dapper.errors import ProtocolError
from fedml_dapper.secure_sum import (
    Cells,
    Consent,
    Deal,
    Participant,
    PublicKeys,
    Revealed,
    Roster,
    Rules,
    cells_of,
)
from fedml_dapper.secure_sum.cells import Places
from fedml_dapper.secure_sum.keystream import ChaCha20Stream, add
from fedml_dapper.secure_sum.seeds import mask_key
from fedml_dapper.secure_sum.signatures import statement_of_keys, statement_of_survivors

from ..grids import sampled
from .identities import Person, people
from .made_up_sums import ABOUT, PART, Case, Drops, num_holders, participants, plain_sum, play, roster_of

SETTINGS = [
    (count, threshold, holders)
    for count in range(3, 13)
    for threshold in range(count // 2 + 1, count + 1)
    for holders in (2, min(3, threshold))
]


@dataclass
class LyingServer:
    """One that has brought honest clients up to where masked uploads are in."""

    count: int
    rules: Rules
    parts: dict[int, Participant] = field(init=False)
    roster: Roster = field(init=False)
    cells: Cells = field(init=False)
    deals: dict[int, Deal] = field(init=False)
    told: dict[int, Revealed] = field(default_factory=dict)
    """All shares that it got out of clients."""

    def __post_init__(self) -> None:
        self.parts = participants(range(self.count), self.rules)
        self.roster = roster_of(self.parts)
        everybody = np.full((1, 1), (1 << self.count) - 1, dtype=np.uint64)
        self.cells, _ = cells_of(range(self.count), everybody, np.array([4]))
        self.deals = {client: part.deal(self.roster) for client, part in self.parts.items()}
        for client, part in self.parts.items():
            inbox = {peer: deal.sealed[client] for peer, deal in self.deals.items() if peer != client}
            part.mask(inbox, np.zeros(4, dtype=np.uint32), self.cells)

    def signed(self, views: Mapping[int, Collection[int]]) -> dict[int, Consent]:
        """What clients sign that are each told a list of survivors of their own."""
        return {client: self.parts[client].agree(view) for client, view in views.items()}

    def ask(self, client: int, consents: Mapping[int, Consent]) -> None:
        self.told[client] = self.parts[client].reveal(consents)


@pytest.mark.parametrize(("count", "threshold", "holders"), sampled(SETTINGS, always=("5",)))
def test_two_lists_of_survivors_open_at_most_one_sum(count: int, threshold: int, holders: int) -> None:
    """The attack on both halves: some are told that others dropped out, and the others that all are there."""
    server = LyingServer(count, Rules(threshold, holders))
    small, everybody = range(threshold), range(count)
    views = {client: small if client < threshold // 2 else everybody for client in everybody}
    consents = server.signed(views)
    for client, view in views.items():
        of_this_view = {peer: consent for peer, consent in consents.items() if peer in view and views[peer] == view}
        for offered in (of_this_view, {peer: consents[peer] for peer in view}):
            with suppress(ProtocolError):
                server.ask(client, offered)
    by_view = {tuple(views[client]) for client in server.told}
    assert len(by_view) <= 1
    for revealed in server.told.values():  # and of each client one kind of secret alone
        assert not revealed.seeds.keys() & revealed.keys.keys()


@pytest.mark.parametrize("count", range(3, 13))
def test_without_enough_signatures_no_share_leaves(count: int) -> None:
    threshold = count // 2 + 1
    server = LyingServer(count, Rules(threshold, 2))
    consents = server.signed(dict.fromkeys(range(threshold), range(threshold)))
    too_few = {signer: consents[signer] for signer in range(threshold - 1)}
    for client in range(threshold):
        with pytest.raises(ProtocolError, match=f"{threshold - 1} clients have signed this list of survivors"):
            server.ask(client, too_few)
    assert server.told == {}


@pytest.mark.parametrize(("count", "threshold", "holders"), sampled(SETTINGS, always=("5",)))
def test_the_shortest_list_opens_no_weight_that_too_few_on_it_hold(count: int, threshold: int, holders: int) -> None:
    """Weights that one client holds, that two hold, and so on; all are told that as many dropped out as may."""
    held = np.arange(count)[:, None] <= np.arange(count)
    held = np.concatenate([held, held[::-1]], axis=1)
    values = np.arange(held.size, dtype=np.int32).reshape(held.shape)
    dropped = frozenset(3 * client for client in range(threshold, count))
    case = Case(held, values, Rules(threshold, holders), Drops(masking=dropped))
    seen = play(case)
    survivors = case.clients[:threshold]
    is_open = seen.is_open()
    assert (num_holders(case, survivors)[is_open] >= holders).all()
    assert np.array_equal(seen.sums()[is_open], plain_sum(case, survivors)[is_open])


def of_another_sum(server: LyingServer) -> dict[int, Consent]:
    """A list that was signed before, in a sum of the same clients."""
    return LyingServer(server.count, server.rules).signed(dict.fromkeys(range(5), range(5)))


def by_strangers(server: LyingServer) -> dict[int, Consent]:
    """Signed by the server itself."""
    forger = people([99])[99]
    return {client: Consent(forger.sign(b"whatever")) for client in range(5)}


def one_told_twice(server: LyingServer) -> dict[int, Consent]:
    consents = server.signed(dict.fromkeys(range(1, 4), range(5)))
    return dict.fromkeys(range(5), consents[1])


@pytest.mark.parametrize("lie", [of_another_sum, by_strangers, one_told_twice])
def test_signatures_count_for_their_own_list_and_client(lie: Callable[[LyingServer], dict[int, Consent]]) -> None:
    server = LyingServer(5, Rules(3, 2))
    offered = lie(server)
    server.parts[0].agree(range(5))
    with pytest.raises(ProtocolError, match=r"client \d has not signed this"):
        server.ask(0, offered)
    with pytest.raises(ProtocolError, match="never again"):
        server.ask(0, offered)


def test_a_list_does_not_shrink_once_it_is_signed() -> None:
    server = LyingServer(5, Rules(3, 2))
    consents = server.signed(dict.fromkeys(range(5), range(5)))
    server.ask(0, consents)
    for client in (0, 1):
        with pytest.raises(ProtocolError, match="never again"):
            server.parts[client].agree(range(3))


@pytest.mark.parametrize("what", ["sealing", "masking", "part", "certificate", "signature"])
def test_in_the_middle_nothing_of_a_client_s_keys_can_be_changed(what: str) -> None:
    """Nobody seals a share to keys that their owner has not signed."""
    parts = participants(range(5), Rules(3, 2))
    others = people(range(10, 15))[10]
    keys = dict(roster_of(parts).keys)
    changed = {"certificate": others.certificate, "signature": others.sign(b"whatever")}
    keys[3] = replace(keys[3], **{what: changed.get(what, bytes(range(32)))})
    with pytest.raises(ProtocolError, match="client 3"):
        parts[0].deal(Roster(b"made up", keys))
    with pytest.raises(ProtocolError, match="never again"):
        parts[0].deal(roster_of(parts))


def test_keys_of_another_round_are_no_keys_of_this_one() -> None:
    identities = people(range(3))
    before = {client: Participant(client, Rules(2, 2), each, b"round 1", PART) for client, each in identities.items()}
    now = Participant(0, Rules(2, 2), identities[0], ABOUT, PART)
    keys = {0: now.public_keys, 1: before[1].public_keys, 2: before[2].public_keys}
    with pytest.raises(ProtocolError, match="client 1 has not signed this"):
        now.deal(Roster(b"made up", keys))


@pytest.mark.parametrize(("count", "threshold", "holders"), SETTINGS)
def test_so_many_may_help_a_server_and_no_more(count: int, threshold: int, holders: int) -> None:
    """Those who help sign both lists; everybody else signs one."""
    allies = Rules(threshold, holders).allies(count)

    def is_safe(helping: int) -> bool:
        return 2 * (threshold - helping) > count - helping and holders - helping >= 2

    assert is_safe(allies)
    assert not is_safe(allies + 1)


class Signing(Person):
    """A client who remembers what it has signed."""

    def __init__(self, client: int, certificates: Mapping[int, bytes]) -> None:
        super().__init__(client, certificates)
        self.signed: list[bytes] = []

    def sign(self, statement: bytes) -> bytes:
        self.signed.append(statement)
        return super().sign(statement)


def test_what_is_signed_is_written_down_first_and_what_cannot_be_is_not_signed() -> None:
    server = LyingServer(3, Rules(2, 2))
    promised = list[bytes]()

    def refuse(statement: bytes) -> None:
        promised.append(statement)
        assert signing.signed == []
        raise ProtocolError("another list was signed in this round")

    signing = Signing(0, {})
    server.parts[0]._identity = signing
    server.parts[0]._promise = refuse
    with pytest.raises(ProtocolError, match="another list was signed"):
        server.parts[0].agree(range(3))
    assert len(promised) == 1
    with pytest.raises(ProtocolError, match="never again"):
        server.ask(0, {})
    assert signing.signed == []


def test_a_list_of_survivors_is_of_those_who_dealt() -> None:
    """Whoever was told other sharers has masked otherwise, and its word does not count among theirs."""
    parts = participants(range(5), Rules(3, 2))
    roster = roster_of(parts)
    cells, _ = cells_of(range(5), np.full((1, 1), 31, dtype=np.uint64), np.array([4]))
    deals = {client: part.deal(roster) for client, part in parts.items()}
    for client, part in parts.items():
        told = range(5) if client < 2 else range(4)
        inbox = {peer: deals[peer].sealed[client] for peer in told if peer != client}
        part.mask(inbox, np.zeros(4, dtype=np.uint32), cells)
    consents = {client: parts[client].agree(range(3)) for client in range(3)}
    with pytest.raises(ProtocolError, match="client 2 has not signed this"):
        parts[0].reveal(consents)


def test_signatures_of_others_than_survivors_do_not_count() -> None:
    server = LyingServer(5, Rules(3, 2))
    consents = server.signed(dict.fromkeys(range(3), range(3)))
    with pytest.raises(ProtocolError, match="others than survivors are said to have signed"):
        server.ask(0, {**consents, 4: consents[2]})


def test_nobody_masks_among_fewer_than_the_threshold() -> None:
    parts = participants(range(5), Rules(3, 2))
    roster = roster_of(parts)
    deals = {client: part.deal(roster) for client, part in parts.items()}
    cells, _ = cells_of(range(5), np.full((1, 1), 31, dtype=np.uint64), np.array([4]))
    with pytest.raises(ProtocolError, match="2 clients have dealt, and the threshold is 3"):
        parts[0].mask({1: deals[1].sealed[0]}, np.zeros(4, dtype=np.uint32), cells)


def test_more_clients_than_a_round_has_do_not_sum() -> None:
    """Of five who are protected from one ally, nine could be told two lists."""
    parts = participants(range(9), Rules(5, 3, most_clients=5))
    with pytest.raises(ProtocolError, match="9 clients are to sum, and a round of this experiment has 5"):
        parts[0].deal(roster_of(parts))


def twin_of(key: bytes, how: str) -> bytes:
    """Another public key that agrees with everybody else's as ``key`` does: X25519 ignores the highest bit, and the
    point 1/u differs from u by one of small order."""
    number = int.from_bytes(key, "little")
    return (number | 1 << 255 if how == "bit" else pow(number, -1, 2**255 - 19)).to_bytes(32, "little")


@pytest.mark.parametrize("how", ["bit", "point"])
def test_an_ally_that_takes_a_twin_of_another_s_key_takes_no_mask_off(how: str) -> None:
    """Else the masks of two pairs would cancel within one upload, of which the server knows the seed later."""
    parts = participants(range(3), Rules(3, 3))
    victim, between, ally = 0, 1, 2
    keys = dict(roster_of(parts).keys)
    theirs = replace(keys[ally], masking=twin_of(keys[victim].masking, how))
    signature = people(range(3))[ally].sign(statement_of_keys(ABOUT, ally, theirs))
    keys[ally] = parts[ally].public_keys = replace(theirs, signature=signature)
    roster = Roster(b"made up", keys)
    deals = {client: part.deal(roster) for client, part in parts.items()}
    cells, _ = cells_of(range(3), np.full((1, 1), 7, dtype=np.uint64), np.array([4]))
    inbox = {peer: deals[peer].sealed[between] for peer in (victim, ally)}
    values = np.arange(4, dtype=np.uint32)
    masked = parts[between].mask(inbox, values, cells)
    own = np.zeros(4, dtype=np.uint32)
    everywhere = Places(np.array([4]), np.array([True]))
    add(own, everywhere, ChaCha20Stream(mask_key(parts[between]._first_seed)))
    assert not np.array_equal(masked - own, values)


KEYS = PublicKeys(bytes(32), bytes([1] * 32), bytes([2] * 32), b"a certificate")


def test_what_is_signed_says_all_that_it_is_about() -> None:
    def of_keys(about: bytes = b"about", client: int = 1, keys: PublicKeys = KEYS) -> bytes:
        return statement_of_keys(about, client, keys)

    def of_list(context: bytes = b"sum", part: bytes = KEYS.part, sharers: str = "123", left: str = "12") -> bytes:
        roster = Roster(context, {1: replace(KEYS, part=part)})
        return statement_of_survivors(roster, map(int, sharers), map(int, left))

    other = bytes([9] * 32)
    told = [
        of_keys(), of_keys(about=b"another"), of_keys(client=2), of_keys(keys=replace(KEYS, sealing=other)),
        of_keys(keys=replace(KEYS, masking=other)), of_keys(keys=replace(KEYS, part=other)),
        of_list(), of_list(context=b"another"), of_list(part=other), of_list(sharers="1234"), of_list(left="123"),
        of_list(sharers="12", left="123"),
    ]  # fmt: skip
    assert len(set(told)) == len(told)
    assert len({statement[:60] for statement in (of_keys(), of_list())}) == 2
