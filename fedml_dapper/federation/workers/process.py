"""A worker's process: trains one client after another, and ends with the process that it was forked of."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from fedml_dapper.federation.client import ClientSide
from fedml_dapper.federation.workers.messages import Done, Failed, SharedModel, Step, Task
from fedml_dapper.interruption import disregard
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.profiling import apart

HELD_BACK = {signal.SIGINT, signal.SIGTERM}
"""Signals that a worker must not get before it knows what to do about them."""
_SET_PDEATHSIG = 1
"""Of ``prctl``: the signal that the system sends when the thread that forked this process ends, however it ends."""


def serve(
    connection: Connection, parent: int, threads: int, model: SharedModel, clients: ClientSide,
    update: Callable[[Downlink], Upload],
) -> None:  # fmt: skip
    """Train what comes through ``connection``; never returns. For a process that was just forked of ``parent``."""
    _end_with(parent)
    _leave_signals_to_parent()
    torch.set_num_threads(threads)
    gc.freeze()  # or the collector's marks on what was there before would make copies of all that memory
    try:
        while True:
            task = model.unpack(connection.recv_bytes())
            assert isinstance(task, Task)
            connection.send_bytes(_answer(task, connection, model, clients, update))
    except (EOFError, ConnectionError):  # the parent is gone, or has other plans
        os._exit(0)
    except BaseException:  # noqa: BLE001  # nothing may pass: what the parent would do on its way out is not ours to do
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _answer(
    task: Task, connection: Connection, model: SharedModel, clients: ClientSide, update: Callable[[Downlink], Upload]
) -> memoryview:
    """What came of ``task``, as bytes."""

    def tell(client_id: int, done: int, total: int) -> None:
        try:
            connection.send_bytes(model.pack(Step(client_id, done, total)))
        except ConnectionError:
            os._exit(0)

    client_id = task.downlink.client_id
    started = time.perf_counter()
    clients.memories = {} if task.memory is None else {client_id: task.memory}
    clients.on_step = tell
    try:
        with apart() as profiler:
            upload = update(task.downlink)
        parts = {} if profiler is None else profiler.seconds
        return model.pack(Done(upload, clients.memories[client_id], time.perf_counter() - started, parts))
    except BaseException as error:  # noqa: BLE001  # whatever it is ends the run, and is said there
        return _failed(error, traceback.format_exc(), model)


def _failed(error: BaseException, trace: str, model: SharedModel) -> memoryview:
    """``error``, or what it says where it cannot be read in another process."""
    try:
        packed = model.pack(Failed(error, trace))
        model.unpack(bytes(packed))
    except Exception:  # noqa: BLE001  # errors of users' own classes fail in any way
        return model.pack(Failed(RuntimeError(f"{type(error).__name__}: {error}"), trace))
    return packed


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was faster
        os._exit(0)


def _leave_signals_to_parent() -> None:
    """Ctrl-C reaches all processes of a terminal; the parent ends us. Until now both signals were blocked."""
    signal.signal(signal.SIGINT, disregard)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
