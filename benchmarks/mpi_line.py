"""How long a byte takes from one MPI process to another on this machine, both ways measured: run by two ranks."""

from __future__ import annotations

import json
import time
from statistics import median

from mpi4py import MPI

_BYTES, _TIMES = 20_000_000, 7


def main() -> None:
    """Rank 0 sends a message and gets it back, several times, and prints the seconds of a byte."""
    line, message = MPI.COMM_WORLD, bytes(_BYTES)
    seconds = []
    for _ in range(_TIMES):
        begun = time.perf_counter()
        if line.Get_rank() == 0:
            line.send(message, dest=1)
            line.recv(source=1)
        else:
            line.send(line.recv(source=0), dest=0)
        seconds.append((time.perf_counter() - begun) / (2 * _BYTES))
    if line.Get_rank() == 0:
        print(json.dumps(median(seconds)))


if __name__ == "__main__":
    main()
