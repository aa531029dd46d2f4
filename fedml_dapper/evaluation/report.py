"""A run as one HTML file that needs nothing but a browser."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure
from PIL import Image

from fedml_dapper.evaluation import figures
from fedml_dapper.evaluation.cost import cost_reference
from fedml_dapper.evaluation.summary import summarise
from fedml_dapper.evaluation.units import duration, quantity, share
from fedml_dapper.federation import RoundRecord, RunRecord


def write_report(
    path: Path, run: RunRecord, rounds: Sequence[RoundRecord], contact_sheet: Image.Image | None = None
) -> None:
    """Write the report of ``run`` to ``path``; an older file there stays until the new one is complete.

    ``contact_sheet`` is a picture of the data, if there is one. Pictures are inlined. A run without finished or
    tested rounds gets a report that says so.
    """
    html = (
        _environment()
        .get_template("report.html")
        .render(
            run=run,
            summary=summarise(run, rounds),
            planned_rounds=_setting(run, "train_args", "comm_round"),
            seed=_setting(run, "common_args", "random_seed"),
            is_subset="(subset)" in run.suite,
            reference=cost_reference(run.footprints),
            domain_colours=figures.domain_colours(run),
            level_colours=figures.level_colours(run),
            pictures=_pictures(run, rounds),
            contact_sheet=_jpeg(contact_sheet) if contact_sheet is not None else None,
            settings=yaml.safe_dump(run.settings, sort_keys=False),
        )
    )
    scratch = path.with_name(f".{path.name}.part")
    scratch.write_text(html, encoding="utf-8")
    scratch.replace(path)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fedml_dapper.evaluation", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"quantity": quantity, "share": share, "duration": duration}
    return environment


def _pictures(run: RunRecord, rounds: Sequence[RoundRecord]) -> dict[str, str]:
    pictures = {"footprints": _svg(figures.footprint_bars(run))}
    if any(record.scores is not None for record in rounds):
        pictures["curves"] = _svg(figures.learning_curves(run, rounds))
    if rounds:
        pictures["loss"] = _svg(figures.loss_per_level(run, rounds))
        pictures["seconds"] = _svg(figures.seconds_per_level(run, rounds))
    return pictures


def _svg(figure: Figure) -> str:
    buffer = BytesIO()
    # Text as text is a third of the size of text as outlines; without a fixed salt equal ledgers give unequal reports.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedml_dapper"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return _data_uri("image/svg+xml", buffer)


def _jpeg(picture: Image.Image) -> str:
    buffer = BytesIO()
    picture.convert("RGB").save(buffer, format="JPEG", quality=85, optimize=True)
    return _data_uri("image/jpeg", buffer)


def _data_uri(media_type: str, buffer: BytesIO) -> str:
    return f"data:{media_type};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _setting(run: RunRecord, section: str, key: str) -> Any:
    """One effective setting, or None where the ledger's version did not have it."""
    return run.settings.get(section, {}).get(key)
