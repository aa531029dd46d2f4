"""What clients and server of a secure sum tell each other, and by which rules."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fedml_dapper.errors import ProtocolError


class TooFewError(ProtocolError):
    """So few clients are left that nothing can be opened: the round is void."""


MOST_CLIENTS = 4096
"""In any sum: everybody tells something for everybody else."""


@dataclass(frozen=True)
class Rules:
    """What every client goes by, whatever its server says."""

    threshold: int
    """So many clients have to be there to the end; more than half of a round's, or two halves could be told of
    different drop-outs, and both kinds of secrets come out."""
    min_holders: int
    """A coordinate with fewer survivors is never opened; with fewer senders, never sent. At least 2."""

    most_clients: int = MOST_CLIENTS
    """Clients of a round: with more, the threshold would be a smaller part of them."""

    def allies(self, clients: int) -> int:
        """How many of a round's ``clients`` may be on the side of a server that lies.

        With one more, two lists of survivors could have ``threshold`` signatures each, or what opens could be of one
        other client. Each of the others signs one list, so two lists need 2 (threshold - c) <= clients - c.
        """
        return max(0, min(2 * self.threshold - clients - 1, self.min_holders - 2))


@dataclass(frozen=True)
class PublicKeys:
    """A client's, for one sum, 32 bytes each, and its word for them."""

    sealing: bytes
    """For shares on their way through the server."""
    masking: bytes
    """For masks; the private one is shared out."""
    part: bytes
    """Digest of what it holds of the sum, 32 bytes."""
    certificate: bytes = b""
    """By which others know its signatures."""
    signature: bytes = b""
    """Of the above, and of which sum this is about (``signatures.statement_of_keys``)."""


@dataclass(frozen=True)
class Roster:
    """Who takes part in a sum, by client id."""

    context: bytes
    """Of the sum: the experiment, the round and the plans, so that keys are of no use elsewhere."""
    keys: Mapping[int, PublicKeys]

    @cached_property
    def digest(self) -> bytes:
        """Of all that is in it: who is told another roster derives other keys."""
        digest = hashlib.sha256(len(self.context).to_bytes(8, "little") + self.context)
        for client in sorted(self.keys):
            keys = self.keys[client]
            digest.update(client.to_bytes(8, "little") + keys.sealing + keys.masking + keys.part)
            digest.update(hashlib.sha256(keys.certificate).digest())
        return digest.digest()

    def check(self, rules: Rules) -> None:
        """Raises :class:`ProtocolError` unless a sum of these clients keeps to the ``rules``."""
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
        """How many seeds each client has: one for every number of clients that may drop out."""
        return len(self.keys) - rules.threshold + 1


@dataclass(frozen=True)
class Deal:
    """A client's shares of its secrets."""

    sealed: Mapping[int, bytes]
    """By receiver, whom alone they can be read by."""
    commitment: bytes
    """To its seeds (``seeds.commitment``)."""


@dataclass(frozen=True)
class Consent:
    """A survivor's word that it tells shares by the list of survivors that it was told, and by no other."""

    signature: bytes
    """Of ``signatures.statement_of_survivors``."""


@dataclass(frozen=True)
class Revealed:
    """A client's shares of others' secrets, 33 bytes each, once it is known who dropped out."""

    seeds: Mapping[int, bytes]
    """Of the survivors' seeds, by survivor."""
    keys: Mapping[int, bytes]
    """Of the private masking keys of those who dropped out, by client id."""


def point_of(client: int) -> int:
    """The client's in Shamir's polynomials."""
    return client + 1


def pair_purpose(roster: Roster, one: int, other: int) -> bytes:
    """Of the key of a pair's mask. It names the pair: two public keys may agree alike with a third (on a curve, a point
    and its twin of small order do), and masks of two pairs that are the same would cancel in the upload itself."""
    pair = min(one, other).to_bytes(8, "little") + max(one, other).to_bytes(8, "little")
    return b"pair mask" + pair + roster.digest


def sealing_purpose(roster: Roster, sender: int, receiver: int) -> bytes:
    """Of the key that seals shares in one direction."""
    return b"shares" + sender.to_bytes(8, "little") + receiver.to_bytes(8, "little") + roster.digest
