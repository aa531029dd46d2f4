"""The server's side of one secure sum."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedml_dapper.errors import ProtocolError
from fedml_dapper.secure_sum.cells import Cells, Chosen, Places
from fedml_dapper.secure_sum.fixed_point import Words, as_numbers
from fedml_dapper.secure_sum.keys import KeyPair
from fedml_dapper.secure_sum.keystream import ChaCha20Stream, Given, MaskGenerator, add
from fedml_dapper.secure_sum.protocol import (
    Consent,
    Deal,
    Revealed,
    Roster,
    Rules,
    TooFewError,
    pair_purpose,
    point_of,
)
from fedml_dapper.secure_sum.seeds import commitment, following, layers, mask_key
from fedml_dapper.secure_sum.shamir import SHARE_BYTES, Recombination
from fedml_dapper.secure_sum.signatures import Witness, statement_of_survivors

_SEALED_EXTRA = 16
"""Bytes that sealing adds to shares."""


@dataclass(frozen=True, eq=False)
class Opened:
    """An opened sum."""

    clients: tuple[int, ...]
    """Clients whose values are in the sum, ascending."""
    cells: Chosen
    """Cells that were opened."""
    totals: NDArray[np.int64]
    """Sums of all coordinates, in the order of cells; 0 where they were not opened."""


class Summation:
    """A sum over the clients of a ``roster``, which hold these ``cells``.

    It takes four steps: dealing, masking, agreeing, revealing; in each, call the ``take_`` method for every client's
    message and then the ``end_`` method, and :meth:`open` at last. Masked values are added as they come and not kept.

    Methods raise :class:`ProtocolError`, with nothing changed, for a message that a client may not send, and
    :class:`TooFewError` where a step ends with fewer clients than the threshold.
    """

    def __init__(
        self, roster: Roster, rules: Rules, cells: Cells, witness: Witness, masks: MaskGenerator = ChaCha20Stream
    ) -> None:
        roster.check(rules)
        self.roster = roster
        self._rules = rules
        self._cells = cells
        self._witness = witness
        self._masks = masks
        self._deals: dict[int, Deal] = {}
        self._totals: Words = np.zeros(int(cells.sizes.sum()), dtype=np.uint32)
        self._layers = layers(cells, roster.keys, rules)
        self._sharers: tuple[int, ...] = ()
        self._survivors: set[int] = set()
        self._consents: dict[int, Consent] = {}
        self._revealed: dict[int, Revealed] = {}
        self._step = 0

    def take_deal(self, client: int, deal: Deal) -> None:
        """Take a client's shares for the others."""
        self._expect(0, client in self.roster.keys and client not in self._deals, client, "shares")
        length = SHARE_BYTES * (1 + self.roster.num_layers(self._rules)) + _SEALED_EXTRA
        fits = all(len(sealed) == length for sealed in deal.sealed.values())
        if deal.sealed.keys() != self.roster.keys.keys() - {client} or not fits:
            raise ProtocolError(f"client {client} has not dealt as many shares as it has to, to everyone")
        self._deals[client] = deal

    def end_dealing(self) -> Mapping[int, Mapping[int, bytes]]:
        """End the first step, and return the sealed shares for each client that has dealt, by receiver and sender.

        Clients that have not dealt are out.
        """
        self._end(0, self._deals, "have dealt shares")
        self._sharers = tuple(sorted(self._deals))
        self._layers = layers(self._cells, self._sharers, self._rules)
        return {
            receiver: {sender: self._deals[sender].sealed[receiver] for sender in self._sharers if sender != receiver}
            for receiver in self._sharers
        }

    def length_for(self, client: int) -> int:
        """Return the number of words that the client is to send."""
        return Places(self._cells.sizes, self._sent_by(client)).count

    def take_masked(self, client: int, masked: Words) -> None:
        """Add a client's masked values to the sum."""
        self._expect(1, client in self._sharers and client not in self._survivors, client, "a masked upload")
        if masked.shape != (self.length_for(client),):
            raise ProtocolError(f"client {client} sent {masked.size} words; it was to send {self.length_for(client)}")
        add(self._totals, Places(self._cells.sizes, self._sent_by(client)), Given(masked))
        self._survivors.add(client)

    def end_masking(self) -> Collection[int]:
        """End the second step, and return the survivors, over whom the sum will be.

        Clients that have not sent their values are out.
        """
        self._end(1, self._survivors, "have sent their part")
        return sorted(self._survivors)

    def take_consent(self, client: int, consent: Consent) -> None:
        """Take a survivor's signature of the list of survivors."""
        self._expect(2, client in self._survivors and client not in self._consents, client, "a signature")
        statement = statement_of_survivors(self.roster, self._sharers, self._survivors)
        self._witness.check(client, self.roster.keys[client].certificate, statement, consent.signature)
        self._consents[client] = consent

    def end_agreeing(self) -> Mapping[int, Consent]:
        """End the third step, and return all signatures, for those that have signed. Others reveal no shares."""
        self._end(2, self._consents, "have signed the list of survivors")
        return self._consents

    def take_revealed(self, client: int, revealed: Revealed) -> None:
        """Take a survivor's shares of others' secrets."""
        self._expect(3, client in self._consents and client not in self._revealed, client, "shares of secrets")
        lost = set(self._sharers) - self._survivors
        shares = (*revealed.seeds.values(), *revealed.keys.values())
        fits = all(len(share) == SHARE_BYTES for share in shares)
        if revealed.seeds.keys() != self._survivors or revealed.keys.keys() != lost or not fits:
            raise ProtocolError(f"client {client} has not told the shares that it was asked for")
        self._revealed[client] = revealed

    @property
    def can_open(self) -> bool:
        """Whether enough survivors have revealed their shares."""
        return self._step == 3 and len(self._revealed) >= self._rules.threshold

    def open(self) -> Opened:
        """Remove the masks, and return the sum; can be called once."""
        self._end(3, self._revealed, "have told their shares")
        revealers = sorted(self._revealed)[: self._rules.threshold]  # any ``threshold`` shares give the same secrets
        recombination = Recombination([point_of(revealer) for revealer in revealers])
        lost = sorted(set(self._sharers) - self._survivors)
        opened = self._layers >= len(lost)
        for client in sorted(self._survivors):
            shares = {point_of(revealer): self._revealed[revealer].seeds[client] for revealer in revealers}
            self._remove_own_mask(client, recombination.secret(shares), len(lost))
        for client in lost:
            shares = {point_of(revealer): self._revealed[revealer].keys[client] for revealer in revealers}
            self._remove_pair_masks(client, KeyPair(recombination.secret(shares)))
        totals = as_numbers(self._totals)
        totals[~np.repeat(opened, self._cells.sizes)] = 0
        self._totals = np.zeros(0, dtype=np.uint32)
        return Opened(tuple(sorted(self._survivors)), opened, totals)

    def _remove_own_mask(self, client: int, seed: bytes, lost: int) -> None:
        seeds = following(seed, self.roster.num_layers(self._rules) - lost)
        if commitment(seeds[-1]) != self._deals[client].commitment:
            raise ProtocolError(f"the shares of client {client}'s seed do not give what it committed to")
        sent = self._sent_by(client)
        for layer, each in enumerate(seeds, start=lost):
            places = Places(self._cells.sizes, sent & (self._layers == layer))
            add(self._totals, places, self._masks(mask_key(each)), subtract=True)

    def _remove_pair_masks(self, client: int, pair: KeyPair) -> None:
        """Remove the masks that survivors share with a client that dropped out."""
        if pair.public != self.roster.keys[client].masking:
            raise ProtocolError(f"the shares of client {client}'s key do not give the key that it announced")
        sent = self._sent_by(client)
        for survivor in sorted(self._survivors):
            purpose = pair_purpose(self.roster, client, survivor)
            key = pair.agreed(self.roster.keys[survivor].masking, purpose)
            places = Places(self._cells.sizes, sent & self._cells.held_by(survivor))
            add(self._totals, places, self._masks(key), subtract=survivor < client)

    def _sent_by(self, client: int) -> Chosen:
        return self._cells.held_by(client) & (self._layers >= 0)

    def _expect(self, step: int, is_due: bool, client: int, what: str) -> None:
        if self._step != step or not is_due:
            raise ProtocolError(f"{what} of client {client} are not due now")

    def _end(self, step: int, clients: Collection[int], what: str) -> None:
        assert self._step == step, "steps go on one by one"
        self._step = step + 1
        if len(clients) < self._rules.threshold:
            raise TooFewError(f"{len(clients)} clients {what}, and the threshold is {self._rules.threshold}")
