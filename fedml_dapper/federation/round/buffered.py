"""Rounds that close after ``dapper_args.buffer_size`` uploads, while the other clients go on training (FedBuff)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fedml_dapper.federation.round.feature import RoundFeature
from fedml_dapper.federation.round.late_uploads import AtWork, arriving, late_upload
from fedml_dapper.federation.round.open_round import OpenRound
from fedml_dapper.federation.run_folder.records import RoundRecord
from fedml_dapper.methods import ServerState, Upload
from fedml_dapper.pruning import ChannelLayout


class Buffered(RoundFeature):
    """Keeps silos that still train when their round closes; an upload counts in the round in which it arrives."""

    def __init__(self, state: ServerState, layout: ChannelLayout) -> None:
        self._state = state
        self._layout = layout
        self._at_work: dict[int, AtWork] = {}
        """Silos that began in an earlier round and whose uploads may count in the open one, by client id."""
        self._opening = state
        """Server state from which the open round's clients began."""
        self._opened = OpenRound(number=0)

    @property
    def at_work(self) -> Mapping[int, int]:
        """The round that each silo at work began in, by client id."""
        return {client_id: one.begun for client_id, one in self._at_work.items()}

    def available(self, client_ids: Sequence[int]) -> Sequence[int]:
        return [client_id for client_id in client_ids if client_id not in self._at_work]

    def wanted(self, number: int) -> int:
        return number - len(self._at_work)

    def opening(self, client_ids: Sequence[int]) -> Collection[int]:
        self._opening = replace(self._state, weights=dict(self._state.weights), memory=self._state.memory.snapshot())
        return self._at_work.keys()

    def opened(self, opened: OpenRound) -> None:
        self._opened = opened
        opened.bytes_down |= {client_id: one.bytes_down for client_id, one in self._at_work.items()}

    def start_of(self, client_id: int) -> ServerState | None:
        earlier = self._at_work.get(client_id)
        return None if earlier is None else earlier.server

    def received(self, upload: Upload) -> Upload:
        earlier = self._at_work.get(upload.client_id)
        if earlier is None:
            return upload
        late = late_upload(upload, earlier.server.weights, self._layout, earlier.bytes_down)
        self._opened.begun[upload.client_id] = earlier.begun
        return arriving(late, self._opened.number, self._state.weights, self._layout)

    def given_up(self, client_id: int) -> None:
        self._at_work.pop(client_id, None)

    def closing(self, opened: OpenRound, unfinished: Sequence[int]) -> None:
        """Keep those at work that were sent a model and have not answered."""
        self._at_work = {
            client_id: self._at_work.get(client_id) or AtWork(self._opening, opened.bytes_down[client_id])
            for client_id in unfinished
            if client_id in opened.bytes_down
        }

    def closed(self, record: RoundRecord) -> RoundRecord:
        return record.model_copy(update={"at_work": dict(self.at_work)})

    def resumed(self, record: RoundRecord) -> None:
        """Forget who was at work: all silos are sent the next round's model."""
        self._at_work = {}
