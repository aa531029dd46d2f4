"""Independent pieces of tensor work, done by as many threads as torch has.

Torch would split each operation up among its threads, which wait for one another at its end. Here each thread takes the
next piece as soon as it is free: operations of torch release the GIL while they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import torch

Piece = Callable[[], None]


def do_side_by_side(pieces: Iterable[Piece]) -> None:
    """Do each piece once, begun in this order. Raises what one of them raised, once all threads have ended."""
    threads = torch.get_num_threads()
    rest = iter(pieces)
    if threads == 1:
        for piece in rest:
            piece()
        return
    torch.set_num_threads(1)  # for this thread, and for those that are started from now on
    lock = Lock()
    try:
        with ThreadPoolExecutor(threads - 1) as pool:
            others = [pool.submit(_work_off, rest, lock) for _ in range(threads - 1)]
            _work_off(rest, lock)
        for other in others:
            other.result()
    finally:
        torch.set_num_threads(threads)


def _work_off(pieces: Iterator[Piece], lock: Lock) -> None:
    while True:
        with lock:  # a generator of pieces must not be entered by two threads at once
            piece = next(pieces, None)
        if piece is None:
            return
        piece()
