"""A server for whom no time passes until a test says so: what would take a timeout takes a moment, on any machine.

It says which answers it has dealt with, so that a test knows when to.
"""

from __future__ import annotations

import signal
from pathlib import Path

from ..waiting import wait_until
from .processes import Silos

_PROGRAM = """
import runpy, signal
from fedml_dapper.platform.server_manager import DapperServerManager

take, loop = DapperServerManager.handle_message_receive_model_from_client, DapperServerManager.loop

def telling(server, message):
    take(server, message)
    print(f"heard rank {message.get_sender_id()}", flush=True)

def listening(server):
    signal.signal(signal.SIGUSR1, lambda *_: server.set_deadline(0))
    loop(server)

DapperServerManager.handle_message_receive_model_from_client, DapperServerManager.loop = telling, listening
runpy.run_module("fedml_dapper", run_name="__main__")
"""


def timeless_program(folder: Path) -> Path:
    """The program that such a server runs, below ``folder``. The experiment's timeouts are to be long."""
    program = folder / "timeless.py"
    program.write_text(_PROGRAM)
    return program


def let_time_pass(silos: Silos) -> None:
    """As much as the server at rank 0 waits for now."""
    silos.processes[0].send_signal(signal.SIGUSR1)


def wait_for_all_but(silos: Silos, missing: int) -> bool:
    """Until the open round waits for rank ``missing`` alone; False if the run ends before one does."""
    others = [rank for rank in range(1, silos.num_clients + 1) if rank != missing]

    def does_wait() -> bool:
        said = silos.output(0)
        return {said.count(f"heard rank {rank}\n") for rank in others} == {len(silos.rounds()) + 1}  # read after it

    def has_ended() -> bool:
        return silos.processes[0].poll() is not None

    wait_until(lambda: has_ended() or does_wait(), otherwise=lambda: silos.output(0))
    return not has_ended()
