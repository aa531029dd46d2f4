"""Everyone who is to know of a run's course is told: first the files, then the observers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.observer import RunObserver
from fedml_dapper.federation.records import RoundRecord
from fedml_dapper.federation.run_files import RunFiles
from fedml_dapper.federation.server import Server


class RunJournal:
    """Writes a run down below ``run_dir``, if there is one, and tells observers of it.

    With ``resume`` the run goes on with what is in ``run_dir`` already. Observers hear of a round once it is written.
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
        self._files = None if run_dir is None else RunFiles(experiment, server, run_dir)
        self._observers = [*([] if self._files is None else [self._files]), *observers]
        self._resume = resume

    def started(self) -> None:
        """Call before the first round; the server may come out of it with rounds behind it."""
        record = self._experiment.record()
        rounds = self._files.resume() if self._files is not None and self._resume else None
        for observer in self._observers:
            if rounds is None:
                observer.run_started(record)
            else:
                observer.run_resumed(record, rounds)

    def round_opened(self, client_ids: Sequence[int]) -> None:
        for observer in self._observers:
            observer.round_started(self._server.state.round + 1, client_ids)

    def sum_opens(self) -> None:
        """Call before clients are asked to open the secure sum of the open round."""
        if self._files is not None:
            self._files.sum_opens(self._server.state.round + 1)

    def round_closed(self, record: RoundRecord) -> None:
        for observer in self._observers:
            observer.round_finished(record)

    def finished(self) -> None:
        """Call also when the run was cut short. The files come first; the others hear of it even if those fail."""
        with ExitStack() as stack:
            for observer in reversed(self._observers):
                stack.callback(observer.run_finished)
