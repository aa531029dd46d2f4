"""Processes that start warm: forks of one that has imported what a run needs, and has done next to nothing else.

Most of the life of a small ``python -m fedml_dapper`` goes into imports, which are the same in each. A fork has them,
and from there on it is a process like any other: its own arguments, folder, environment, output, sockets, pid and end.
Only what leaves no threads and no connections is done before: a process that has some cannot be forked.

:meth:`Nursery.start` stands for ``Popen([sys.executable, ...])``. Where something else does the starting, such as
mpiexec, :meth:`Nursery.python` stands for ``sys.executable``: a process that lives and ends with a fork of its own.
"""

from __future__ import annotations

import atexit
import importlib
import json
import math
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fcntl import F_DUPFD, fcntl
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

SLOW_MODULES = (
    "fedml_dapper.cli",
    "fedml_dapper.platform.launch",
    "fedml_dapper.evaluation.report",
    "sklearn.datasets",
)
NUMBER = struct.Struct("i")
MAX_ORDER_BYTES = 100_000
LOOK_EVERY_S = 0.02
ABOVE_ALL = 100
"""No process of ours has so many files open when it starts."""


class Fork:
    """A process of the nursery at ``address``, to be used as :class:`subprocess.Popen`.

    It runs ``python ARGUMENTS`` with the open ``files``, by the number under which it has them. It does not outlive
    the process that asked for it.
    """

    def __init__(
        self, address: Path, arguments: Sequence[str], folder: Path, environment: Mapping[str, str],
        files: Mapping[int, int],
    ) -> None:  # fmt: skip
        self.args = arguments
        self.returncode: int | None = None
        self._one_reads = threading.Lock()
        self._news = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._news.connect(str(address))
        order = {
            "arguments": list(arguments), "folder": str(folder), "environment": dict(environment), "files": list(files)
        }  # fmt: skip
        socket.send_fds(self._news, [json.dumps(order).encode()], list(files.values()))
        self.pid: int = self._next()

    def poll(self) -> int | None:
        with self._one_reads:  # threads of a test may ask and wait for the same process
            if self.returncode is None and select.select([self._news], [], [], 0)[0]:
                self.returncode = self._next()
                self._news.close()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            time.sleep(LOOK_EVERY_S)  # a lock is held for a look alone: others may wait for the same process
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _next(self) -> int:
        (number,) = NUMBER.unpack(self._news.recv(NUMBER.size))
        return int(number)


class Nursery:
    """The process to fork from. It ends with the one that made it."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="nursery"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self._address = folder / "socket"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(self._address))
        listener.listen(100)
        with listener:
            self._process = subprocess.Popen(
                # pytest in a shell's background ignores Ctrl-C, and so would they
                ["env", "--default-signal=INT", sys.executable, __file__, "serve", str(listener.fileno())],
                env=os.environ | {"OMP_NUM_THREADS": "1", "GRPC_VERBOSITY": "ERROR"},
                stdin=subprocess.PIPE,  # by whose end it knows
                pass_fds=[listener.fileno()],
            )

    def start(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], output: int) -> Fork:
        """As ``Popen([sys.executable, *arguments], cwd=folder, env=environment, stdout=output, stderr=output)``."""
        return Fork(self._address, arguments, folder, environment, {0: 0, 1: output, 2: output})

    @property
    def python(self) -> list[str]:
        """The beginning of a command line, for ``python``."""
        return [sys.executable, "-I", "-S", __file__, "start", str(self._address)]


@cache
def nursery() -> Nursery:
    """The one of this process, started when it is first asked for."""
    return Nursery()


def serve(listener: socket.socket) -> dict[str, Any]:
    """Fork for every order. Returns in the forks only, each with what it was started for."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a guardian ended
    while True:
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            sys.exit()
        connection, _ = listener.accept()
        with connection:
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                message, received, _, _ = socket.recv_fds(connection, MAX_ORDER_BYTES, ABOVE_ALL)
                order: dict[str, Any] = json.loads(message)
                process = os.fork()
                if process != 0:
                    guard(process, connection)
                connection.close()
                out_of_the_way = [fcntl(descriptor, F_DUPFD, ABOVE_ALL) for descriptor in received]
                for descriptor in received:
                    os.close(descriptor)
                for descriptor, number in zip(out_of_the_way, order["files"], strict=True):
                    os.dup2(descriptor, number)
                    os.close(descriptor)
                return order


def guard(process: int, connection: socket.socket) -> NoReturn:
    """Tell the pid of ``process``, wait for its end, tell its exit code; end it where nobody is interested any more.

    The pid is the process's until whoever started it has heard of its end, who may send it a signal till then.
    """
    connection.send(NUMBER.pack(process))
    ended = os.pidfd_open(process)
    if ended not in select.select([ended, connection], [], [])[0]:
        os.kill(process, signal.SIGKILL)
    end = os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert end is not None
    code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.send(NUMBER.pack(code))
        connection.recv(1)  # until it is heard
    os.waitpid(process, 0)
    os._exit(0)


def run(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """What ``python ARGUMENTS`` does: ``-m MODULE ...`` or ``FILE ...``."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(sys.argv[0]).parent))
        runpy.run_path(sys.argv[0], run_name="__main__")


def ended_by(work: Callable[[], None]) -> int:
    """The exit code of a process that does this ``work``, which has said on stderr what ends it."""
    try:
        work()
    except SystemExit as end:
        return code_of(end)
    except BaseException as error:  # noqa: BLE001  # as the interpreter does
        try:
            sys.excepthook(type(error), error, error.__traceback__)
        except SystemExit as end:
            return code_of(end)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def code_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def leave(code: int) -> NoReturn:
    """End as a process ends by itself, but for taking apart the interpreter: in a fork, libraries complain there of
    what the nursery made, and these would be the last lines of whatever a test reads."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def start(address: Path, arguments: list[str]) -> NoReturn:
    """Stand for a fork with this process's own folder, environment and files."""
    numbers = [0, 1, 2, *(int(os.environ[name]) for name in ("PMI_FD",) if name in os.environ)]  # mpiexec's
    code = Fork(address, arguments, Path.cwd(), os.environ, {number: number for number in numbers}).wait()
    if code < 0:  # as its fork was
        os.kill(os.getpid(), -code)
    sys.exit(code)


def main() -> None:
    command, where, *arguments = sys.argv[1:]
    if command == "start":
        start(Path(where), arguments)
    for module in SLOW_MODULES:
        importlib.import_module(module)
    sys.modules["fedml_dapper.datasets.digits_offline"].DIGITS_OFFLINE.load(Path())  # drawn once for all
    assert len(os.listdir("/proc/self/task")) == 1, "an import started a thread, which forks would lack"
    order = serve(socket.socket(fileno=int(where)))
    code = ended_by(partial(run, order["arguments"], order["folder"], order["environment"]))
    if "mpi4py.MPI" in sys.modules:
        sys.exit(code)  # MPI is left at the interpreter's end, and mpiexec takes a rank that did not for dead
    leave(code)


if __name__ == "__main__":
    main()
