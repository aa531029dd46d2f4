"""Results of a run, and what its levels cost, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from fedml_dapper.evaluation.cost import cost_cells, cost_headings, cost_reference
from fedml_dapper.evaluation.summary import Accuracy, DeviceSummary, PersonalSummary, RunSummary
from fedml_dapper.evaluation.terminal import as_wide_as_its_title
from fedml_dapper.federation import LevelFootprint, RunRecord
from fedml_dapper.metric import Metric


def result_table(summary: RunSummary, run: RunRecord) -> Table:
    """Return a table of the global model's headline figure, e.g. Top-1 accuracy: a row per domain, then the mean."""
    metric = run.metric
    table = Table(title=escape(f"{run.method} on {run.suite}: {metric.title} of the global model"))
    table.add_column("domain")
    headings = _headings(summary.global_accuracy)
    chosen = summary.chosen
    if chosen is not None:
        headings.append(f"by validation\n(round {chosen.round})")
    for heading in headings:
        table.add_column(heading, justify="right")
    for domain, accuracy in summary.domain_accuracy.items():
        table.add_row(escape(domain), *_cells(metric, accuracy, chosen.domain_accuracy[domain] if chosen else None))
    if summary.global_accuracy is None:
        table.caption = "no round was tested yet"
    else:
        table.add_section()
        cells = _cells(metric, summary.global_accuracy, chosen.global_accuracy if chosen else None)
        table.add_row("global (mean)", *cells, style="bold")
        if summary.unseen_accuracy is not None:
            table.add_section()
            cells = _cells(metric, summary.unseen_accuracy, chosen.unseen_accuracy if chosen else None)
            table.add_row(escape(f"{run.unseen_domain} (unseen)"), *cells)
        extreme = "maximum" if metric.higher_is_better else "minimum"
        table.caption = f"best: {extreme} over rounds, row by row; chosen on test data, so optimistic"
    return as_wide_as_its_title(table)


def personal_table(personal: PersonalSummary, run: RunRecord) -> Table:
    """Return a table of the headline figure of every client's own model on its own test samples."""
    metric = run.metric
    table = Table(title=escape(f"{run.method} on {run.suite}: {metric.title} of clients' own models"))
    table.add_column("over the clients")
    headings = _headings(personal.overall)
    if personal.chosen is not None:
        headings.append(f"by validation\n(round {personal.chosen_round})")
    for heading in headings:
        table.add_column(heading, justify="right")
    rows = (("ALL (by samples)", "overall"), ("AVG (by clients)", "average"), ("worst client", "worst"))
    for name, field in rows:
        chosen = getattr(personal.chosen, field) if personal.chosen else None
        table.add_row(name, *_cells(metric, getattr(personal, field), chosen))
    captions = [f"standard deviation over clients, last: {metric.number(personal.last.deviation)}"]
    if personal.before_training is not None and personal.after_training is not None:
        captions.append(
            f"a round's local training, last: from {metric.number(personal.before_training)} to"
            f" {metric.number(personal.after_training)}"
        )
    table.caption = "\n".join(captions)
    return as_wide_as_its_title(table)


def device_table(devices: DeviceSummary, run: RunRecord) -> Table:
    """Return a table of the headline figure of each level's model, and over the clients with theirs."""
    metric = run.metric
    kinds = {"as sent": devices.last.sent}
    if devices.last.own_statistics is not None:
        kinds["own statistics"] = devices.last.own_statistics
    table = Table(title=escape(f"What each device gets in round {devices.last_round}: {metric.title}"))
    for heading in ("level", "ratio", *kinds):
        table.add_column(heading, justify="right")

    def cell(value: float | None) -> str:
        return "no model" if value is None else metric.number(value)

    for place, footprint in enumerate(run.footprints):
        found = [cell(figures.levels[place].accuracy) for figures in kinds.values()]
        table.add_row(str(footprint.level), f"{footprint.ratio:g}", *found)
    table.add_section()
    table.add_row("devices", "", *(cell(figures.accuracy) for figures in kinds.values()), style="bold")
    table.add_row("worst", "", *(cell(figures.worst) for figures in kinds.values()))
    table.caption = "levels: mean over domains\ndevices: mean over clients, each on its own domain"
    return as_wide_as_its_title(table)


def footprint_table(footprints: Sequence[LevelFootprint], title: str) -> Table:
    """Return a table of what each capability level's model costs; MACs of one forward pass, MB of 10^6 bytes."""
    reference = cost_reference(footprints)
    table = Table(title=escape(title))
    for heading in cost_headings(reference):
        table.add_column(heading, justify="right")
    for footprint in footprints:
        table.add_row(*cost_cells(footprint, reference))
    return as_wide_as_its_title(table)


def _headings(accuracy: Accuracy | None) -> list[str]:
    """Headings of the columns that :func:`_cells` fills."""
    return ["last", "mean" if accuracy is None else f"mean of last {accuracy.mean_rounds}", "best", "in round"]


def _cells(metric: Metric, accuracy: Accuracy, chosen: float | None) -> tuple[str, ...]:
    values = (accuracy.last, accuracy.mean_last5, accuracy.best)
    by_validation = () if chosen is None else (metric.number(chosen),)
    return (*(metric.number(value) for value in values), str(accuracy.best_round), *by_validation)
