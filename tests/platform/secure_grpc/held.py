"""Silos in threads whose training a test holds."""

from __future__ import annotations

import threading
from typing import Any

from fedml_dapper.platform import DapperClientTrainer

from .raw_silo import SECONDS


class Hold:
    """A silo with this :meth:`trainer` does not end the training of ``round_`` before it is let go."""

    def __init__(self, round_: int = 2) -> None:
        self._round = round_
        self._at_work, self._go_on = threading.Event(), threading.Event()

    def trainer(self, model: Any, args: Any) -> DapperClientTrainer:
        return _Held(model, args, self)

    def wait_until_at_work(self) -> None:
        assert self._at_work.wait(SECONDS)

    def let_go(self) -> None:
        self._go_on.set()

    def hold(self, round_: int) -> None:
        if round_ == self._round:
            self._at_work.set()
            assert self._go_on.wait(SECONDS)


class _Held(DapperClientTrainer):
    def __init__(self, model: Any, args: Any, hold: Hold) -> None:
        super().__init__(model, args)
        self._hold = hold

    def train(self, train_data: Any, device: Any, args: Any) -> None:
        self._hold.hold(args.round_idx + 1)
        super().train(train_data, device, args)
