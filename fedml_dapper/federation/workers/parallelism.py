"""Plan of how many clients train at a time, and on how many threads each."""

from __future__ import annotations

import multiprocessing
import os
import sys
from dataclasses import dataclass

import torch
from torch import nn

from fedml_dapper.config import Settings
from fedml_dapper.datasets import Division, tied_to_this_process
from fedml_dapper.models import is_compiled


@dataclass(frozen=True)
class WorkerPlan:
    """Number of workers and of their threads; with one worker clients train in this process, one after another."""

    count: int = 1
    threads: int | None = None
    """Torch's threads in each process; None where each of several processes chooses for itself."""
    note: str | None = None
    """Why there is one worker alone, where the settings ask for more."""

    @classmethod
    def of_one(cls, threads: int | None, reason: str | None = None) -> WorkerPlan:
        """Plan for one worker, by default with torch's own number of threads; ``reason`` says why there are no more."""
        note = None if reason is None else f"clients train one after another: {reason}"
        return cls(1, threads or torch.get_num_threads(), note)


def plan_workers(settings: Settings, division: Division, network: nn.Module) -> WorkerPlan:
    """Plan workers as ``device_args`` ask for, for the data of all clients and for ``network``.

    The number of threads changes the last bits of a result, the number of workers does not. So ``auto`` means many
    workers of one thread each, whose results are the same on any number of cores.
    """
    args = settings.device_args
    per_round = settings.train_args.client_num_per_round
    if settings.comm_args.backend != "sp":
        return WorkerPlan(threads=args.threads)
    threads = args.threads or _threads_of_environment() or 1
    count = min(available_cores() // threads if args.workers == "auto" else args.workers, per_round)
    if args.using_gpu or count <= 1:
        return WorkerPlan.of_one(args.threads)
    compiled = (
        "the network is compiled, and torch.compile's compiler is lost in a fork" if is_compiled(network) else None
    )
    reason = _alone_because() or tied_to_this_process(division) or compiled
    return WorkerPlan(count, threads) if reason is None else WorkerPlan.of_one(args.threads, reason)


def _threads_of_environment() -> int:
    """Number that ``OMP_NUM_THREADS`` begins with; 0 where it has none, as OpenMP then goes without it too."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def _alone_because() -> str | None:
    """Return why this process can have no workers, whatever the data; None where it can."""
    if sys.platform != "linux":
        return "only Linux forks processes safely"
    if multiprocessing.current_process().daemon:
        return "this process is a daemon, as those of multiprocessing.Pool are, and may have none of its own"
    return None


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
