"""The server's side of a round's secure sum: the messages it sends, the answers it awaits, and the opened sum."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.wire.sum_codec import (
    Agreed,
    Content,
    Declined,
    Inbox,
    Masked,
    Ready,
    Start,
    SumCodec,
    SumMessage,
    Survivors,
)
from fedml_dapper.pruning import ChannelLayout, Packing, PartialSum, PruningPlan
from fedml_dapper.secure_sum import Consent, Deal, Revealed, Roster, Rules, Summation, Witness

_Step = Literal["dealing", "masking", "agreeing", "revealing", "over"]


@dataclass(frozen=True, eq=False)
class OpenedSum:
    """Sum of a round's changes that was opened."""

    clients: tuple[int, ...]
    """Clients whose changes are in the sum."""
    partial: PartialSum
    opened_share: float
    """Share that was opened of the model's weights that some client holds."""
    bytes_up: Mapping[int, int]
    """Bytes that each client sent for the sum, by client id."""


class SumExchange:
    """A secure sum over the clients that are ready, step by step.

    Send the messages of :meth:`beginning`; :meth:`take` every answer; when :attr:`can_go_on`, send the messages of
    :meth:`go_on`; until :attr:`is_over`. A client that does not answer, or answers wrongly, is lost: the sum goes on
    without it.

    Args:
        round_: The round, from 1.
        ready: Messages of the clients that have trained, by client id.
        plans: Pruning plan of each client.
        layout: The model's.
        rules: How many clients a sum needs.
        codec: Encodes plans, which clients sign.
        witness: Verifies who has signed what.
        opening: Called before clients are asked to open the sum.
    """

    def __init__(
        self,
        round_: int,
        ready: Mapping[int, Ready],
        plans: Mapping[int, PruningPlan],
        layout: ChannelLayout,
        rules: Rules,
        codec: SumCodec,
        witness: Witness,
        opening: Callable[[], None] = lambda: None,
    ) -> None:
        self._round = round_
        self._sum_id = secrets.token_hex(16)
        self.awaited: set[int] = set()
        """Clients that are to answer in the present step."""
        self.lost: dict[int, str] = {}
        """Why clients have left the sum before it was over, by client id."""
        self.opened: OpenedSum | None = None
        """The sum; None until it is opened, and where it is void."""
        self.void = ""
        """Why the sum is void; empty where it is not."""
        self._step: _Step = "dealing"
        self._opening = opening
        self._bytes_up: dict[int, int] = dict.fromkeys(ready, 0)
        keys = {client: each.keys for client, each in sorted(ready.items()) if each.keys is not None}
        self._start = Start(keys, {client: plans[client] for client in keys})
        self._packing = Packing(layout, self._start.plans)
        roster = Roster(codec.context(self._message(0, self._start)), keys)
        try:
            self._summation = Summation(roster, rules, self._packing.cells, witness)
        except ProtocolError as error:
            self.end(str(error))
        else:
            self.awaited = set(keys)

    @property
    def is_over(self) -> bool:
        """Whether the sum is opened or void."""
        return self._step == "over"

    def beginning(self) -> list[SumMessage]:
        """Return the messages that begin the sum, one for each client."""
        return [self._message(client, self._start) for client in sorted(self.awaited)]

    def is_about(self, message: SumMessage) -> bool:
        """Return whether a message answers what its client was sent in the present step."""
        return message.sum_id == self._sum_id and message.client_id in self.awaited

    def take(self, message: SumMessage) -> None:
        """Take one client's answer; a client that answers wrongly is lost."""
        client = message.client_id
        content = message.content
        self.awaited.discard(client)
        try:
            match content, self._step:
                case Deal(), "dealing":
                    self._summation.take_deal(client, content)
                    self._bytes_up[client] += sum(map(len, content.sealed.values()))
                case Masked(words), "masking":
                    self._summation.take_masked(client, words)
                    self._bytes_up[client] += words.nbytes
                case Consent(), "agreeing":
                    self._summation.take_consent(client, content)
                case Revealed(), "revealing":
                    self._summation.take_revealed(client, content)
                case Declined(reason), _:
                    self.lose(client, reason)
                case _:
                    self.lose(client, "it sent what it was not asked for")
        except ProtocolError as error:
            self.lose(client, str(error))

    def lose(self, client: int, reason: str) -> None:
        """Go on without an answer of this client."""
        self.awaited.discard(client)
        self.lost.setdefault(client, reason)

    def time_is_over(self) -> None:
        """Go on without those who have not answered in the present step."""
        for client in sorted(self.awaited):
            self.lose(client, "it did not answer in time")

    def end(self, reason: str) -> None:
        """Make the sum void."""
        self.awaited = set()
        self.void = reason
        self._step = "over"

    @property
    def can_go_on(self) -> bool:
        """Whether the present step has all answers that are awaited, or that it needs."""
        return not self.is_over and (not self.awaited or (self._step == "revealing" and self._summation.can_open))

    def go_on(self) -> list[SumMessage]:
        """End the present step, and return the messages of the next one; none where the sum is over."""
        contents: dict[int, Content] = {}
        try:
            match self._step:
                case "dealing":
                    contents = {client: Inbox(sealed) for client, sealed in self._summation.end_dealing().items()}
                    self._step = "masking"
                case "masking":
                    survivors = tuple(self._summation.end_masking())
                    self._opening()
                    contents = dict.fromkeys(survivors, Survivors(survivors))
                    self._step = "agreeing"
                case "agreeing":
                    consents = self._summation.end_agreeing()
                    contents = dict.fromkeys(consents, Agreed(consents))
                    self._step = "revealing"
                case "revealing":
                    self._open()
        except ProtocolError as error:
            self.end(str(error))
            return []
        self.awaited = set(contents)
        return [self._message(client, content) for client, content in contents.items()]

    def _open(self) -> None:
        opened = self._summation.open()
        cells = self._packing.cells
        num_sent = cells.sizes[cells.members.any(axis=1)].sum()
        share = float(cells.sizes[opened.cells].sum() / max(1, num_sent))
        self.opened = OpenedSum(opened.clients, self._packing.unpack(opened), share, self._bytes_up)
        self._step = "over"

    def _message(self, client: int, content: Content) -> SumMessage:
        return SumMessage(self._round, client, self._sum_id, content)
