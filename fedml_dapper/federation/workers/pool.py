"""Pool of worker processes, forked from this one, each of which trains one client after another.

Why processes are forked: a fork takes 0.02 s and shares all memory until somebody writes to it, data and libraries
included. A fresh process would take seconds for its imports and its copy of the data, and hundreds of megabytes for
both. And networks, methods and data of users need not be picklable.

Why these forks are safe:

* A forked process has one thread, and would wait for ever for other threads that its copied memory mentions. GNU's
  OpenMP, by which torch computes, keeps a pool of threads for each thread that ever computed. So processes are forked
  by a thread of their own, which never computes.
* A lock that another thread holds at the fork stays locked. The first workers are forked before trackers and terminal
  have threads, and a worker uses nothing but torch, its data and its pipe.
* A GPU cannot be used after a fork, so workers are for CPUs (``parallelism.py``).

A worker has its next client at hand while it trains one, so that it need not wait until this process, which may be
folding uploads, has time for it.

A round's clients begin in the order of their cost (``federation/round/client_queue.py``). Their uploads are handed on
in client order all the same, and wait here until then.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from types import TracebackType

from fedml_dapper.errors import DapperError
from fedml_dapper.federation.client import ClientSide
from fedml_dapper.federation.round.client_queue import ClientQueue
from fedml_dapper.federation.server import Server
from fedml_dapper.federation.workers.messages import Done, Failed, SharedModel, Step, Task
from fedml_dapper.federation.workers.process import HELD_BACK, serve
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.process.profiling import waiting, worked_apart

LOGGER = logging.getLogger(__name__)
AT_HAND = 2
"""Most clients that a worker is given at a time: the one that it trains, and its next."""
MOST_DEATHS = 3
"""How often a worker may die of one client in one round before the run fails."""


@dataclass(eq=False)
class _Worker:
    process: ForkProcess
    connection: Connection
    tasks: deque[Task] = field(default_factory=deque)
    """Clients that it was given and has not answered for: the one that it trains, and its next."""


class WorkerPool:
    """Workers that train the clients of a round side by side.

    Enter the context before trackers and the like start threads; all workers are gone when it is left, in whichever
    way.

    Args:
        count: Number of workers.
        threads: Torch's threads in each of them.
        server: Makes downlinks, and keeps clients' memories.
        clients: The clients that ``update`` trains; their ``on_step`` is called in this process.
        update: Trains one client, in a worker.
        cost: Cost of a client's round, by client id and in any unit.
    """

    def __init__(
        self,
        count: int,
        threads: int,
        server: Server,
        clients: ClientSide,
        update: Callable[[Downlink], Upload],
        cost: Callable[[int], float],
    ) -> None:
        self._server = server
        self._clients = clients
        self._update = update
        self._cost = cost
        self._threads = threads
        self._model = SharedModel(server.state.weights)
        self._forker = ThreadPoolExecutor(1, "forker", _defer_signals)
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
            worker.process.kill()  # nothing is lost: memories and uploads are kept in this process
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()
        self._forker.shutdown()

    def uploads(self, client_ids: Sequence[int]) -> Iterator[Upload]:
        """Train the open round's clients, and yield their uploads in the order of ``client_ids``.

        Raises:
            DapperError: Workers die of one client again and again. Errors of a client's training are raised as well.
        """
        self._model.show(self._server.state.weights)
        self._deaths.clear()
        turns = ClientQueue(client_ids, self._cost, self._count)
        done = dict[int, Done]()
        counted = set[int]()
        for client_id in client_ids:
            while True:  # until this client's upload is there; those of later clients wait in `done`
                self._occupy(turns, counted)
                if client_id in done:
                    break
                done |= self._received()
            counted.add(client_id)
            yield self._accepted(done.pop(client_id))

    def _occupy(self, turns: ClientQueue, counted: set[int]) -> None:
        """Give those clients that may begin to idle workers, and then the next ones to those that train.

        The last clients of a round wait for a worker that is idle, or one could wait behind another's long training.
        """
        for given in range(AT_HAND):
            for worker in list(self._workers):
                is_due = len(worker.tasks) == given and (given == 0 or len(turns.left) > len(self._workers))
                client_id = turns.take(counted) if is_due else None
                if client_id is not None:
                    self._give(worker, Task(self._server.downlink(client_id), self._server.memories.get(client_id)))

    def _give(self, worker: _Worker, task: Task) -> None:
        worker.tasks.append(task)
        try:
            worker.connection.send_bytes(self._model.pack(task))
        except ConnectionError:
            self._replace(worker)

    def _received(self) -> dict[int, Done]:
        """Wait for messages of workers, and return those of clients that are done, by client id."""
        busy = {worker.connection: worker for worker in self._workers if worker.tasks}
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
                    _note(error, f"\nWhere a client's process raised it:\n{trace}")
                    raise error
                case Done():
                    busy[connection].tasks.popleft()
                    done[message.upload.client_id] = message
        return done

    def _accepted(self, done: Done) -> Upload:
        self._server.memories[done.upload.client_id] = done.memory
        worked_apart(done.seconds, done.parts)
        return done.upload

    def _replace(self, dead: _Worker) -> None:
        """Fork a new worker for the tasks that ``dead`` has not finished."""
        dead.process.join()
        dead.connection.close()
        client_id = dead.tasks[0].downlink.client_id
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
        place = self._workers.index(dead)
        self._workers[place] = self._forked()
        for task in dead.tasks:
            self._give(self._workers[place], task)  # the new one may have ended meanwhile, and be replaced

    def _forked(self) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=self._serve, args=(ours, theirs, os.getpid()))
        try:
            self._forker.submit(process.start).result()
        except OSError as error:
            raise DapperError(f"no process for a client: {error.strerror}; lower device_args.workers") from error
        theirs.close()  # or reading from ours would not fail when the worker ends
        return _Worker(process, ours)

    def _serve(self, parents: Connection, connection: Connection, parent: int) -> None:
        """Run the worker's side, in the forked process."""
        parents.close()
        serve(connection, parent, self._threads, self._model, self._clients, self._update)


def _note(error: BaseException, text: str) -> None:
    """Let ``error`` end its traceback, where that is seen, with a note; Python 3.10 knows none and has it logged."""
    if sys.version_info >= (3, 11):
        error.add_note(text)
    else:
        LOGGER.error(text)


def _defer_signals() -> None:
    # A forked process starts with the signals blocked that the forking thread has blocked.
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)


def _death(process: ForkProcess) -> str:
    code = process.exitcode or 0
    return f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
