"""A server, or an edge, for whom no time passes until a test says so: no timeout depends on how fast a machine is.

It says whose coming and whose answers it has dealt with, so that a test knows when to.
"""

from __future__ import annotations

import signal
from collections.abc import Collection
from pathlib import Path
from subprocess import Popen

from ..waiting import wait_until
from .nursery import Fork
from .processes import Silos

HALT_S = 600
_PROGRAM = """
import runpy, signal
from fedml_dapper.platform.round_manager import RoundManager
from fedml_dapper.process import interruption

interruption.GRACE_S = {halt_s}  # of a loaded machine's time, an end in order can take more than the eight seconds

def tells(text, handle):
    def handle_and_tell(server, message):
        handle(server, message)
        print(f"rank {message.get_sender_id()} {text}", flush=True)
    return handle_and_tell

def listens(loop):
    def listen_and_loop(server):
        signal.signal(signal.SIGUSR1, lambda *_: server.set_deadline(0))
        signal.signal(signal.SIGUSR2, lambda *_: server.set_deadline(-{halt_s}))
        loop(server)
    return listen_and_loop

for name, text in (
    ("handle_message_receive_model_from_client", "was heard"), ("handle_message_client_status_update", "is there")
):
    setattr(RoundManager, name, tells(text, getattr(RoundManager, name)))
RoundManager.loop = listens(RoundManager.loop)
runpy.run_module("fedml_dapper", run_name="__main__")
"""


def timeless_program(folder: Path) -> Path:
    """The program that such a server runs, below ``folder``. The experiment's timeouts are to be long."""
    program = folder / "timeless.py"
    program.write_text(_PROGRAM.replace("{halt_s}", str(HALT_S)))
    return program


def let_time_pass(server: Fork | Popen[bytes]) -> None:
    """As much as this server or edge waits for now. It is to have said something before."""
    server.send_signal(signal.SIGUSR1)


def let_time_pass_in_a_halt(server: Fork | Popen[bytes]) -> None:
    """As when this process is halted for so long that what it waited for is over since :data:`HALT_S`."""
    server.send_signal(signal.SIGUSR2)


def wait_for_all_but(silos: Silos, *missing: int) -> bool:
    """Until the open round waits for none but the ranks ``missing``; False if the run ends before one does."""
    others = set(range(1, silos.num_clients + 1)) - set(missing)

    def has_ended() -> bool:
        return silos.processes[0].poll() is not None

    wait_until(lambda: has_ended() or have_answered(silos, others), otherwise=lambda: silos.output(0))
    return not has_ended()


def have_answered(silos: Silos, ranks: Collection[int], to: int = 0) -> bool:
    """Whether these have answered the server or edge in every round and in the one that is open."""
    said = silos.output(to)
    return {said.count(f"rank {rank} was heard\n") for rank in ranks} == {len(silos.rounds()) + 1}  # read after it
