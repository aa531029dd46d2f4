"""FedML's dashboard (MLOps), for runs that its platform started."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import fedml.core.mlops as core_mlops
from fedml import mlops
from fedml.core.mlops import MLOpsStore, ServerConstants

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import RoundRecord, RunObserver, RunRecord, metrics_of

_log = logging.getLogger(__name__)

TRAINING = "train"
AGGREGATION = "server.agg_and_eval"
"""FedML's own names of the two phases of a round."""


class MlopsSink(RunObserver):
    """Sends metrics by ``fedml.mlops.log``, the phases of a round as events, and the number of finished rounds.

    FedML's own managers send events and rounds; ours replace them, so this sink does it for every runner. Rounds count
    from 0, as FedML's do.
    """

    def __init__(self, settings: Settings) -> None:
        self._rounds = settings.train_args.comm_round
        self._round_index = -1
        self._rounds_done = 0
        self._still_training = 0
        self._phase: str | None = None

    def run_started(self, record: RunRecord) -> None:
        with _fedmls_mlops():
            mlops.log_round_info(self._rounds, -1)  # -1 means "about to start"; this call connects
            if MLOpsStore.mlops_metrics is None:
                raise ConfigError("FedML's platform gave no addresses; see `fedml login`, or set using_mlops: false")
            core_mlops.log_aggregation_status(ServerConstants.MSG_MLOPS_SERVER_STATUS_RUNNING)

    def round_started(self, round_: int, client_ids: Sequence[int]) -> None:
        self._round_index = round_ - 1
        self._still_training = len(client_ids)
        self._enter(TRAINING)

    def client_stepped(self, client_id: int, done: int, total: int) -> None:
        if done == total:
            self._still_training -= 1
            if self._still_training == 0:
                self._enter(AGGREGATION)

    def round_finished(self, record: RoundRecord) -> None:
        self._enter(None)
        self._rounds_done = record.round
        with _fedmls_mlops():
            mlops.log_round_info(self._rounds, self._round_index)
            mlops.log({"round": record.round, **metrics_of(record)}, step=record.round)

    def run_finished(self) -> None:
        """Send how the run ended; without this it is shown as failed."""
        with _fedmls_mlops():
            if self._rounds_done == self._rounds:
                core_mlops.log_aggregation_finished_status()
            else:
                core_mlops.log_aggregation_failed_status()

    def _enter(self, phase: str | None) -> None:
        with _fedmls_mlops():
            if self._phase is not None:
                mlops.event(self._phase, event_started=False, event_value=str(self._round_index))
            if phase is not None:
                mlops.event(phase, event_started=True, event_value=str(self._round_index))
        self._phase = phase


@contextmanager
def reporting_client_status() -> Iterator[None]:
    """Tell FedML's dashboard, if it can be reached, whether the block, a client process's work, ended well."""
    ended = core_mlops.log_training_failed_status
    try:
        yield
        ended = core_mlops.log_training_finished_status
    finally:
        try:
            with _fedmls_mlops():
                ended()
        except Exception as error:  # noqa: BLE001  whatever FedML's connection raises is not worth the client's work
            _log.warning("FedML's dashboard was not told how this client ended (%s: %s)", type(error).__name__, error)


@contextmanager
def _fedmls_mlops() -> Iterator[None]:
    """Work around faults of ``fedml.mlops``; has to be entered around every call of it.

    * ``mlops.log`` runs all of ``fedml.init`` again, each time: it asks the platform anew, seeds the global random
      streams, and reads the command line's file unchecked. Here it is given the present arguments instead.
    * Its calls look for the device's id in the attribute in which transports expect the rank. So the id stands there
      meanwhile.
    * A failed ``mlops.log`` keeps a lock, for which the next call waits for ever, and FedML's managers make the same
      calls unguarded. So a failure switches MLOps off for FedML too.
    """
    args = MLOpsStore.mlops_args
    device = getattr(args, "run_device_id", "0")
    place = "server_id" if args.rank == 0 else "client_id"
    try:
        with (
            patch.object(core_mlops, "get_fedml_args", lambda: args),
            patch.object(args, place, device, create=True) if device != "0" else nullcontext(),
        ):
            core_mlops.set_realtime_params()  # or status calls would use the id that the call before them found
            yield
    except Exception:
        args.using_mlops = False
        raise
