"""What a silo remembered before its latest rounds, for a server that crashed and asks for them again."""

from __future__ import annotations

import logging
from collections import deque

from fedml_dapper.methods import Memory

LOGGER = logging.getLogger(__name__)


class Rewind:
    """Snapshots of one client's memory, each from before a round it trained; ``rounds`` of them at most.

    A server that goes on from a checkpoint repeats the ``dapper_args.checkpoint_every`` rounds after it at most. In
    simulation the checkpoint holds the clients' memories; a silo's stays with the silo, so the silo goes back itself.
    """

    def __init__(self, rounds: int) -> None:
        self._before: deque[tuple[int, Memory]] = deque(maxlen=rounds)

    def memory_for(self, round_: int, memory: Memory) -> Memory:
        """From what to train ``round_``: ``memory``, or what it was before that round if that was trained already."""
        first_kept = self._before[0][0] if self._before else round_
        while self._before and self._before[-1][0] >= round_:
            trained, memory = self._before.pop()
            LOGGER.info("the server repeats round %d; this silo forgets what it learnt in round %d", round_, trained)
        if first_kept > round_:
            LOGGER.warning("this silo has no memory from before round %d; it uses that of round %d", round_, first_kept)
        self._before.append((round_, memory.snapshot()))
        return memory
