"""Which process of a device counts, where it was started twice: the one that was started last.

A process draws a number when it starts, its life. A device that was started again shows a new one, and nothing more is
heard of the one before. If the one before does call, both are running.
"""

from __future__ import annotations

LIVES_KEPT = 4
"""Lives of a device that are remembered; a process older than these is taken for a new one."""


class Lives:
    """The lives in which each device has called, by client id."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[str, ...]] = {}

    def is_replaced(self, client_id: int, life: object) -> bool:
        """Note the ``life`` in which a device calls; return whether a later process of it has called already.

        Devices of versions that tell no life are never replaced.
        """
        if not isinstance(life, str):
            return False
        seen = self._seen.get(client_id, ())
        if life not in seen:
            seen = (*seen, life)[-LIVES_KEPT:]
            self._seen[client_id] = seen
        return seen[-1] != life
