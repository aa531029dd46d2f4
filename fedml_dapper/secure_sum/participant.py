"""A client's side of one secure sum."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fedml_dapper.errors import ProtocolError
from fedml_dapper.secure_sum.cells import Cells, Places
from fedml_dapper.secure_sum.fixed_point import Words
from fedml_dapper.secure_sum.keys import KEY_BYTES, KeyPair
from fedml_dapper.secure_sum.keystream import ChaCha20Stream, MaskGenerator, add
from fedml_dapper.secure_sum.protocol import (
    Consent,
    Deal,
    PublicKeys,
    Revealed,
    Roster,
    Rules,
    TooFewError,
    pair_purpose,
    point_of,
    sealing_purpose,
)
from fedml_dapper.secure_sum.seeds import commitment, following, layers, mask_key
from fedml_dapper.secure_sum.shamir import SHARE_BYTES, Randomness, split
from fedml_dapper.secure_sum.signatures import Identity, statement_of_keys, statement_of_survivors

_Step = Literal["deal", "mask", "agree", "reveal", "done"]
_NONCE = bytes(12)
"""Zero for all messages, as each sealing key seals one message alone."""


class Participant:
    """A client in one secure sum, in which it takes each of four steps once: deal, mask, agree, reveal.

    Whatever the server asks, the client reveals its shares of at most one of another client's two secrets, and only for
    a list of survivors that ``threshold`` of them have signed. Every method raises :class:`ProtocolError` where the
    server breaks the protocol; after that the client takes no further step.

    Args:
        client: The client's id.
        rules: The client's own, whatever the server says.
        identity: By which the client signs, and verifies others' signatures.
        about: Digest that tells this sum from those of other rounds and experiments.
        part: Digest of the coordinates that the client holds.
        promise: Called with the statement that is about to be signed; if it raises, nothing is signed.
        randomness: Source of keys.
        masks: Makes a mask from its key.
    """

    def __init__(
        self,
        client: int,
        rules: Rules,
        identity: Identity,
        about: bytes,
        part: bytes,
        promise: Callable[[bytes], None] = lambda statement: None,
        randomness: Randomness = os.urandom,
        masks: MaskGenerator = ChaCha20Stream,
    ) -> None:
        self._client = client
        self._rules = rules
        self._identity = identity
        self._about = about
        self._promise = promise
        self._randomness = randomness
        self._masks = masks
        self._sealing = KeyPair(randomness(KEY_BYTES))
        self._masking = KeyPair(randomness(KEY_BYTES))
        keys = PublicKeys(self._sealing.public, self._masking.public, part, identity.certificate)
        self.public_keys = replace(keys, signature=identity.sign(statement_of_keys(about, client, keys)))
        """The client's public keys, signed by it."""
        self._first_seed = randomness(KEY_BYTES)
        self._next: _Step = "deal"
        self._roster = Roster(b"", {})
        self._shares: dict[int, list[bytes]] = {}
        """Shares dealt to this client, by dealer: of the dealer's private masking key, then of each of its seeds."""
        self._survivors: frozenset[int] = frozenset()

    def deal(self, roster: Roster) -> Deal:
        """Check the roster, and deal shares of this client's secrets, sealed for each other client."""
        self._take_step("deal")
        roster.check(self._rules)
        if roster.keys.get(self._client) != self.public_keys:
            raise ProtocolError("the roster does not have this client's own keys")
        for client, keys in roster.keys.items():
            statement = statement_of_keys(self._about, client, keys)
            self._identity.check(client, keys.certificate, statement, keys.signature)
        self._roster = roster
        clients = sorted(roster.keys)
        seeds = following(self._first_seed, roster.num_layers(self._rules))
        points = [point_of(client) for client in clients]
        shares = [
            split(secret, self._rules.threshold, points, self._randomness) for secret in (self._masking.private, *seeds)
        ]
        dealt = {client: [each[number] for each in shares] for number, client in enumerate(clients)}
        self._shares[self._client] = dealt.pop(self._client)
        self._next = "mask"
        return Deal(
            {client: self._seal(client, b"".join(each)) for client, each in dealt.items()}, commitment(seeds[-1])
        )

    def mask(self, inbox: Mapping[int, bytes], values: Words, cells: Cells) -> Words:
        """Mask the client's values.

        Args:
            inbox: Shares that other clients have sealed for this one, by sender.
            values: Values of all cells that the client holds.
            cells: Cells of the round.

        Returns:
            Masked values of the cells that enough clients hold to be sent.
        """
        self._take_step("mask")
        if not inbox.keys() <= self._roster.keys.keys() - {self._client}:
            raise ProtocolError("shares of clients that are not in the roster")
        sharers = {self._client, *inbox}
        if len(sharers) < self._rules.threshold:
            raise TooFewError(f"{len(sharers)} clients have dealt, and the threshold is {self._rules.threshold}")
        for sender, sealed in inbox.items():
            self._shares[sender] = self._open(sender, sealed)
        layer = layers(cells, sharers, self._rules)
        held = cells.held_by(self._client)
        sent = held & (layer >= 0)
        sizes = cells.vector_of(sent)
        places = Places(cells.vector_of(held), sent)
        masked = values.copy() if places.count == len(values) else values[places.mask()]
        # The client's own masks, one per layer.
        for number, seed in enumerate(following(self._first_seed, int(layer.max(initial=0)) + 1)):
            add(masked, Places(sizes, sent & (layer == number)), self._masks(mask_key(seed)))
        # One mask per pair, which the client of lower id adds and the other subtracts, so that it cancels in the sum.
        for peer in sorted(inbox):
            purpose = pair_purpose(self._roster, self._client, peer)
            key = self._masking.agreed(self._roster.keys[peer].masking, purpose)
            common = Places(sizes, sent & cells.held_by(peer))
            add(masked, common, self._masks(key), subtract=peer < self._client)
        self._next = "agree"
        return masked

    def agree(self, survivors: Collection[int]) -> Consent:
        """Sign the list of ``survivors``, whose masked values have come; a client signs one list alone."""
        self._take_step("agree")
        left = frozenset(survivors)
        if not left <= self._shares.keys() or self._client not in left:
            raise ProtocolError("the survivors are not among those that have dealt, or this client is not one of them")
        if len(left) < self._rules.threshold:
            raise TooFewError(f"{len(left)} clients are left, and the threshold is {self._rules.threshold}")
        self._survivors = left
        statement = self._statement()
        self._promise(statement)
        self._next = "reveal"
        return Consent(self._identity.sign(statement))

    def reveal(self, consents: Mapping[int, Consent]) -> Revealed:
        """Reveal shares by which the masks on the survivors' sum are removed.

        ``consents`` are survivors' signatures, which have to be of the same list and at least ``threshold``.
        """
        self._take_step("reveal")
        left = self._survivors
        lost = self._shares.keys() - self._survivors
        if not consents.keys() <= left:
            raise ProtocolError("others than survivors are said to have signed the list of survivors")
        for client, consent in consents.items():
            certificate = self._roster.keys[client].certificate
            self._identity.check(client, certificate, self._statement(), consent.signature)
        if len(consents) < self._rules.threshold:
            raise TooFewError(
                f"{len(consents)} clients have signed this list of survivors, and the threshold is"
                f" {self._rules.threshold}"
            )
        return Revealed(
            seeds={client: self._shares[client][1 + len(lost)] for client in sorted(left)},
            keys={client: self._shares[client][0] for client in sorted(lost)},
        )

    def _statement(self) -> bytes:
        return statement_of_survivors(self._roster, self._shares, self._survivors)

    def _take_step(self, step: _Step) -> None:
        expected = self._next
        self._next = "done"  # the caller sets the next step if this one succeeds
        if expected != step:
            raise ProtocolError(f"asked to {step} at a time when a client {expected}s, or never again")

    def _seal(self, receiver: int, shares: bytes) -> bytes:
        key = self._sealing.agreed(
            self._roster.keys[receiver].sealing, sealing_purpose(self._roster, self._client, receiver)
        )
        return ChaCha20Poly1305(key).encrypt(_NONCE, shares, None)

    def _open(self, sender: int, sealed: bytes) -> list[bytes]:
        key = self._sealing.agreed(
            self._roster.keys[sender].sealing, sealing_purpose(self._roster, sender, self._client)
        )
        try:
            shares = ChaCha20Poly1305(key).decrypt(_NONCE, sealed, None)
        except InvalidTag as error:
            raise ProtocolError(f"the shares of client {sender} are not sealed for this client and sum") from error
        if len(shares) != SHARE_BYTES * (1 + self._roster.num_layers(self._rules)):
            raise ProtocolError(f"client {sender} has dealt another number of shares than there are secrets")
        return [shares[at : at + SHARE_BYTES] for at in range(0, len(shares), SHARE_BYTES)]
