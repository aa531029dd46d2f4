"""FedML's cross-device training type: the runner of a server that thousands of devices call when they may."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import Agreement, Codec, RunJournal, Server
from fedml_dapper.operations import AuditLog
from fedml_dapper.operations.credentials import CredentialFiles
from fedml_dapper.operations.status import StatusBoard
from fedml_dapper.platform.algorithm_flow import AlgorithmFlow
from fedml_dapper.platform.device_desk import DeviceDesk
from fedml_dapper.platform.device_rounds import DeviceRounds
from fedml_dapper.platform.server_aggregator import DapperServerAggregator
from fedml_dapper.platform.transports import open_monitor
from fedml_dapper.secure_grpc import PARTS_NAME, CallServer, OrderCalls

LOGGER = logging.getLogger(__name__)
TURN_SECONDS = 0.05
"""How often the server looks whether a round is to close."""


class CrossDeviceServer(AlgorithmFlow):
    """Runner of the server of devices that call; hand it to ``FedMLRunner`` as ``algorithm_flow``.

    Devices run ``dapper-device run``. For the arguments see :class:`AlgorithmFlow`.
    """

    def _prepare(self) -> None:
        settings = self.experiment.settings
        config = settings.comm_args.dapper_grpc
        if settings.common_args.training_type != "cross_device" or config is None:
            raise ConfigError(
                "CrossDeviceServer is for common_args.training_type cross_device, and this is"
                f" {settings.common_args.training_type}; dapper.runner_for returns the runner that the file asks for"
            )
        self._config = config
        self._codec = Codec(self.experiment.method.problem.layout, Agreement.of(self.experiment))

    def run(self) -> None:
        """Run until the last round is closed, and the devices that are there know it."""
        aggregator = self._server_aggregator or DapperServerAggregator(self._model, self._args)
        run_dir, observers = self._open()
        journal = RunJournal(self.experiment, aggregator.server, observers, run_dir, self._resume)
        try:
            journal.started()
            rounds = DeviceRounds(self.experiment, aggregator.server, self._codec, journal)
            asyncio.run(self._serve(rounds, aggregator.server, run_dir))
        finally:
            journal.finished()
        self._close(run_dir, aggregator.server.whole_model())

    async def _serve(self, rounds: DeviceRounds, server: Server, run_dir: Path) -> None:
        settings = self.experiment.settings
        board = StatusBoard()
        monitor = open_monitor(self._args, 0, board, settings.dapper_args.round_timeout_s)
        audit = AuditLog(self._config.audit_file)
        credentials = CredentialFiles(self._config, 0)
        desk = DeviceDesk(rounds, server, self._config, settings.train_args.comm_round, board)
        num_devices = settings.train_args.client_num_in_total
        folder = run_dir / PARTS_NAME
        orders = OrderCalls(desk, audit)
        calls = CallServer(
            self._config,
            credentials,
            num_devices,
            desk.answer,
            audit,
            orders,
            folder,
            rounds.not_awaited,
            rounds.cut_off,
        )
        desk.strangers = lambda: calls.refused_strangers
        await calls.start()
        looking = asyncio.create_task(calls.look_at_files())
        try:
            while not rounds.all_told():  # devices that do not call are gone after a while
                await asyncio.sleep(TURN_SECONDS)
                if looking.done():
                    looking.result()  # raises why, as nobody would be cut off any more
                rounds.on_turn()
                desk.on_turn()
                if rounds.begin_closing():
                    await asyncio.to_thread(rounds.close)
                    busy = [client_id + 1 for client_id in server.at_work]
                    await asyncio.to_thread(calls.forget_parts, busy)
        finally:
            looking.cancel()
            await calls.stop()
            audit.close()
            if monitor is not None:
                monitor.close()
