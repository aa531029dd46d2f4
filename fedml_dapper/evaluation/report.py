"""The report of a run as a self-contained HTML file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from markupsafe import Markup
from matplotlib.figure import Figure

from fedml_dapper.config import Settings, check, sources, to_yaml
from fedml_dapper.datasets import ContactSheet, contact_sheet, load_suite
from fedml_dapper.errors import DataError
from fedml_dapper.evaluation import clock_figures, figures
from fedml_dapper.evaluation.announced import as_announced
from fedml_dapper.evaluation.chart import inline_svg
from fedml_dapper.evaluation.client_rows import client_rows, levels_changed
from fedml_dapper.evaluation.confusion import MOST_DRAWN, confusion_matrix, mistakes
from fedml_dapper.evaluation.cost import cost_reference
from fedml_dapper.evaluation.last_model import MOST_SAMPLES, LastModel, look_at_last_model
from fedml_dapper.evaluation.omissions import Omissions
from fedml_dapper.evaluation.page import environment, jpeg_uri, write_page
from fedml_dapper.evaluation.spending import Kind, is_of_silos
from fedml_dapper.evaluation.summary import summarise
from fedml_dapper.federation import LEDGER_NAME, REPORT_NAME, RoundRecord, RunRecord, read_ledger
from fedml_dapper.federation.run_folder.own_code import check_consent
from fedml_dapper.federation.run_folder.records import PrivacySpent

_DATASET = "data_args.dataset"
_MISTAKES = 10


def write_run_report(run_dir: Path, *, trust_code: bool = False) -> Path:
    """Write the report of the run in ``run_dir`` from its ledger, and return its path.

    The ledger is enough: parts that need data or model, or that cannot be drawn, are left out where they fail, with a
    warning and a line in the report that say why. So are those that take code which no run of this user's ran on this
    machine, unless with ``trust_code``.

    Raises:
        DataError: There is no ledger, or no room for the report.
    """
    record, rounds = read_ledger(run_dir / LEDGER_NAME)
    path = run_dir / REPORT_NAME
    omissions = Omissions()
    sheet = omissions.with_fallback("sample images", lambda: _sample_images(record, run_dir, trust_code), None)
    last_model = look_at_last_model(record, run_dir, omissions, trust_code)
    write_report(path, record, rounds, sheet, last_model, omissions)
    return path


def _sample_images(run: RunRecord, run_dir: Path, trust_code: bool) -> ContactSheet | None:
    settings = check(Settings, run.settings, where=str(run_dir / LEDGER_NAME))
    if settings.data_args.partition == "own" or settings.data_args.dataset is None:
        return None  # the data are the silos', or were passed by a program
    if run.sources.get(_DATASET) != sources(settings).get(_DATASET):
        raise DataError(f"{_DATASET}: {settings.data_args.dataset} is not what it was in the run")
    check_consent(settings, (_DATASET,), run_dir / LEDGER_NAME, trust_code)
    return contact_sheet(load_suite(settings.data_args))


def write_report(
    path: Path,
    run: RunRecord,
    rounds: Sequence[RoundRecord],
    contact_sheet: ContactSheet | None = None,
    last_model: LastModel | None = None,
    omissions: Omissions | None = None,
) -> None:
    """Write the report of ``run`` to ``path``; an older file there stays until the new one is complete.

    Pictures are inlined. A run without finished or tested rounds gets a report that says so.

    Args:
        contact_sheet: Samples of the data, if they are available.
        last_model: What the last model makes of the data, if it is available.
        omissions: Parts that could not be made, which the report lists; further ones are added.
    """
    run = as_announced(run, rounds)
    last_model = last_model or LastModel()
    summary = summarise(run, rounds)
    omissions = omissions or Omissions()
    pictures = _pictures(run, rounds, omissions)
    costs = _costs(run, rounds, omissions)
    confusions = _confusions(run, last_model, omissions)
    found_mistakes = mistakes(last_model.confusions, run.classes, _MISTAKES) if run.classes else []
    sheet = omissions.with_fallback("sample images", lambda: _inlined(contact_sheet), None)
    predictions = _chart("predictions", lambda: last_model.predictions, omissions)
    html = (
        environment(__package__)
        .get_template("report.html")
        .render(
            run=run,
            metric=run.metric,
            extreme="maximum" if run.metric.higher_is_better else "minimum",
            summary=summary,
            privacy=_spent(rounds),
            opened_share=_opened_share(rounds),
            divergence=summary.not_finite,
            without_change=[record for record in rounds if record.rolled_back is not None],
            others=_other_figures(rounds),
            clients=client_rows(run, summary),
            levels_changed=levels_changed(run, rounds),
            planned_rounds=_setting(run, "train_args", "comm_round"),
            seed=_setting(run, "common_args", "random_seed"),
            is_subset="(subset)" in run.suite,
            reference=cost_reference(run.footprints),
            domain_colours=figures.domain_colours(run),
            level_colours=figures.level_colours(run),
            pictures=pictures,
            peak_memory=last_model.peak_memory,
            costs=costs,
            across_silos=is_of_silos(run),
            silos_test=_silos_test(run),
            confusions=confusions,
            mistakes=found_mistakes,
            most_samples=MOST_SAMPLES,
            contact_sheet=sheet,
            predictions=predictions,
            left_out=omissions.reasons,
            settings=to_yaml(run.settings),
        )
    )
    write_page(path, html)


def _chart(what: str, draw: Callable[[], Figure | None], omissions: Omissions) -> Markup | None:
    """Make a chart of what ``draw`` returns; None where that is None, or fails."""

    def drawn() -> Markup | None:
        figure = draw()
        return None if figure is None else inline_svg(figure)

    return omissions.with_fallback(what, drawn, None)


def _costs(run: RunRecord, rounds: Sequence[RoundRecord], omissions: Omissions) -> dict[str, Markup]:
    """Charts of the global model over everything that the run is known to have spent."""
    if not any(record.scores is not None for record in rounds):
        return {}
    drawn = {
        kind: _chart(f"the chart of {kind}", partial(figures.accuracy_against, kind, run, rounds), omissions)
        for kind in get_args(Kind)
    }
    return {kind: chart for kind, chart in drawn.items() if chart is not None}


def _confusions(run: RunRecord, last_model: LastModel, omissions: Omissions) -> dict[str, Markup]:
    if not 0 < len(run.classes) <= MOST_DRAWN:
        return {}
    drawn = {
        domain: _chart(f"confusions on {domain}", partial(confusion_matrix, counts, run.classes), omissions)
        for domain, counts in last_model.confusions.items()
    }
    return {domain: chart for domain, chart in drawn.items() if chart is not None}


def _inlined(sheet: ContactSheet | None) -> dict[str, Any] | None:
    """Prepare the sheet for a page, with inlined pictures."""
    if sheet is None:
        return None
    rows = {
        domain: [None if picture is None else jpeg_uri(picture) for picture in row]
        for domain, row in sheet.rows.items()
    }
    return {"classes": sheet.classes, "rows": rows}


def _spent(rounds: Sequence[RoundRecord]) -> PrivacySpent | None:
    """Privacy cost by the last round; None where no privacy is guaranteed."""
    privacy = rounds[-1].privacy if rounds else None
    return None if privacy is None or privacy.epsilon is None else privacy


def _opened_share(rounds: Sequence[RoundRecord]) -> float | None:
    """Mean share of the weights that was opened per round; None where nobody sums under masks."""
    shares = [record.opened_share for record in rounds if record.opened_share is not None]
    return fmean(shares) if shares else None


def _other_figures(rounds: Sequence[RoundRecord]) -> list[tuple[str, dict[str, float]]]:
    """What the task measures besides its headline, by domain, in the last tested round."""
    tested = [record.scores for record in rounds if record.scores is not None]
    return list(tested[-1].domain_figures.items()) if tested else []


def _pictures(run: RunRecord, rounds: Sequence[RoundRecord], omissions: Omissions) -> dict[str, Markup]:
    drawings: dict[str, Callable[[], Figure]] = {"footprints": partial(figures.footprint_bars, run)}
    is_tested = any(record.scores is not None for record in rounds)
    if is_tested:
        drawings["curves"] = partial(figures.learning_curves, run, rounds)
    if rounds:
        measured = sum(record.devices is not None for record in rounds)
        if measured:
            drawings["devices"] = partial(figures.device_bars, run, rounds)
        if measured > 1:
            drawings["device_curves"] = partial(figures.level_curves, run, rounds)
        if is_tested and _spent(rounds) is not None:
            drawings["epsilon"] = partial(figures.accuracy_and_epsilon, run, rounds)
        on_clock = [record for record in rounds if record.clock is not None]
        if on_clock:
            drawings["timeline"] = partial(clock_figures.timeline, run, on_clock[-1])
        if any(record.clients for record in rounds):
            drawings["loss"] = partial(figures.loss_per_level, run, rounds)
            drawings["seconds"] = partial(figures.seconds_per_level, run, rounds)
    drawn = {name: _chart(f"the chart of {name}", draw, omissions) for name, draw in drawings.items()}
    return {name: chart for name, chart in drawn.items() if chart is not None}


def _silos_test(run: RunRecord) -> bool:
    """Whether silos measured the model on data of their own, as the server held no test samples."""
    return _setting(run, "data_args", "partition") == "own" and _setting(run, "data_args", "data_cache_dir") is None


def _setting(run: RunRecord, section: str, key: str) -> Any:
    """Return one effective setting, or None where the ledger's version did not have it."""
    return run.settings.get(section, {}).get(key)
