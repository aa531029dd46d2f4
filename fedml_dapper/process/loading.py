"""Loading of modules for the rest of a process's life, without looking for garbage among them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loaded_for_good() -> Iterator[None]:
    """Import in this block what a command needs, an eighth faster.

    Modules bring hundreds of thousands of objects, none of them garbage, and the collector would go through them again
    and again, while they are loaded and later on. So it waits, and leaves out from then on what is there at the end.
    For commands alone, as a program may want its own objects collected.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
