"""Rest for Python's garbage collector: what lasts as long as a run is not looked through again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting_objects_left_alone() -> Iterator[None]:
    """Keep the collector from objects that are there when the block begins; they are its own again when it ends.

    Torch and what comes with it make half a million of them, which take a tenth of a second to look through. A round
    of small networks on a GPU takes two.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
