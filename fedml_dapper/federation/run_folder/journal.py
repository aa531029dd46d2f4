"""Journal of a run: passes its events on to the run's files, and then to observers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path

from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.observer import RunObserver
from fedml_dapper.federation.run_folder.records import RoundRecord
from fedml_dapper.federation.run_folder.run_files import RunFiles
from fedml_dapper.federation.server import Server


class RunJournal:
    """Writes a run's files below ``run_dir``, if one is given, and calls observers.

    With ``resume`` the run goes on with what is in ``run_dir`` already. Observers are called once a round is written.
    """

    def __init__(
        self,
        experiment: Experiment,
        server: Server,
        observers: Sequence[RunObserver],
        run_dir: Path | None = None,
        resume: bool = False,
    ) -> None:
        self._experiment = experiment
        self._server = server
        self.run_dir = run_dir
        """The run's folder, if it has one."""
        self._files = None if run_dir is None else RunFiles(experiment, server, run_dir)
        self._observers = [*([] if self._files is None else [self._files]), *observers]
        self._resume = resume

    def started(self) -> None:
        """Call before the first round; where the run is resumed, this restores the server from its checkpoint."""
        record = self._experiment.record()
        rounds = self._files.resume() if self._files is not None and self._resume else None
        for observer in self._observers:
            if rounds is None:
                observer.run_started(record)
            else:
                observer.run_resumed(record, rounds)

    def round_opened(self, client_ids: Sequence[int]) -> None:
        """Call when the clients of a round are chosen."""
        for observer in self._observers:
            observer.round_started(self._server.state.round + 1, client_ids)

    def sum_opens(self) -> None:
        """Call before clients are asked to open the secure sum of the open round."""
        if self._files is not None:
            self._files.sum_opens(self._server.state.round + 1)

    def evictions_change(self, evicted: Collection[int]) -> None:
        """Call before other clients than so far are evicted."""
        if self._files is not None:
            self._files.evictions_change(evicted)

    def round_closed(self, record: RoundRecord) -> None:
        """Call when a round is aggregated and tested."""
        for observer in self._observers:
            observer.round_finished(record)

    def finished(self) -> None:
        """Call after the last round, and also when the run was cut short."""
        with ExitStack() as stack:  # calls all of them, in the order of the list, even if one raises
            for observer in reversed(self._observers):
                stack.callback(observer.run_finished)
