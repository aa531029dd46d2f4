"""Rest for Python's garbage collector: what lasts as long as a run is not looked through again and again."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def lasting_objects_left_alone() -> Iterator[Callable[[], None]]:
    """Provide a function to call when what lasts has been made, after a first round; only its first call does anything.

    From then on the collector leaves alone whatever is there, which is its own again when the block ends. Torch and
    what comes with it are half a million objects, and take a tenth of a second to look through; a round of small
    networks on a GPU takes two or three.
    """

    @cache
    def leave_alone() -> None:
        gc.collect()
        gc.freeze()

    try:
        yield leave_alone
    finally:
        gc.unfreeze()
