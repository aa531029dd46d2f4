"""The model card ``MODEL_CARD.md``: what an exported model is, and what was measured of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedml_dapper.deployment.sidecar import Sidecar
from fedml_dapper.evaluation.units import quantity, share
from fedml_dapper.federation.run_folder.records import ClientSummary
from fedml_dapper.tasks import Metric

CARD_NAME = "MODEL_CARD.md"


@dataclass(frozen=True)
class FileFigures:
    """Measurements of one file, by the format's own runtime."""

    format: str
    file: str
    bytes: int
    difference: float | None
    """Largest difference of its outputs from the model's; None for a quantised file, which differs on purpose."""
    accuracy: Mapping[str, float]
    """Domain -> the task's headline figure; empty where the data are not available."""
    milliseconds: float
    """Time of one input."""
    dense_milliseconds: float | None
    """Time of one input through the uncut network in the same format; None where nothing was cut."""


@dataclass(frozen=True)
class Card:
    """Contents of a model card."""

    about: Sidecar
    files: tuple[FileFigures, ...]
    before: Mapping[str, float] | None
    """Domain -> figure before the model was adapted; None where it was not."""
    metric: Metric
    clients: Sequence[ClientSummary]
    dense: tuple[int, int]
    """Parameters and MACs of the uncut network."""
    tested: Mapping[str, int]
    """Domain -> number of test samples."""
    without_data: str
    """Why the run's data were not available; empty where they were."""
    machine: str

    @property
    def accuracies(self) -> dict[str, Mapping[str, float]]:
        """Figures by test set: before adapting, if the model was adapted, then through each file."""
        adapted = {} if self.before is None else {"before adapting": self.before}
        return {**adapted, **{each.file: each.accuracy for each in self.files}}

    def markdown(self) -> str:
        """Return the card as a Markdown page."""
        about = self.about
        title = f"# {about.network} ({about.method} on {about.suite})"
        return (
            "\n\n".join(
                [title, self._what(), self._contract(), "## Files", self._files(), "## Accuracy", self._accuracy()]
            )
            + "\n"
        )

    def _what(self) -> str:
        about = self.about
        (parameters, macs) = self.dense
        samples = Counter[str]()
        for client in self.clients:
            samples[client.domain] += client.num_samples
        trained = ", ".join(f"{domain} ({count} samples)" for domain, count in samples.items())
        rows = [
            ("model", about.whose),
            *(("then", change) for change in about.changes),
            ("data", f"{about.suite}: {trained or 'held by silos'}"),
            ("classes", ", ".join(about.classes) or "none"),
            ("method", f"{about.method}, {about.rounds} rounds, {len(self.clients) or 'unknown number of'} clients"),
            ("level", "the whole model" if about.level is None else f"{about.level}, pruning ratio {about.ratio:g}"),
            ("parameters", f"{about.parameters} ({share(about.parameters, parameters)} of the dense model's)"),
            ("MACs", f"{about.macs} an input ({share(about.macs, macs)})"),
            ("made by", f"fedml_dapper {about.version}, commit {about.commit or 'unknown'}"),
        ]
        return _table(("", ""), rows)

    def _contract(self) -> str:
        ports = (*(("input", port) for port in self.about.inputs), ("output", self.about.output))
        rows = [
            (
                role,
                f"`{port.name}`",
                f"{port.dtype} ({', '.join('N' if size is None else str(size) for size in port.shape)})",
                port.meaning,
            )
            for role, port in ports
        ]
        return _table(("", "name", "type", "meaning"), rows)

    def _files(self) -> str:
        rows = [
            (
                each.file,
                quantity(each.bytes, "B"),
                "quantised" if each.difference is None else f"{each.difference:.1g}",
                f"{each.milliseconds:.2f}",
                "" if each.dense_milliseconds is None else f"{each.dense_milliseconds:.2f}",
            )
            for each in self.files
        ]
        head = ("file", "size", "largest difference from our outputs", "ms a sample", "ms, dense model")
        inputs = "random inputs" if self.without_data or not self.tested else "real test samples"
        return f"{_table(head, rows)}\n\nCompared on {inputs}. Timed one at a time on {self.machine}."

    def _accuracy(self) -> str:
        if not self.tested:
            reason = self.without_data or "the run has no test samples of its own"
            return f"Not measured: {reason}."
        columns = self.accuracies
        number = self.metric.number
        rows = [
            (f"{name} ({count} samples)", *(number(values[name]) for values in columns.values()))
            for name, count in self.tested.items()
        ]
        before = "" if self.before is None else "; before adapting, by the model itself"
        return f"{self.metric.title}, measured through the files{before}.\n\n{_table(('test set', *columns), rows)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
