"""The open round: which uploads are awaited, which were refused, and the order in which the others are folded."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable

from torch import Tensor

from fedml_dapper.errors import ProtocolError, printable
from fedml_dapper.federation.round.findings import all_finite
from fedml_dapper.federation.round.update_norm import UpdateNorms
from fedml_dapper.federation.run_folder.records import ClientRecord
from fedml_dapper.methods import Aggregation, HoldingAggregation, Upload
from fedml_dapper.process.profiling import part

LOGGER = logging.getLogger(__name__)
NO_USUAL_NORMS = UpdateNorms()
"""Usual size of uploads before there were any."""


class OpenRound:
    """Uploads of one round, from its opening until :meth:`close`; its records can still be read after that.

    Uploads are folded in ascending client id, so that the result does not depend on the order of arrival; one that
    arrives early waits for its turn. Uploads whose turn has come are folded together and dropped. The last ones are
    folded when the round closes, in the same pass that makes the new model from the sums.
    """

    def __init__(
        self,
        number: int,
        aggregation: Aggregation | None = None,
        awaited: Iterable[int] = (),
        usual: UpdateNorms = NO_USUAL_NORMS,
        record: Callable[[Upload], Callable[[], ClientRecord]] | None = None,
        refused: Callable[[int], None] | None = None,
        is_simulation: bool = False,
    ) -> None:
        """Open a round.

        Args:
            number: The round's number, from 1; 0 before the first one.
            aggregation: What uploads are folded into; None for a round that is closed.
            awaited: Clients whose uploads may come.
            usual: Usual size of uploads.
            record: Returns what makes the ledger's record of an upload, when the round closes.
            refused: Called with the client id where an upload is refused.
            is_simulation: Whether an upload that cannot be folded is a bug and raises; elsewhere it is refused.
        """
        self.number = number
        self._aggregation = aggregation
        self._awaited = sorted(awaited)
        self._record = record
        self._on_refusal = refused
        self._is_simulation = is_simulation
        if isinstance(aggregation, HoldingAggregation):
            aggregation.hold()
        self._early: dict[int, Upload] = {}
        self._folded: set[int] = set()
        self._has_stand_ins = False
        self._aside: set[int] = set()
        self.usual = usual
        """Usual size of uploads of the round before."""
        self.magnitudes: dict[int, UpdateNorms] = {}
        """Size of each upload that has come, by client id."""
        self.records: list[ClientRecord] = []
        """The ledger's records of the uploads that were folded, in this order, once the round closes."""
        self._lines: list[Callable[[], ClientRecord]] = []
        """What makes the records of uploads that were folded so far."""
        self.refused: dict[int, str] = {}
        """Why uploads were refused, by client id."""
        self.begun: dict[int, int] = {}
        """Round in which an upload began, by client id, for uploads of earlier rounds that count now."""
        self.finite: dict[int, Tensor] = {}
        """Whether a client's upload that was taken is free of NaN and infinity, bool (); in a simulation alone."""
        self.bytes_down: dict[int, int] = {}
        """Bytes of the message that each client was sent, by client id."""
        self.num_downlinks: Counter[int] = Counter()
        """How often each client was sent what it starts from."""

    @property
    def is_open(self) -> bool:
        """Whether uploads can be folded: the round has begun, and is not closed."""
        return self._aggregation is not None

    @property
    def aggregation(self) -> Aggregation:
        """The aggregation that uploads are folded into."""
        assert self._aggregation is not None, "no round is open"
        return self._aggregation

    def close(self) -> None:
        """End the round, so that nothing is folded any more."""
        self._aggregation = None

    def is_awaited(self, client_id: int) -> bool:
        """Return whether the client's upload may still come."""
        return client_id in self._awaited and client_id not in self._early

    def awaited(self) -> set[int]:
        """Return the clients whose upload may still come."""
        return set(self._awaited).difference(self._early)

    def answered(self) -> set[int]:
        """Return the clients whose upload has come and was not refused, those set aside included."""
        return self._folded | self._early.keys() | self._aside

    def line_of(self, upload: Upload) -> Callable[[], ClientRecord]:
        """Return what makes the ledger's record of ``upload``, when its figures are wanted."""
        assert self._record is not None, "no round is open"
        return self._record(upload)

    def take(self, *uploads: Upload) -> None:
        """Fold ``uploads`` as soon as it is their turn."""
        if self._is_simulation:
            self.finite |= {one.client_id: all_finite((*one.weights.values(), *one.extras.values())) for one in uploads}
        self._early |= {upload.client_id: upload for upload in uploads}
        self._fold_in_turn()

    def set_aside(self, client_id: int) -> None:
        """Note that the client has answered, without an upload to be folded in this round."""
        self._awaited.remove(client_id)
        self._aside.add(client_id)
        self._fold_in_turn()

    def refuse(self, client_id: int, reason: str) -> None:
        """Go on without the client, and count that against it; nothing happens where it is not awaited."""
        if self.is_awaited(client_id):
            self._awaited.remove(client_id)
            self.note_refusal(client_id, reason)
            self._fold_in_turn()

    def give_up(self, client_id: int) -> None:
        """Go on without the client, which is not to blame; nothing happens where it is not awaited."""
        if self.is_awaited(client_id):
            self._awaited.remove(client_id)
            self._fold_in_turn()

    def note_refusal(self, client_id: int, reason: str) -> None:
        """Record that the client's upload was refused, which may show after it was folded."""
        self.refused[client_id] = printable(reason)
        LOGGER.warning("round %d: upload of client %d refused: %s", self.number, client_id, self.refused[client_id])
        if self._on_refusal is not None:
            self._on_refusal(client_id)

    def fold_stand_in(self, upload: Upload) -> None:
        """Fold in what stands for the upload of a client that has sent none; the ledger does not record it."""
        self.aggregation.add(upload)
        self._has_stand_ins = True

    @property
    def has_nothing(self) -> bool:
        """Whether the aggregation has nothing to make a model of, once the round closes."""
        return not (self.records or self._has_stand_ins)

    def fold_the_rest(self) -> list[int]:
        """Fold all uploads that wait for their turn; return the clients that have not answered."""
        unfinished = [client_id for client_id in self._awaited if client_id not in self._early]
        for client_id in sorted(self._early):
            self._fold(self._early.pop(client_id))
        self.records += [line() for line in self._lines]
        self._lines.clear()
        return unfinished

    def _fold_in_turn(self) -> None:
        while self._awaited and self._awaited[0] in self._early:
            self._fold(self._early.pop(self._awaited.pop(0)))
        # The last uploads of a round are left to close(), which folds them in the pass that makes the new model.
        if self._awaited and isinstance(self._aggregation, HoldingAggregation):
            with part("aggregation"):
                self._aggregation.fold()

    def _fold(self, upload: Upload) -> None:
        try:
            with part("aggregation"):
                self.aggregation.add(upload)
        except ProtocolError as error:
            if self._is_simulation:
                raise
            self.note_refusal(upload.client_id, str(error))
            return
        self._folded.add(upload.client_id)
        self._lines.append(self.line_of(upload))
