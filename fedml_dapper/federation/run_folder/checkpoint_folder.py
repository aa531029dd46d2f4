"""Folder with a run's checkpoints, one file each, in which the latest ones and the best stay."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import torch

from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.run_folder.checkpoint import Checkpoint, accuracy_of, load_checkpoint, save_checkpoint
from fedml_dapper.federation.run_folder.tensor_file import UnusableError
from fedml_dapper.federation.wire.settings_shared import SharedSettings

LOGGER = logging.getLogger(__name__)


class CheckpointFolder:
    """Checkpoints of a run of ``experiment`` below ``path``; the folder is made when the first one is saved."""

    def __init__(self, path: Path, experiment: Experiment) -> None:
        self._path = path
        self._settings = SharedSettings.of_experiment(experiment)
        self._num_kept = experiment.settings.dapper_args.checkpoints_kept
        self._device = experiment.device
        self._metric = experiment.method.problem.task.headline

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then remove earlier ones that are neither the best nor among the latest."""
        save_checkpoint(checkpoint, self._settings, _file(self._path, checkpoint.round))
        files = [path for path in self._newest_first() if path.is_file() and _round_of(path) <= checkpoint.round]
        accuracies = {path: accuracy_of(path) for path in reversed(files)}
        tested = {path: accuracy for path, accuracy in accuracies.items() if accuracy is not None}
        best = max(tested, key=lambda path: self._metric.merit(tested[path]), default=None)  # of equals the earliest
        for path in files[self._num_kept :]:
            if path != best:
                path.unlink()

    def latest(self, finished_rounds: int) -> Checkpoint | None:
        """Read the latest usable checkpoint of round ``finished_rounds`` or before; None where there is none.

        Each one passed over is renamed to ``*.refused``, with a warning that says why.

        Raises:
            DataError: A checkpoint may be usable, and cannot be read now or by this version: later rounds would be lost
                by going on from an earlier one.
        """
        for path in self._newest_first():
            try:
                found = load_checkpoint(path, self._settings, self._device)
            except UnusableError as error:
                problem = str(error)
            else:
                if found.round <= finished_rounds:
                    return found
                problem = f"checkpoint {path} is of round {found.round}, the ledger ends with {finished_rounds}"
            LOGGER.warning("%s; looking for an earlier one", problem)
            path.replace(path.with_name(f"{path.name}.refused"))
        return None

    def _newest_first(self) -> list[Path]:
        named = re.compile(r"round_\d+\.safetensors")
        found = (path for path in self._path.glob("round_*") if named.fullmatch(path.name))
        return sorted(found, key=_round_of, reverse=True)


def checkpoint_of_round(folder: Path, round_: int, settings: SharedSettings) -> Checkpoint | None:
    """Read the checkpoint after ``round_`` in ``folder``, onto the CPU; None where it was not kept.

    Raises:
        DataError: The checkpoint is damaged, or of other settings.
    """
    path = _file(folder, round_)
    return load_checkpoint(path, settings, torch.device("cpu")) if path.is_file() else None


def _file(folder: Path, round_: int) -> Path:
    return folder / f"round_{round_:05d}.safetensors"


def _round_of(path: Path) -> int:
    return int(path.stem.removeprefix("round_"))
