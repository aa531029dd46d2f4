"""Control of glibc's allocator, to keep memory that a training step frees for the next step.

Each step frees its activations, and the next one allocates as much again. By default glibc returns large blocks to the
system at once, and gets zeroed pages back by page faults: these take a sixth of a small step's processor time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

LARGEST_KEPT_BYTES = 32 << 20
"""Largest block that is kept, which is glibc's limit of the threshold; larger blocks go back to the system."""
LARGE_BYTES = 1_000_000
"""Smallest block that :func:`give_back_large_blocks` has given back."""
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
"""The two are numbers of ``mallopt``'s parameters, from glibc's ``malloc.h``."""
_NEVER = 2**31 - 1
_blocks = 0
"""Blocks of :func:`freed_memory_kept` that this process is in."""


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory in this process during the block, and give it back at the end; without glibc do nothing.

    A block within another one gives nothing back.
    """
    global _blocks  # noqa: PLW0603  # the allocator is the process's
    library = _glibc()
    if library is not None and not _blocks:
        library.mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _NEVER)
    _blocks += 1
    try:
        yield
    finally:
        _blocks -= 1
        if not _blocks:
            give_back_freed_memory()


def give_back_large_blocks() -> None:
    """Give back every large block as soon as it is freed, until :func:`freed_memory_kept`; without glibc do nothing.

    Otherwise glibc keeps blocks of up to the size of the largest that was freed so far, and a process that tries out a
    network peaks higher.
    """
    library = _glibc()
    if library is not None:
        library.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def give_back_freed_memory() -> None:
    """Give freed memory back to the system now; without glibc do nothing."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libc.so.6")
    except OSError:  # another C library, or another system
        return None
