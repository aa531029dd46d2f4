"""One line in place of a traceback where a process's memory runs out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedml_dapper.errors import DapperError
from fedml_dapper.process.memory_limit import memory_left
from fedml_dapper.process.rss import resident_bytes

_RESERVE = 8 << 20
_IN_WORDS = ("allocate memory", "bad_alloc")
"""What RuntimeErrors of compiled code say where the system gives no more."""


@contextmanager
def naming_lack_of_memory() -> Iterator[None]:
    """Raise what the system or torch says of memory that cannot be had as an error for people.

    Raises:
        DapperError: Memory has run out.
    """
    reserve = bytearray(_RESERVE)
    try:
        yield
    except Exception as error:
        del reserve  # or there would be no room for the sentence either
        if not _is_lack(error):
            raise
        left = memory_left()
        bound = "" if left is None else f" ({left.bound})"
        raise DapperError(
            f"memory has run out at {resident_bytes() / 1e6:.0f} MB{bound}; end other programs or raise the limit, or"
            " ask less of this device: a weaker level, or a smaller train_args.batch_size or micro_batch_size"
        ) from error


def _is_lack(error: BaseException | None) -> bool:
    """Return whether ``error``, or what led to it, says that there is no more memory."""
    if error is None:
        return False
    if isinstance(error, MemoryError) or any(words in str(error) for words in _IN_WORDS):
        return True
    return _is_lack(error.__cause__)
