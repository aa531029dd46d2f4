"""Comparison of finished runs: what they reached, what that cost, and in which settings they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedml_dapper.errors import DataError
from fedml_dapper.evaluation.spending import Kind, is_of_silos, spent
from fedml_dapper.evaluation.summary import RunSummary, summarise
from fedml_dapper.federation import LEDGER_NAME, RoundRecord, RunRecord, read_ledger

_NO_DIFFERENCE = frozenset({"dapper_args.output_dir"})
"""Settings that say where a run is stored, and not what it is."""


@dataclass(frozen=True)
class ComparedRun:
    """A run, and the name that the comparison gives it."""

    name: str
    run: RunRecord
    rounds: tuple[RoundRecord, ...]
    summary: RunSummary

    def spent(self, kind: Kind) -> list[float] | None:
        """Return what the run had spent by the end of each round; None where that says nothing.

        The real time of a simulation says nothing of a federation.
        """
        return None if kind == "wall clock" and not is_of_silos(self.run) else spent(kind, self.rounds)


@dataclass(frozen=True)
class Comparison:
    """Runs that are judged by the same figure."""

    runs: tuple[ComparedRun, ...]
    differences: Mapping[str, tuple[str, ...]]
    """Setting -> its value in every run, if these are not all the same; a dash where it is not set."""

    @property
    def same_data(self) -> bool:
        """Whether all runs are on the same domains of the same data."""
        return len({(each.run.suite, each.run.domains) for each in self.runs}) == 1

    def document(self) -> dict[str, Any]:
        """Return the comparison as plain values."""
        return {
            "runs": [
                {
                    "name": each.name,
                    "method": each.run.method,
                    "suite": each.run.suite,
                    "bytes": int(max(each.spent("bytes") or [0])),
                    **each.summary.model_dump(mode="json"),
                }
                for each in self.runs
            ],
            "differences": {key: list(values) for key, values in self.differences.items()},
        }


def compare(folders: Sequence[Path]) -> Comparison:
    """Read the runs in ``folders``, in that order, named by their folders.

    Raises:
        DataError: A folder has no run, or runs are judged by different figures.
    """
    records = [read_ledger(folder / LEDGER_NAME) for folder in folders]
    metrics = {folder: run.metric for folder, (run, _) in zip(folders, records, strict=True)}
    first = metrics[folders[0]]
    for folder, metric in metrics.items():
        if metric != first:
            raise DataError(
                f"{folder} is judged by {metric.title}, {folders[0]} by {first.title}: compare runs of one task"
            )
    resolved = [folder.resolve() for folder in folders]
    names = [folder.name for folder in resolved]
    names = names if len(set(names)) == len(names) else [str(folder) for folder in folders]
    runs = tuple(
        ComparedRun(name, run, tuple(rounds), summarise(run, rounds))
        for name, (run, rounds) in zip(names, records, strict=True)
    )
    return Comparison(runs, _differences([run.settings for run, _ in records]))


def _differences(settings: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    flat = [dict(_flat(each)) for each in settings]
    keys = dict.fromkeys(key for each in flat for key in each)
    values = {key: tuple(str(each.get(key, "\N{EN DASH}")) for each in flat) for key in keys}
    return {key: each for key, each in values.items() if len(set(each)) > 1 and key not in _NO_DIFFERENCE}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of all settings that are set."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield prefix + key, value
