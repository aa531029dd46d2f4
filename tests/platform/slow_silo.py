"""Silos that are slower than the others: ten times, by the clock, until rounds have closed, or until a test says so."""

from __future__ import annotations

from pathlib import Path

_PROGRAM = """
import time
from fedml_dapper import platform as dapper

class Slow(dapper.DapperClientTrainer):
    def train(self, train_data, device, args):
        begun = time.process_time()  # what training takes of this machine, however busy it is
        super().train(train_data, device, args)
        time.sleep(9 * (time.process_time() - begun))  # as a slower machine would be at work

args = dapper.init()
dataset, model = dapper.load(args)
dapper.DistributedRunner(args, None, dataset, model, client_trainer=Slow(model, args)).run()
"""


_BY_ROUNDS = """
import time
from pathlib import Path
from fedml_dapper import platform as dapper

ledger = Path("run/ledger.jsonl")

class Paced(dapper.DapperClientTrainer):
    def train(self, train_data, device, args):
        super().train(train_data, device, args)
        if args.rank == {slow}:
            closed = min(args.round_idx + 3, args.comm_round)
            while ledger.read_bytes().count(b"\\n") <= closed:  # the first line is the run's
                time.sleep(0.05)  # between looks: files do not call
        elif args.round_idx == 6:  # so that rounds are left for what the slow one sends
            while b'"client":{client},' not in ledger.read_bytes().partition(b"\\n")[2]:
                time.sleep(0.05)  # between looks: files do not call

args = dapper.init()
dataset, model = dapper.load(args)
dapper.DistributedRunner(args, None, dataset, model, client_trainer=Paced(model, args)).run()
"""

AT_WORK = "trains until it is let go"
_UNTIL_LET_GO = f"""
import runpy, time
from pathlib import Path
from fedml_dapper.platform import DapperClientTrainer

train, let_go = DapperClientTrainer.train, Path("let_go")

def train_until_let_go(trainer, train_data, device, args):
    if args.round_idx == 1:
        print("{AT_WORK}", flush=True)
        while not let_go.exists():
            time.sleep(0.05)  # between looks: files do not call
    train(trainer, train_data, device, args)

DapperClientTrainer.train = train_until_let_go
runpy.run_module("fedml_dapper", run_name="__main__")
"""


def slow_program(folder: Path) -> Path:
    """The program that such a silo runs, below ``folder``."""
    program = folder / "slow.py"
    program.write_text(_PROGRAM)
    return program


def paced_program(folder: Path, slow: int) -> Path:
    """The program of all silos of a federation below ``folder``: that of rank ``slow`` answers when two more rounds
    have closed without it, however fast the machine is, and by the seventh round the others wait for its first upload
    to count."""
    program = folder / "paced.py"
    program.write_text(_BY_ROUNDS.format(slow=slow, client=slow - 1))
    return program


def busy_program(folder: Path) -> Path:
    """The program of a silo of a federation below ``folder`` that does not end the second round's training before
    :func:`let_go`. Once it has said :data:`AT_WORK`, a signal or an order finds it at work, and the round open."""
    program = folder / "busy.py"
    program.write_text(_UNTIL_LET_GO)
    return program


def let_go(folder: Path) -> None:
    """The busy silo trains to the end."""
    (folder / "let_go").touch()
