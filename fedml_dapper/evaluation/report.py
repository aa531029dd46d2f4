"""A run as one HTML file that needs nothing but a browser."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure
from PIL import Image

from fedml_dapper.config import Settings, check, sources
from fedml_dapper.datasets import contact_sheet, load_suite
from fedml_dapper.errors import DapperError, DataError
from fedml_dapper.evaluation import clock_figures, figures
from fedml_dapper.evaluation.cost import cost_reference
from fedml_dapper.evaluation.page import environment, jpeg_uri, svg_uri, write_page
from fedml_dapper.evaluation.predictions import predicted_samples
from fedml_dapper.evaluation.summary import summarise
from fedml_dapper.federation import LEDGER_NAME, REPORT_NAME, RoundRecord, RunRecord, read_ledger
from fedml_dapper.federation.records import PrivacySpent

LOGGER = logging.getLogger(__name__)
_DATASET = "data_args.dataset"


def write_run_report(run_dir: Path) -> Path:
    """Write the report of the run in ``run_dir`` from its ledger; returns its path.

    The ledger is enough: where the data are not here, the report goes without sample images, with a warning that says
    why; so it does without predictions. Raises :class:`DataError` where there is no ledger.
    """
    record, rounds = read_ledger(run_dir / LEDGER_NAME)
    path = run_dir / REPORT_NAME
    write_report(path, record, rounds, _sample_images(record, run_dir), predicted_samples(record, run_dir))
    return path


def _sample_images(run: RunRecord, run_dir: Path) -> Image.Image | None:
    try:
        settings = check(Settings, run.settings, where=str(run_dir / LEDGER_NAME))
        if settings.data_args.partition == "own" or settings.data_args.dataset is None:
            return None  # the silos', or a program's
        if run.sources.get(_DATASET) != sources(settings).get(_DATASET):
            raise DataError(f"{_DATASET}: {settings.data_args.dataset} is not what it was in the run")
        return contact_sheet(load_suite(settings.data_args))
    except DapperError as error:
        LOGGER.warning("the report goes without sample images: %s", error)
        return None


def write_report(
    path: Path, run: RunRecord, rounds: Sequence[RoundRecord], contact_sheet: Image.Image | None = None,
    predictions: Figure | None = None,
) -> None:  # fmt: skip
    """Write the report of ``run`` to ``path``; an older file there stays until the new one is complete.

    ``contact_sheet`` is a picture of the data, ``predictions`` one of what the model makes of them, if there are any.
    Pictures are inlined. A run without finished or tested rounds gets a report that says so.
    """
    html = (
        environment(__package__)
        .get_template("report.html")
        .render(
            run=run,
            metric=run.metric,
            extreme="maximum" if run.metric.higher_is_better else "minimum",
            summary=summarise(run, rounds),
            privacy=_spent(rounds),
            others=_other_figures(rounds),
            planned_rounds=_setting(run, "train_args", "comm_round"),
            seed=_setting(run, "common_args", "random_seed"),
            is_subset="(subset)" in run.suite,
            reference=cost_reference(run.footprints),
            domain_colours=figures.domain_colours(run),
            level_colours=figures.level_colours(run),
            pictures=_pictures(run, rounds),
            contact_sheet=jpeg_uri(contact_sheet) if contact_sheet is not None else None,
            predictions=svg_uri(predictions) if predictions is not None else None,
            settings=yaml.safe_dump(run.settings, sort_keys=False),
        )
    )
    write_page(path, html)


def _spent(rounds: Sequence[RoundRecord]) -> PrivacySpent | None:
    """What the last round left of a client's privacy; None where nothing is promised."""
    privacy = rounds[-1].privacy if rounds else None
    return None if privacy is None or privacy.epsilon is None else privacy


def _other_figures(rounds: Sequence[RoundRecord]) -> list[tuple[str, dict[str, float]]]:
    """What the task measures besides its headline, by domain, in the last tested round."""
    tested = [record.scores for record in rounds if record.scores is not None]
    return list(tested[-1].domain_figures.items()) if tested else []


def _pictures(run: RunRecord, rounds: Sequence[RoundRecord]) -> dict[str, str]:
    pictures = {"footprints": svg_uri(figures.footprint_bars(run))}
    if any(record.scores is not None for record in rounds):
        pictures["curves"] = svg_uri(figures.learning_curves(run, rounds))
    if rounds:
        if any(record.devices is not None for record in rounds):
            pictures["devices"] = svg_uri(figures.device_bars(run, rounds))
        if any(record.scores is not None for record in rounds) and _spent(rounds) is not None:
            pictures["epsilon"] = svg_uri(figures.accuracy_and_epsilon(run, rounds))
        on_clock = [record for record in rounds if record.clock is not None]
        if on_clock:
            pictures["timeline"] = svg_uri(clock_figures.timeline(run, on_clock[-1]))
        if any(record.scores is not None for record in on_clock):
            pictures["over_time"] = svg_uri(clock_figures.accuracy_over_time(run, on_clock))
        pictures["loss"] = svg_uri(figures.loss_per_level(run, rounds))
        pictures["seconds"] = svg_uri(figures.seconds_per_level(run, rounds))
    return pictures


def _setting(run: RunRecord, section: str, key: str) -> Any:
    """One effective setting, or None where the ledger's version did not have it."""
    return run.settings.get(section, {}).get(key)
