"""Interface of what an experiment adds to its rounds besides training and averaging: edges, privacy, a clock, ..."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fedml_dapper.federation.round.open_round import OpenRound
from fedml_dapper.federation.run_folder.records import RoundRecord
from fedml_dapper.methods import ServerState, Upload


class RoundFeature:
    """Hooks that the server calls in every round; by default each one changes nothing.

    They are called in this order: :meth:`available` and :meth:`wanted` while clients are chosen; :meth:`opening` and
    :meth:`opened`; for every upload :meth:`start_of`, :meth:`drops` and :meth:`received`; :meth:`closing` and
    :meth:`closed`.
    """

    def available(self, client_ids: Sequence[int]) -> Sequence[int]:
        """Return those of ``client_ids`` that can begin the coming round."""
        return client_ids

    def wanted(self, number: int) -> int:
        """Return how many clients are to begin the coming round, ``number`` being asked for so far."""
        return number

    def opening(self, client_ids: Sequence[int]) -> Collection[int]:
        """Return the clients besides ``client_ids``, which begin the round, whose uploads may count in it."""
        return ()

    def opened(self, opened: OpenRound) -> None:
        """Called when the round has begun, before anything is sent."""

    def start_of(self, client_id: int) -> ServerState | None:
        """Return the server state from which the client began to train; None where it began in the open round."""
        return None

    def drops(self, client_id: int) -> bool:
        """Return whether the client's upload, which has the right form, counts in no round at all."""
        return False

    def received(self, upload: Upload) -> Upload | None:
        """Return an upload as it counts in the open round; None where it counts in a later one."""
        return upload

    def given_up(self, client_id: int) -> None:
        """Called when nothing more is awaited of a client."""

    def closing(self, opened: OpenRound, unfinished: Sequence[int]) -> str | None:
        """Called when all uploads are folded, before the new model is made.

        Args:
            opened: The round.
            unfinished: Clients that were awaited in vain.

        Returns:
            Why the round is void; None where it is not.
        """
        return None

    def closed(self, record: RoundRecord) -> RoundRecord:
        """Return the round's record, with what this feature adds to it."""
        return record

    def resumed(self, record: RoundRecord) -> None:
        """Called in a new process that goes on after the round of ``record``."""
