"""Snapshots of a silo's memory, to repeat its latest rounds for a server that crashed and asks for them again."""

from __future__ import annotations

import logging
from collections import deque

from fedml_dapper.methods import Memory

LOGGER = logging.getLogger(__name__)


class Rewind:
    """Keeps snapshots of one client's memory, each from before a round that it trained; ``rounds`` of them at most.

    A server that resumes from a checkpoint repeats at most ``dapper_args.checkpoint_every`` rounds. In simulation the
    checkpoint holds the clients' memories; a silo's memory stays with the silo, which therefore goes back by itself.
    """

    def __init__(self, rounds: int) -> None:
        self._before: deque[tuple[int, Memory]] = deque(maxlen=rounds)

    def memory_for(self, round_: int, memory: Memory) -> Memory:
        """Return the memory from which to train ``round_``, and keep a snapshot of it.

        It is ``memory``, or what that was before the round if the round was trained already.
        """
        first_kept = self._before[0][0] if self._before else round_
        while self._before and self._before[-1][0] >= round_:  # snapshots of rounds that are repeated now
            trained, memory = self._before.pop()
            LOGGER.info("the server repeats round %d; this silo forgets what it learnt in round %d", round_, trained)
        if first_kept > round_:
            LOGGER.warning("this silo has no memory from before round %d; it uses that of round %d", round_, first_kept)
        self._before.append((round_, memory.snapshot()))
        return memory
