"""Python interface to runs: :func:`run` trains a federation, :class:`Run` reads the results in a run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import rich
from rich.console import Console
from torch import nn

from fedml_dapper.config import Settings, check, load_with_notes, path_of
from fedml_dapper.errors import ConfigError
from fedml_dapper.evaluation import RunSummary, progress_for, result_table, summarise, write_run_report
from fedml_dapper.evaluation.terminal import say
from fedml_dapper.federation import (
    LEDGER_NAME,
    build_experiment,
    metrics_of,
    open_run_dir,
    read_ledger,
)
from fedml_dapper.federation.run_folder.finished import FinishedRun, open_finished
from fedml_dapper.federation.run_folder.model_file import load_model
from fedml_dapper.one_process import run_in_one_process

__all__ = ["Run", "load_model", "run"]


def run(
    config: Path | str | Sequence[Path | str],
    changes: Mapping[str, Any] | None = None,
    *,
    output: Path | str | None = None,
    resume: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Run:
    """Train the federation of an experiment file in this process, and return its results.

    ``run("quickstart.yaml", comm_round=5, method="fedavg")`` changes settings by their bare keys, and
    ``run("quickstart.yaml", {"dapper_args.params.dapperfl.gamma": 0.1})`` by dotted ones.

    Args:
        config: An experiment file, or several, of which later ones are laid over earlier ones. A name that is no path
            is that of a shipped file.
        changes: Settings by key, dotted from the section on (``train_args.comm_round``) or bare.
        output: Folder of the run; by default a new one below ``dapper_args.output_dir``.
        resume: Go on with the run in ``output``, where there is one.
        progress: Show rounds as they end, in a notebook or on stderr.
        **settings: Settings by bare key. All settings with their defaults and meaning are shown by
            ``fedml-dapper settings`` in a shell, and by ``help(fedml_dapper.config.TrainArgs)`` etc. in Python.

    Raises:
        ConfigError: A setting is misspelt, wrong, or asks for several processes.
        DataError: The data are missing or too small.
    """
    asked = {**(changes or {}), **settings}
    loaded = load_with_notes(config, asked)
    chosen = loaded.settings
    _in_one_process(chosen, config)
    experiment = build_experiment(chosen)
    folder = open_run_dir(experiment, output, resume)
    console = rich.get_console() if rich.get_console().is_jupyter else Console(stderr=True)
    for note in loaded.notes if progress else ():
        say(console, f"note: {note}")
    try:
        run_in_one_process(experiment, folder, [progress_for(console, experiment)] if progress else [], resume)
    except KeyboardInterrupt:
        if progress:
            console.print(f"Stopped; run(..., output={str(folder)!r}, resume=True) goes on from there.", soft_wrap=True)
        raise
    return Run(folder)


class Run:
    """Results of a run, read from its folder."""

    folder: Path
    """Folder with the run's settings, ledger, checkpoints and global model."""

    def __init__(self, folder: Path | str, *, trust_code: bool = False) -> None:
        self.folder = path_of(folder)
        self._trust_code = trust_code
        self._record, self._rounds = read_ledger(self.folder / LEDGER_NAME)

    @classmethod
    def open(cls, folder: Path | str, *, trust_code: bool = False) -> Run:
        """Read the run in ``folder``, which may be unfinished, and run by any runner.

        Args:
            folder: The run's.
            trust_code: Whether :meth:`model` and :meth:`report` run whatever code the folder's files name. Without it,
                only code runs that a run of yours ran on this machine.

        Raises:
            DataError: There is no run in the folder.
        """
        return cls(folder, trust_code=trust_code)

    @cached_property
    def settings(self) -> Settings:
        """All effective settings, e.g. ``run.settings.train_args.comm_round``."""
        return check(Settings, self._record.settings, where=str(self.folder / LEDGER_NAME))

    @cached_property
    def summary(self) -> RunSummary:
        """The run in a few numbers, e.g. ``run.summary.global_accuracy.last``; accuracies are percent."""
        return summarise(self._record, self._rounds)

    @property
    def ledger(self) -> pd.DataFrame:
        """Metrics, one row per round: ``accuracy/global``, ``accuracy/<domain>``, ``loss/<domain>``, ``bytes/up`` ...

        Columns have the names that trackers show (docs/reference/metrics.md); NaN where a round was not tested.
        ``run.ledger.filter(like="accuracy/").plot()`` draws the learning curves.
        """
        index = pd.Index([record.round for record in self._rounds], name="round")
        return pd.DataFrame([metrics_of(record) for record in self._rounds], index=index)

    @property
    def clients(self) -> pd.DataFrame:
        """Client records, a row per client and round: level, ratio, params, macs, bytes each way, loss, seconds ..."""
        rows = [{"round": record.round, **client.model_dump()} for record in self._rounds for client in record.clients]
        return pd.DataFrame(rows)

    def model(self, level: int | None = None) -> nn.Module:
        """Return the global model on the CPU, in evaluation mode, whole or as a device of ``level`` carries it.

        For a level it is cut by the method's own rule. HeteroFL, FedMP and others that send slim models give the model
        that such a device would be sent next; DapperFL removes the channels of least l1 norm. DapperFL's cut model has
        not been trained since; a client trains it for some epochs from there. Methods that do not slim have a model
        only for levels of which nothing is cut.

        Raises:
            ConfigError: There is no such level, the method has no global model, or none for the level, or the run names
                code that is neither yours nor trusted.
            DataError: No model has been written yet.
        """
        levels = len(self.settings.dapper_args.levels.ratios)
        if level is not None and not 1 <= level <= levels:
            raise ConfigError(f"no capability level {level}; the run in {self.folder} has levels 1 to {levels}")
        finished = self._finished
        method = finished.method
        if not method.has_global_model:
            raise ConfigError(f"method `{method.name}` has no global model: every client uses one of its own")
        return (method.global_model(finished.state) if level is None else finished.level_model(level)).eval()

    def report(self) -> Path:
        """Write the HTML report; returns its path."""
        return write_run_report(self.folder, trust_code=self._trust_code)

    @cached_property
    def _finished(self) -> FinishedRun:
        return open_finished(self.folder, trust_code=self._trust_code)

    def __repr__(self) -> str:
        accuracy = self.summary.global_accuracy
        last = "" if accuracy is None else f", {self._record.metric.text(accuracy.last)} in the last"
        return f"<Run {self.folder}: {self._record.method} on {self._record.suite}, {self.summary.rounds} rounds{last}>"

    def _repr_html_(self) -> str:
        """Return the HTML table that a notebook shows."""
        table = result_table(self.summary, self._record)
        return str(table._repr_mimebundle_(include=[], exclude=[])["text/html"])


def _in_one_process(settings: Settings, config: Path | str | Sequence[Path | str]) -> None:
    """Raise :class:`ConfigError` where the experiment takes several processes, or FedML's platform."""
    file = config if isinstance(config, Path | str) else config[0]
    backend = settings.comm_args.backend
    commands = {"MPI": f"mpiexec -n 3 fedml-dapper run -c {file}"}
    if backend != "sp":
        command = commands.get(backend, f"python -m fedml_dapper --cf {file} --rank N --role server|client")
        raise ConfigError(
            f"comm_args.backend: {backend} takes several processes, this is one; start them by `{command}`"
        )
    if settings.tracking_args.using_mlops:
        raise ConfigError(
            f"tracking_args.using_mlops: FedML's platform starts runs by a command: `fedml-dapper run -c {file}`"
        )
