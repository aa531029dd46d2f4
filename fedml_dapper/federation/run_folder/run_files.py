"""The files that a run writes below its folder, from which it can be resumed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedml_dapper.errors import DataError
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.observer import RunObserver
from fedml_dapper.federation.run_folder.checkpoint import Checkpoint
from fedml_dapper.federation.run_folder.checkpoint_folder import CheckpointFolder
from fedml_dapper.federation.run_folder.file_names import (
    ACCOUNT_NAME,
    CHECKPOINTS_NAME,
    EVICTED_NAME,
    LEDGER_NAME,
    MODEL_NAME,
    OPENED_NAME,
)
from fedml_dapper.federation.run_folder.ledger import LedgerWriter, read_unfinished
from fedml_dapper.federation.run_folder.model_file import origin_of, save_model
from fedml_dapper.federation.run_folder.own_code import note_code
from fedml_dapper.federation.run_folder.records import PrivacySpent, RoundRecord, RunRecord
from fedml_dapper.federation.server import Server
from fedml_dapper.files.atomic import written_whole
from fedml_dapper.files.locks import unlock_folder
from fedml_dapper.pruning import Tensors

LOGGER = logging.getLogger(__name__)
_EVICTED = TypeAdapter(frozenset[int])


class RunFiles(RunObserver):
    """Ledger, checkpoints and global model of the run that ``server`` drives.

    They are written in this order. So the ledger has all rounds of a checkpoint, and a run whose last global model is
    written is complete. A run that is cut short between two checkpoints writes one on its way out.
    """

    def __init__(self, experiment: Experiment, server: Server, run_dir: Path) -> None:
        self._settings = experiment.settings
        privacy = experiment.method.problem.privacy
        self._has_secrets = privacy is not None and privacy.is_secret
        self._every_round = self._has_secrets or experiment.sums_in_secret
        """Whether to write a checkpoint after every round. A round that is run again, with new noise or a sum over
        other clients, would give away more of the clients' data."""
        self._server = server
        self._problem = experiment.method.problem
        self._ledger = LedgerWriter(run_dir / LEDGER_NAME)
        self._checkpoints = CheckpointFolder(run_dir / CHECKPOINTS_NAME, experiment)
        self._opened = run_dir / OPENED_NAME
        """File with the last round whose secure sum clients were asked to open; it is written before they are asked."""
        self._evicted = run_dir / EVICTED_NAME
        """File with the clients that an operator has evicted, once there was one; checkpoints may be older."""
        self._account = run_dir / ACCOUNT_NAME
        """File with what rounds spent that are run again with other noise, until the ledger's next round says it."""
        self._model = run_dir / MODEL_NAME
        self._origin = origin_of(experiment)
        self._unsaved: list[Checkpoint] = []
        """Checkpoint of the ledger's last round until it is written, then that of the round being written now."""

    def resume(self) -> list[RoundRecord] | None:
        """Restore the new server from the latest usable checkpoint.

        Returns:
            The rounds up to the checkpoint, none where the run starts over; None where no run was begun.
        """
        found = read_unfinished(self._ledger.path)
        if found is None:
            self._ledger.path.unlink(missing_ok=True)
            return None
        _, rounds = found
        if self._opened.exists() and self._server.sums is not None:
            self._server.sums.opened_before = self._opened_before()
        checkpoint = self._checkpoints.latest(len(rounds))
        if checkpoint is None:
            LOGGER.warning("no usable checkpoint below %s: the run starts over from round 1", self._model.parent)
        else:
            self._server.restore(checkpoint)
        if self._evicted.exists():
            self._server.attendance.quarantine.evict_only(self._evicted_before())
        kept = [] if checkpoint is None else rounds[: checkpoint.round]
        spent = self._spent_before(rounds) if self._has_secrets else None
        if spent is None:
            return kept
        self._server.keep_account(spent)
        if kept and kept[-1].privacy == spent:
            return kept
        with written_whole(self._account) as file:  # before the ledger is cut, for a process that ends before a round
            file.write_text(spent.model_dump_json())
        if kept:
            kept[-1] = kept[-1].model_copy(update={"privacy": spent})
        return kept

    def _spent_before(self, rounds: Sequence[RoundRecord]) -> PrivacySpent | None:
        """Return all that was spent so far, also in rounds that no ledger holds any more."""
        accounts = [record.privacy for record in rounds[-1:] if record.privacy is not None]
        if self._account.exists():
            try:
                accounts.append(PrivacySpent.model_validate_json(self._account.read_bytes()))
            except ValidationError as error:
                raise DataError(
                    f"{self._account} is damaged, and says no more what was spent in rounds that were run twice; begin"
                    " anew in another folder, and count this run's epsilon besides"
                ) from error
        return max(accounts, key=lambda account: sum(account.rounds.values()), default=None)  # accounts only grow

    def _opened_before(self) -> int:
        """Return the round whose secure sum was opened last."""
        try:
            return int(self._opened.read_text())
        except ValueError as error:
            raise DataError(
                f"{self._opened} is damaged, and says no more which round's sum was opened last; so that none is opened"
                " twice, begin anew in another folder"
            ) from error

    def _evicted_before(self) -> frozenset[int]:
        """Return the clients that are evicted."""
        try:
            return _EVICTED.validate_json(self._evicted.read_bytes())
        except ValidationError as error:
            raise DataError(
                f"{self._evicted} is damaged, and says no more which silos are evicted; delete it, and evict them once"
                " more after the start"
            ) from error

    def evictions_change(self, evicted: Collection[int]) -> None:
        """Call before other clients than so far are evicted, so that a later process knows of them."""
        with written_whole(self._evicted) as file:
            file.write_bytes(_EVICTED.dump_json(frozenset(evicted)))

    def sum_opens(self, round_: int) -> None:
        """Call before clients are asked to open a round's secure sum, so that a later process opens no other one."""
        with written_whole(self._opened) as file:
            file.write_text(f"{round_}\n")

    def run_started(self, record: RunRecord) -> None:
        note_code(self._settings)
        self._ledger.run_started(record)

    def run_resumed(self, record: RunRecord, rounds: Sequence[RoundRecord]) -> None:
        note_code(self._settings)
        self._ledger.run_resumed(record, rounds)
        if rounds:
            self._save_model(self._server.state.weights, self._server.state.round)

    def round_finished(self, record: RoundRecord) -> None:
        # Taken before the ledger is written: if that is cut short, run_finished saves the last round that it has.
        self._unsaved.append(self._server.checkpoint())
        self._ledger.round_finished(record)
        del self._unsaved[:-1]
        every = self._settings.dapper_args.checkpoint_every
        last = self._settings.train_args.comm_round
        if self._every_round:
            every = 1
        if record.round % every == 0 or record.round == last:
            self._save()

    def run_finished(self) -> None:
        try:
            if self._unsaved:
                found = read_unfinished(self._ledger.path)
                written = 0 if found is None else len(found[1])
                self._unsaved = [checkpoint for checkpoint in self._unsaved if checkpoint.round <= written]
                self._save()
        finally:
            self._ledger.run_finished()
            unlock_folder(self._model.parent)

    def _save(self) -> None:
        for checkpoint in self._unsaved[-1:]:
            self._checkpoints.save(checkpoint)
            self._save_model(checkpoint.weights, checkpoint.round)
        self._unsaved = []

    def _save_model(self, weights: Tensors, round_: int) -> None:
        save_model(self._problem.whole(weights), self._model, round_, self._origin)
