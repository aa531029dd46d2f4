"""Processes that are killed at a certain step of a secure sum, as by the kernel: without a word; and a server for which
time is over once it waits for none but those."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_PROGRAM = """
import os, runpy, signal, sys
from pathlib import Path
from fedml_dapper.federation import MaskedUpload
from fedml_dapper.device.conversation import Conversation
from fedml_dapper.federation.wire.vocabulary import SUM

answer, send = MaskedUpload.answer, Conversation._send_until_heard
latest = []

def die():
    Path("dead." + sys.argv[sys.argv.index("--rank") + 1]).touch()
    os.kill(os.getpid(), signal.SIGKILL)

def answer_and_note(upload, asked):
    told = answer(upload, asked)
    latest.append(type(told.content).__name__)
    if latest[-1] == "{step}" and "{when}" == "before":
        die()
    return told

def send_and_die(manager, message):
    send(manager, message)
    if message.get_type() == SUM and latest[-1] == "{step}":
        die()

MaskedUpload.answer = answer_and_note
Conversation._send_until_heard = send_and_die
runpy.run_module("fedml_dapper", run_name="__main__")
"""


def dying_program(
    folder: Path, step: Literal["Deal", "Masked", "Consent", "Revealed"], when: Literal["before", "after"]
) -> Path:
    """The program of a silo that dies right before, or after, it sends what that step asks for."""
    program = folder / f"dies_{when}_{step}.py"
    program.write_text(_PROGRAM.format(step=step, when=when))
    return program


_SERVER = """
import os, runpy, signal
from fedml_dapper.federation.round.secret_sums import SecretSums

closing = SecretSums.closing

def close_and_die(sums, opened, unfinished):
    closing(sums, opened, unfinished)
    if opened.number == {round_}:
        os.kill(os.getpid(), signal.SIGKILL)

SecretSums.closing = close_and_die
runpy.run_module("fedml_dapper", run_name="__main__")
"""


def dying_server(folder: Path, round_: int) -> Path:
    """The program of a server that dies when it has opened the sum of that round, before it writes it down."""
    program = folder / "server_dies.py"
    program.write_text(_SERVER.format(round_=round_))
    return program


_BURYING = """
import runpy
from pathlib import Path
from fedml_dapper.platform.phase import Phase
from fedml_dapper.platform.server_manager import DapperServerManager

on_turn = DapperServerManager.on_turn

def on_turn_among_the_dead(server):
    on_turn(server)
    dead = {int(file.suffix[1:]) - 1 for file in Path().glob("dead.*")}
    if server._summing is not None:
        awaited = server._summing._exchange.awaited
    else:
        is_open = server._phase is Phase.TRAINING
        awaited = server._sent.keys() - server._collector.answered() - server._silent if is_open else set()
    if awaited and awaited <= dead:
        server.set_deadline(0)  # what a dead one had sent comes first

DapperServerManager.on_turn = on_turn_among_the_dead
runpy.run_module("fedml_dapper", run_name="__main__")
"""


def burying_server(folder: Path) -> Path:
    """The program of a server below ``folder`` for which a round's time, and that of a step of its sum, is over once it
    waits for none but silos that died of :func:`dying_program`. The experiment's timeouts are to be long."""
    program = folder / "server_buries.py"
    program.write_text(_BURYING)
    return program
