"""The server's side of a round's secure sum: who is awaited with what, whom it tells what, and what comes of it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.sum_wire import (
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
    """What a round's sum came to."""

    clients: tuple[int, ...]
    """Whose changes it holds."""
    partial: PartialSum
    opened_share: float
    """Of the model's weights that some of the clients hold."""
    bytes_up: Mapping[int, int]
    """Of what each sent for it."""


class SumExchange:
    """A sum over the clients that are ``ready``, who hold the parts of ``plans``; step by step until it is over.

    Whoever does not answer, or not as it has to, is lost: nothing else of it is opened. Whether the sum comes to
    something shows in :attr:`opened`; else :attr:`void` says why not. ``opening`` is called before clients are asked to
    open it.
    """

    def __init__(
        self, round_: int, ready: Mapping[int, Ready], plans: Mapping[int, PruningPlan], layout: ChannelLayout,
        rules: Rules, codec: SumCodec, witness: Witness, opening: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._round = round_
        self._sum_id = secrets.token_hex(16)
        self.awaited: set[int] = set()
        """Who is to answer in the present step."""
        self.lost: dict[int, str] = {}
        """Who has left the sum before it was over, and why."""
        self.opened: OpenedSum | None = None
        self.void = ""
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
        return self._step == "over"

    def beginning(self) -> list[SumMessage]:
        """What everybody is told first."""
        return [self._message(client, self._start) for client in sorted(self.awaited)]

    def is_about(self, message: SumMessage) -> bool:
        """Whether a message answers what its client was told in the present step."""
        return message.sum_id == self._sum_id and message.client_id in self.awaited

    def take(self, message: SumMessage) -> None:
        """One client's answer; who has given a wrong one is lost."""
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
        """Whether the present step has all that it needs, or will get."""
        return not self.is_over and (not self.awaited or (self._step == "revealing" and self._summation.can_open))

    def go_on(self) -> list[SumMessage]:
        """End the present step: what whom is told in the next one; nothing where the sum is over."""
        told: dict[int, Content] = {}
        try:
            match self._step:
                case "dealing":
                    told = {client: Inbox(sealed) for client, sealed in self._summation.end_dealing().items()}
                    self._step = "masking"
                case "masking":
                    survivors = tuple(self._summation.end_masking())
                    self._opening()
                    told = dict.fromkeys(survivors, Survivors(survivors))
                    self._step = "agreeing"
                case "agreeing":
                    consents = self._summation.end_agreeing()
                    told = dict.fromkeys(consents, Agreed(consents))
                    self._step = "revealing"
                case "revealing":
                    self._open()
        except ProtocolError as error:
            self.end(str(error))
            return []
        self.awaited = set(told)
        return [self._message(client, content) for client, content in told.items()]

    def _open(self) -> None:
        opened = self._summation.open()
        cells = self._packing.cells
        sent_at_all = cells.sizes[cells.members.any(axis=1)].sum()
        share = float(cells.sizes[opened.cells].sum() / max(1, sent_at_all))
        self.opened = OpenedSum(opened.clients, self._packing.unpack(opened), share, self._bytes_up)
        self._step = "over"

    def _message(self, client: int, content: Content) -> SumMessage:
        return SumMessage(self._round, client, self._sum_id, content)
