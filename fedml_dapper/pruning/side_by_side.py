"""Pieces of tensor work that do not depend on one another, by as many threads as torch has.

Torch would split each operation up among its threads, which wait for one another at its end. Here each thread takes
the next piece whenever it is done with one: operations of torch let go of Python's lock while they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import torch

Piece = Callable[[], None]


def do_side_by_side(pieces: Iterable[Piece]) -> None:
    """Each piece once, begun in this order. Raises what one of them raised, when all threads have come to an end."""
    threads = torch.get_num_threads()
    rest = iter(pieces)
    if threads == 1:
        for piece in rest:
            piece()
        return
    torch.set_num_threads(1)  # of this thread, and of those that begin now
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
        with lock:  # whoever makes the pieces makes one at a time
            piece = next(pieces, None)
        if piece is None:
            return
        piece()
