"""A server and its silos in threads of this process, over FedML's own gRPC on loopback.

A process of its own costs each of them seconds: to start, and to copy what it shares with the others. Here each has
its own experiment, arguments, manager and port. What ends a process, and what it prints, is not to be seen here.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fedml.arguments import add_args

from fedml_dapper.config import load_with_notes
from fedml_dapper.device.event_loop import EventLoop
from fedml_dapper.federation import RoundRecord, build_experiment, read_ledger
from fedml_dapper.platform.arguments import start
from fedml_dapper.platform.client_trainer import DapperClientTrainer
from fedml_dapper.platform.dataset import fedml_dataset
from fedml_dapper.platform.distributed import DistributedRunner
from fedml_dapper.platform.program import attach
from fedml_dapper.platform.round_manager import RoundManager

from ..waiting import wait_until

WITHIN_S = 300
"""For what takes seconds, on a machine that does much else."""


class Federation:
    """Members are known by rank; timeouts of the experiment are to be long, as time passes when a test says so."""

    def __init__(self, config: Path, num_silos: int, run_dir: Path, patch: pytest.MonkeyPatch) -> None:
        self.config, self.num_silos, self.run_dir = config, num_silos, run_dir
        self.there: set[int] = set()
        """Those whose word that they are there was dealt with."""
        self.heard: Counter[int] = Counter()
        """How many uploads of each were dealt with."""
        self._managers: dict[int, EventLoop] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._errors: dict[int, BaseException] = {}
        loop = EventLoop.loop

        def loop_and_be_known(manager: EventLoop) -> None:
            self._managers[int(manager.rank)] = manager
            loop(manager)

        patch.setattr(EventLoop, "loop", loop_and_be_known)
        self._tells(patch, "handle_message_client_status_update", self.there.add)
        self._tells(patch, "handle_message_receive_model_from_client", lambda rank: self.heard.update([rank]))
        patch.setattr("sys.argv", ["program"])  # of which FedML reads arguments too
        patch.setenv("HOME", str(run_dir.parent))

    def start(
        self, rank: int, *above: Path, config: Path | None = None,
        trainer: Callable[[Any, Any], DapperClientTrainer] = DapperClientTrainer,
    ) -> None:  # fmt: skip
        """Start a member: of another experiment, with files laid over it, or with a trainer of its own."""
        loaded = load_with_notes([config or self.config, *above])
        command_line = add_args()
        command_line.yaml_config_file, command_line.rank = str(config or self.config), rank
        command_line.role = "client" if rank else "server"
        args = start(loaded.settings, loaded.sections, command_line)
        experiment = build_experiment(loaded.settings, rank=rank)
        attach(args, experiment)
        model = experiment.method.problem.backbone
        dataset = fedml_dataset(experiment.division, experiment.num_classes)
        trains = trainer(model, args) if rank else None
        runner = DistributedRunner(
            args, experiment.device, dataset, model, trains, run_dir=self.run_dir, resume=True
        )  # fmt: skip
        self.run(rank, runner)

    def run(self, rank: int, runner: DistributedRunner) -> None:
        """Start a member that was prepared."""
        self._errors.pop(rank, None)

        def take_part() -> None:
            try:
                runner.run()
            except BaseException as error:  # noqa: BLE001  # whoever waits for it looks at it
                self._errors[rank] = error

        self._threads[rank] = threading.Thread(target=take_part, name=f"rank {rank}", daemon=True)
        self._threads[rank].start()

    def start_all(self) -> None:
        for rank in range(self.num_silos + 1):
            self.start(rank)

    def wait(self, *ranks: int) -> None:
        """Until these have ended, well."""
        for rank in ranks or self._threads:
            assert self.error_of(rank) is None

    def error_of(self, rank: int) -> BaseException | None:
        """What ended the member, once it has ended."""
        self._threads[rank].join(WITHIN_S)
        assert not self._threads[rank].is_alive(), f"rank {rank} has not ended"
        return self._errors.get(rank)

    def rounds(self) -> list[RoundRecord]:
        ledger = self.run_dir / "ledger.jsonl"
        return read_ledger(ledger)[1] if ledger.exists() and ledger.read_bytes().count(b"\n") else []

    def wait_for_round(self, round_: int) -> None:
        self._wait_until(lambda: len(self.rounds()) >= round_)

    def wait_for_all_but(self, *missing: int) -> None:
        """Until the open round waits for none but the ranks ``missing``."""
        others = set(range(1, self.num_silos + 1)) - set(missing)
        self._wait_until(lambda: {self.heard[rank] for rank in others} == {len(self.rounds()) + 1})

    def wait_for(self, *ranks: int) -> None:
        """Until the server knows that these are there."""
        self._wait_until(lambda: self.there >= set(ranks))

    def let_time_pass(self) -> None:
        """As much as the server waits for now."""
        server = self._managers[0]

        def end_of_waiting() -> str:
            server.set_deadline(0)
            return "it is late"

        server.call(end_of_waiting).result(WITHIN_S)

    def leave(self, rank: int) -> None:
        """The member ends without a word to the others."""
        self._managers[rank].stop()
        self._threads[rank].join(WITHIN_S)

    def stop(self) -> None:
        """End all that have not ended; the server last, as who has an upload would look for it for an hour."""
        for ranks in (self._threads.keys() - {0}, {0} & self._threads.keys()):
            for rank in ranks & self._managers.keys():
                self._managers[rank].stop()
            for rank in ranks:
                self._threads[rank].join(WITHIN_S)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        def is_so_or_over() -> bool:
            over = not self._threads[0].is_alive()
            so = is_so()
            assert so or not over, self._errors.get(0, "the server has ended")
            return so

        wait_until(is_so_or_over, WITHIN_S)

    @staticmethod
    def _tells(patch: pytest.MonkeyPatch, handler: str, tell: Callable[[int], object]) -> None:
        handle = getattr(RoundManager, handler)

        def handle_and_tell(server: RoundManager, message: Any) -> None:
            handle(server, message)
            tell(int(message.get_sender_id()))

        patch.setattr(RoundManager, handler, handle_and_tell)
