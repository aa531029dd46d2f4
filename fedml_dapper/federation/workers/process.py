"""A worker process, which trains one client after another and ends with the process that forked it."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from math import inf
from multiprocessing.connection import Connection

import torch

from fedml_dapper.federation.client import ClientSide
from fedml_dapper.federation.workers.messages import Done, Failed, SharedModel, Step, Task
from fedml_dapper.federation.workers.pipe import WorkerPipe
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.process.freed_memory import freed_memory_kept, give_back_freed_memory
from fedml_dapper.process.interruption import disregard
from fedml_dapper.process.profiling import apart

HELD_BACK = {signal.SIGINT, signal.SIGTERM}
"""Signals that are blocked in a worker until it has set its handlers."""
STEP_SECONDS = 0.1
"""Least time between two messages on one client's steps; those of its first and last step are always sent."""
_SET_PDEATHSIG = 1
"""Option of ``prctl`` that chooses the signal which the system sends when the thread that forked this process ends."""


def serve(
    connection: Connection,
    parent: int,
    threads: int,
    model: SharedModel,
    clients: ClientSide,
    update: Callable[[Downlink], Upload],
) -> None:
    """Train the clients that come through ``connection``, in a process just forked from ``parent``; never returns.

    What one client's training frees serves the next one's, and goes back to the system when there is none.
    """
    _end_with(parent)
    _leave_signals_to_parent()
    torch.set_num_threads(threads)
    gc.freeze()  # or the collector would write its marks into shared memory, and so copy all of it
    pipe = WorkerPipe(connection)
    try:
        with freed_memory_kept():
            while True:
                task = model.unpack(pipe.receive(before_waiting=give_back_freed_memory))
                assert isinstance(task, Task)
                pipe.send(_answer(task, pipe, model, clients, update))
    except BaseException:  # noqa: BLE001  # nothing may pass: what the parent would do on its way out is not ours to do
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _answer(
    task: Task, pipe: WorkerPipe, model: SharedModel, clients: ClientSide, update: Callable[[Downlink], Upload]
) -> memoryview:
    """Train the client of ``task``, and return the encoded message to answer with."""
    told_at = -inf

    def send_step(client_id: int, done: int, total: int) -> None:
        nonlocal told_at
        now = time.monotonic()
        if done == total or now - told_at >= STEP_SECONDS:
            told_at = now
            pipe.send(model.pack(Step(client_id, done, total)))

    client_id = task.downlink.client_id
    started = time.perf_counter()
    clients.memories = {} if task.memory is None else {client_id: task.memory}
    clients.on_step = send_step
    try:
        with apart() as profiler:
            upload = update(task.downlink)
        parts = {} if profiler is None else profiler.seconds
        return model.pack(Done(upload, clients.memories[client_id], time.perf_counter() - started, parts))
    except BaseException as error:  # noqa: BLE001  # it is raised again in the parent, and ends the run
        return _failed(error, traceback.format_exc(), model)


def _failed(error: BaseException, trace: str, model: SharedModel) -> memoryview:
    """Encode ``error``, or its text alone where it cannot be pickled."""
    try:
        packed = model.pack(Failed(error, trace))
        model.unpack(bytes(packed))
    except Exception:  # noqa: BLE001  # errors of users' own classes fail in any way
        return model.pack(Failed(RuntimeError(f"{type(error).__name__}: {error}"), trace))
    return packed


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(0)


def _leave_signals_to_parent() -> None:
    """Ignore Ctrl-C, which reaches all processes of a terminal, and unblock both signals: the parent ends workers."""
    signal.signal(signal.SIGINT, disregard)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
