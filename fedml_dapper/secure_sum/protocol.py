"""Rules and messages of a secure sum."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fedml_dapper.errors import ProtocolError


class TooFewError(ProtocolError):
    """Too few clients are left to open the sum: the round is void."""


MOST_CLIENTS = 4096
"""Most clients of a sum, in which each client sends shares to every other."""


@dataclass(frozen=True)
class Rules:
    """Rules that every client checks by its own settings, whatever its server says."""

    threshold: int
    """Clients that have to stay to the end: more than half of a round's. Otherwise a server could tell two halves of
    different drop-outs, and learn both kinds of secrets."""
    min_holders: int
    """Fewest survivors that have to hold a coordinate for it to be opened, and fewest senders for it to be sent; at
    least 2."""

    most_clients: int = MOST_CLIENTS
    """Most clients of a round; with more, the threshold would be a smaller part of them."""

    def allies(self, clients: int) -> int:
        """Return how many of a round's ``clients`` may collude with a server that lies.

        With one more, two lists of survivors could have ``threshold`` signatures each, or an opened sum could be that
        of a single honest client. Each honest client signs one list, so two lists need 2 (threshold - c) <= clients - c
        for c colluding clients.
        """
        return max(0, min(2 * self.threshold - clients - 1, self.min_holders - 2))


@dataclass(frozen=True)
class PublicKeys:
    """A client's public keys for one sum, 32 bytes each, with its signature."""

    sealing: bytes
    """Public key that seals shares on their way through the server."""
    masking: bytes
    """Public key for pair masks; the private key is dealt in shares."""
    part: bytes
    """Digest of the coordinates that the client holds, 32 bytes."""
    certificate: bytes = b""
    """Certificate by which others verify the client's signatures."""
    signature: bytes = b""
    """Signature of the fields above and of the sum that they are for (``signatures.statement_of_keys``)."""


@dataclass(frozen=True)
class Roster:
    """The clients of a sum, with their public keys by client id."""

    context: bytes
    """Digest of the sum's round, number and plans, so that its keys are of no use in other sums."""
    keys: Mapping[int, PublicKeys]

    @cached_property
    def digest(self) -> bytes:
        """Digest of the whole roster. It enters all derived keys, so clients with different rosters derive different
        ones."""
        digest = hashlib.sha256(len(self.context).to_bytes(8, "little") + self.context)
        for client in sorted(self.keys):
            keys = self.keys[client]
            digest.update(client.to_bytes(8, "little") + keys.sealing + keys.masking + keys.part)
            digest.update(hashlib.sha256(keys.certificate).digest())
        return digest.digest()

    def check(self, rules: Rules) -> None:
        """Raise :class:`ProtocolError` unless a sum of these clients keeps to the ``rules``."""
        count = len(self.keys)
        if count < rules.threshold:
            raise TooFewError(f"{count} clients are there, and the threshold is {rules.threshold}")
        if count > rules.most_clients:
            raise ProtocolError(f"{count} clients are to sum, and a round of this experiment has {rules.most_clients}")
        if 2 * rules.threshold <= count:
            raise ProtocolError(f"the threshold {rules.threshold} is not more than half of {count} clients")
        keys = [key for each in self.keys.values() for key in (each.sealing, each.masking)]
        if len(set(keys)) < len(keys):
            raise ProtocolError("two of a round's public keys are the same")

    def num_layers(self, rules: Rules) -> int:
        """Return the number of seeds of each client: one for every number of clients that may drop out."""
        return len(self.keys) - rules.threshold + 1


@dataclass(frozen=True)
class Deal:
    """Message with shares of a client's secrets."""

    sealed: Mapping[int, bytes]
    """Shares by receiver, who alone can read them."""
    commitment: bytes
    """Commitment to the client's seeds (``seeds.commitment``)."""


@dataclass(frozen=True)
class Consent:
    """Message with a survivor's signature of the list of survivors; it reveals shares for no other list."""

    signature: bytes
    """Signature of ``signatures.statement_of_survivors``."""


@dataclass(frozen=True)
class Revealed:
    """Message with a client's shares of others' secrets, 33 bytes each, once it is known who dropped out."""

    seeds: Mapping[int, bytes]
    """Shares of the survivors' seeds, by survivor."""
    keys: Mapping[int, bytes]
    """Shares of the private masking keys of clients that dropped out, by client id."""


def point_of(client: int) -> int:
    """Return the client's point in Shamir's polynomials."""
    return client + 1


def pair_purpose(roster: Roster, one: int, other: int) -> bytes:
    """Return the purpose of the key of a pair's mask.

    It names the pair, since two public keys may agree on the same secret with a third (on a curve, a point and its twin
    of small order do), and equal masks of two pairs would cancel in the upload itself.
    """
    pair = min(one, other).to_bytes(8, "little") + max(one, other).to_bytes(8, "little")
    return b"pair mask" + pair + roster.digest


def sealing_purpose(roster: Roster, sender: int, receiver: int) -> bytes:
    """Return the purpose of the key that seals shares from ``sender`` to ``receiver``."""
    return b"shares" + sender.to_bytes(8, "little") + receiver.to_bytes(8, "little") + roster.digest
