"""Memory that a training step frees stays with the process while training goes on.

Each step frees its activations, and the next one asks for as much again. The C library gives large blocks back to the
system at once, which then hands out zeroed pages, one fault after another: a sixth of a small step's processor time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

LARGEST_KEPT_BYTES = 32 << 20
"""Of a block; glibc takes no larger threshold. Blocks above it go back to the system as ever."""
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_NEVER = 2**31 - 1


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory within the block, for this whole process; give it back at the end. Only glibc knows how."""
    library = _glibc()
    if library is not None:
        library.mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        give_back_freed_memory()


def give_back_freed_memory() -> None:
    """To the system, now."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libc.so.6")
    except OSError:  # another C library, or another system
        return None
