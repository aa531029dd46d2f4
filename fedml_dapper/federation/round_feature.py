"""What an experiment may ask of its rounds besides training and averaging."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fedml_dapper.federation.open_round import OpenRound
from fedml_dapper.federation.records import RoundRecord
from fedml_dapper.methods import ServerState, Upload


class RoundFeature:
    """One such thing, which a server's rounds call by these verbs; each does nothing by itself.

    They come in this order: :meth:`available` and :meth:`wanted`, while clients are chosen; :meth:`opening` and
    :meth:`opened`; for every upload :meth:`start_of`, :meth:`drops` and :meth:`received`; :meth:`closing` and
    :meth:`closed`.
    """

    def available(self, client_ids: Sequence[int]) -> Sequence[int]:
        """Those of ``client_ids`` who can begin the coming round."""
        return client_ids

    def wanted(self, number: int) -> int:
        """How many clients are to begin it, where ``number`` would be."""
        return number

    def opening(self, client_ids: Sequence[int]) -> Collection[int]:
        """A round is about to begin with ``client_ids``: who else's upload may count in it."""
        return ()

    def opened(self, opened: OpenRound) -> None:
        """The round has begun, and nothing was sent yet."""

    def start_of(self, client_id: int) -> ServerState | None:
        """The server's state in which the client's upload began, where it was an earlier round's."""
        return None

    def drops(self, client_id: int) -> bool:
        """Whether the client's upload, which has the right form, counts in no round at all."""
        return False

    def received(self, upload: Upload) -> Upload | None:
        """An upload as it counts in the open round; None where it counts in a later one."""
        return upload

    def given_up(self, client_id: int) -> None:
        """Nothing more will come of the client."""

    def closing(self, opened: OpenRound, unfinished: Sequence[int]) -> str | None:
        """All uploads are folded, and the model is about to be made; ``unfinished`` were awaited in vain. Why the round
        is void, where it is."""
        return None

    def closed(self, record: RoundRecord) -> RoundRecord:
        """The round's record, with what there is to be said of it."""
        return record

    def resumed(self, record: RoundRecord) -> None:
        """The run goes on after ``record``, in a new process."""
