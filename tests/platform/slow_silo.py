"""A silo whose machine is ten times slower than the others'."""

from __future__ import annotations

from pathlib import Path

_PROGRAM = """
import time
from fedml_dapper import platform as dapper

class Slow(dapper.DapperClientTrainer):
    def train(self, train_data, device, args):
        begun = time.process_time()  # what training takes of this machine, however busy it is
        super().train(train_data, device, args)
        time.sleep(9 * (time.process_time() - begun))

args = dapper.init()
dataset, model = dapper.load(args)
dapper.DistributedRunner(args, None, dataset, model, client_trainer=Slow(model, args)).run()
"""


def slow_program(folder: Path) -> Path:
    """The program that such a silo runs, below ``folder``."""
    program = folder / "slow.py"
    program.write_text(_PROGRAM)
    return program
