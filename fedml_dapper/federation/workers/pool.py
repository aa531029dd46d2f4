"""Clients that train side by side: processes forked of this one, each of which trains one client at a time.

Why forked: a fork takes 0.02 s, and shares all memory until somebody writes to it, the data and the libraries among
it. A fresh process would take seconds for its imports and its copy of the data, and hundreds of megabytes for both. And
whatever a user brings, networks, methods and data of any kind, is there without being pickled.

What makes forks dangerous, and why these are not:

* A fork has one thread, and waits for ever for those that it remembers. GNU's OpenMP, by which torch computes, keeps
  a pool of threads for each thread that ever computed. So a thread of its own forks, which never computes.
* What another thread had locked stays locked. The first workers are forked before trackers and terminal have threads,
  and a worker uses nothing but torch, its data and its pipe.
* A GPU does not survive it; so workers are for CPUs (``plan.py``).

A round's clients begin in the order of what they cost (``federation/turns.py``). Their uploads are handed on in client
order all the same, and until then wait here.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from types import TracebackType

from fedml_dapper.errors import DapperError
from fedml_dapper.federation.client import ClientSide
from fedml_dapper.federation.server import Server
from fedml_dapper.federation.turns import Turns
from fedml_dapper.federation.workers.messages import Done, Failed, SharedModel, Step, Task
from fedml_dapper.federation.workers.process import HELD_BACK, serve
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.profiling import waiting, worked_apart

LOGGER = logging.getLogger(__name__)
MOST_DEATHS = 3
"""Of workers that trained one client in one round."""


@dataclass(eq=False)
class _Worker:
    process: ForkProcess
    connection: Connection
    task: Task | None = None


class WorkerPool:
    """``count`` workers of ``threads`` threads each, in which ``update`` trains a client of ``server``.

    ``clients`` are those that ``update`` trains, and whose ``on_step`` hears of it here; ``cost`` is what a client's
    round takes in comparison with others'. To be entered before trackers and the like start threads; workers are gone
    when it is left, however.
    """

    def __init__(
        self, count: int, threads: int, server: Server, clients: ClientSide, update: Callable[[Downlink], Upload],
        cost: Callable[[int], float],
    ) -> None:  # fmt: skip
        self._server = server
        self._clients = clients
        self._update = update
        self._cost = cost
        self._threads = threads
        self._model = SharedModel(server.state.weights)
        self._forker = ThreadPoolExecutor(1, "forker", _hold_signals_back)
        self._workers: list[_Worker] = []
        self._count = count
        self._deaths: Counter[int] = Counter()

    def __enter__(self) -> WorkerPool:
        while len(self._workers) < self._count:
            self._workers.append(self._forked())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.process.kill()  # it holds nothing that is not here
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()
        self._forker.shutdown()

    def uploads(self, client_ids: Sequence[int]) -> Iterator[Upload]:
        """Train the open round's clients, and give their uploads in the order of ``client_ids``.

        Raises what a client's training raises, and :class:`DapperError` where workers die of it again and again.
        """
        self._model.show(self._server.state.weights)
        self._deaths.clear()
        turns = Turns(client_ids, self._cost, self._count)
        done = dict[int, Done]()
        counted = set[int]()
        for client_id in client_ids:
            while True:
                self._occupy(turns, counted)
                if client_id in done:
                    break
                done |= self._heard()
            counted.add(client_id)
            yield self._taken(done.pop(client_id))

    def _occupy(self, turns: Turns, counted: set[int]) -> None:
        """Give idle workers those clients that may begin."""
        for worker in self._workers:
            client_id = turns.take(counted) if worker.task is None else None
            if client_id is not None:
                task = Task(self._server.downlink(client_id), self._server.memories.get(client_id))
                self._give(worker, task)

    def _give(self, worker: _Worker, task: Task) -> None:
        worker.task = task
        try:
            worker.connection.send_bytes(self._model.pack(task))
        except ConnectionError:
            self._replace(worker)

    def _heard(self) -> dict[int, Done]:
        """Wait until workers have something to say; those clients that are done."""
        busy = {worker.connection: worker for worker in self._workers if worker.task is not None}
        with waiting():
            ready = [connection for connection in wait(list(busy)) if isinstance(connection, Connection)]
        done: dict[int, Done] = {}
        for connection in ready:
            try:
                message = self._model.unpack(connection.recv_bytes())
            except (EOFError, OSError):
                self._replace(busy[connection])
                continue
            match message:
                case Step(client_id, steps, total):
                    self._clients.on_step(client_id, steps, total)
                case Failed(error, trace):
                    # a note stands below all else, so that it is seen
                    error.add_note(f"\nWhere a client's process raised it:\n{trace}")
                    raise error
                case Done():
                    busy[connection].task = None
                    done[message.upload.client_id] = message
        return done

    def _taken(self, done: Done) -> Upload:
        self._server.memories[done.upload.client_id] = done.memory
        worked_apart(done.seconds, done.parts)
        return done.upload

    def _replace(self, dead: _Worker) -> None:
        """Let a new worker do what ``dead`` has not finished."""
        dead.process.join()
        dead.connection.close()
        assert dead.task is not None
        client_id = dead.task.downlink.client_id
        death = _death(dead.process)
        self._deaths[client_id] += 1
        if self._deaths[client_id] >= MOST_DEATHS:
            self._workers.remove(dead)
            raise DapperError(
                f"client {client_id}: {MOST_DEATHS} processes that trained it ended before it was done, the last one"
                f" {death}; where nobody did that, memory ran out: lower device_args.workers ({self._count}) or"
                " train_args.batch_size"
            )
        LOGGER.warning("client %d: its worker ended before it was done, %s; another trains it again", client_id, death)
        new = self._forked()
        self._workers[self._workers.index(dead)] = new
        self._give(new, dead.task)

    def _forked(self) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=self._serve, args=(ours, theirs, os.getpid()))
        try:
            self._forker.submit(process.start).result()
        except OSError as error:
            raise DapperError(f"no process for a client: {error.strerror}; lower device_args.workers") from error
        theirs.close()  # so that ours tells of the worker's end
        return _Worker(process, ours)

    def _serve(self, parents: Connection, connection: Connection, parent: int) -> None:
        """In the worker."""
        parents.close()
        serve(connection, parent, self._threads, self._model, self._clients, self._update)


def _hold_signals_back() -> None:
    """A worker starts with the signals blocked that the thread which forks it has blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)


def _death(process: ForkProcess) -> str:
    code = process.exitcode or 0
    return f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
