"""Runs that come to a certain round and no further: whoever interrupts or kills one finds it at work, however fast the
machine is."""

from __future__ import annotations

_HOLD = """
import time
import fedml_dapper.federation

begin_round = fedml_dapper.federation.Server.round_clients

def begin_round_unless_held(server):
    if server.state.round + 1 == {round_}:
        for _ in range(6000):  # in naps: a signal right before a sleep does not cut it short
            time.sleep(0.1)
    return begin_round(server)

fedml_dapper.federation.Server.round_clients = begin_round_unless_held
"""


def held_before(round_: int | str) -> str:
    """What a program begins with whose run does not begin ``round_``: a number, or a variable of the program."""
    return _HOLD.format(round_=round_)
