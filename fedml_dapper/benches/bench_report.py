"""Report of a bench: an HTML page, figures as files, tables as CSV and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import yaml
from markdown_it import MarkdownIt
from markupsafe import Markup
from matplotlib.figure import Figure

from fedml_dapper.benches import bench_figures, diagnosis_figures
from fedml_dapper.benches.claims import claims
from fedml_dapper.benches.grid import Manifest
from fedml_dapper.benches.measures import honest
from fedml_dapper.benches.results import BenchResults, OpenCell, load_results
from fedml_dapper.benches.tables import Tables, build_tables, cost_base, write_csv
from fedml_dapper.evaluation.chart import inline_svg
from fedml_dapper.evaluation.page import environment, write_page
from fedml_dapper.evaluation.style import names_as_text
from fedml_dapper.federation import REPORT_NAME
from fedml_dapper.files.atomic import written_whole

FIGURES_NAME = "figures"
TABLES_NAME = "tables.csv"
SUMMARY_NAME = "summary.json"
ANALYSIS_NAME = "analysis.md"
_PNG_DPI = 200


@dataclass(frozen=True)
class Picture:
    """A figure with its alternative text and caption. ``name`` is that of its file."""

    name: str
    figure: Figure
    alt: str
    caption: str


@dataclass(frozen=True)
class _Shown:
    """A picture in the form that the page needs."""

    chart: Markup
    alt: str
    caption: str


def write_bench_report(folder: Path, manifest: Manifest | None = None) -> Path:
    """Write ``report.html``, the figures and the tables of the bench in ``folder``; return the page's path.

    It is shown as ``manifest`` says, by default the folder's own. A file ``analysis.md`` there becomes a section of the
    page.

    Raises:
        DataError: There is no bench.
    """
    results = load_results(folder, manifest)
    tables = build_tables(results)
    pictures = list(_pictures(results, tables)) if results.cells else []
    _save(folder / FIGURES_NAME, pictures)
    write_csv(folder / TABLES_NAME, tables)
    with written_whole(folder / SUMMARY_NAME) as scratch:
        scratch.write_text(tables.model_dump_json(indent=1) + "\n", encoding="utf-8")
    html = (
        environment("fedml_dapper.benches")
        .get_template("report.html")
        .render(
            results=results,
            bench=results.bench,
            tables=tables,
            claims=claims(results, tables),
            reading=honest(results),
            base=cost_base(tables, results),
            analysis=_analysis(folder / ANALYSIS_NAME),
            pictures=[_Shown(inline_svg(p.figure), p.alt, p.caption) for p in pictures],
            missing=_grouped(results.open),
            undiagnosed=_grouped(results.undiagnosed),
            settings=_settings(results),
            table_panels=len({row.panel for row in tables.honest.rows}),
            overrides=", ".join(
                f"{'.'.join(path)} {_text(value)}" for path, value in _flat(results.manifest.overrides)
            ),
            seeds=sorted({cell.seed for cell in results.cells}),
            levels=results.level_ratios,
            level_rows={
                variant.label: {row.level: row for row in tables.levels if row.label == variant.label}
                for variant in results.finished
                if any(row.label == variant.label for row in tables.levels)
            },
        )
    )
    path = folder / REPORT_NAME
    write_page(path, html)
    return path


def _pictures(results: BenchResults, tables: Tables) -> Iterator[Picture]:
    swept = [variant for variant in results.finished if variant.variant.panel is not None]
    if len(swept) > 1:
        yield Picture(
            "sweep",
            bench_figures.sweep_panels(results, tables),
            "Accuracy over the swept settings",
            "Filled markers: measured. Hollow ones: published; they stand for the paper's protocol.",
        )
    yield Picture(
        "learning_curves",
        bench_figures.learning_curves(results),
        "Accuracy over the rounds",
        "Test accuracy in every tested round.",
    )
    if results.bench.statistic == "global":
        yield Picture(
            "best_so_far",
            bench_figures.learning_curves(results, best_so_far=True),
            "Best accuracy so far over the rounds",
            "The same as the papers draw it: the best round so far, chosen on test images, so no line ever falls.",
        )
    if bench_figures.has_domain_curves(results):
        yield Picture(
            "domain_curves",
            bench_figures.domain_curves(results),
            "Accuracy over the rounds, column by column",
            "The columns of the tables, round by round. Small test sets make jumpy lines.",
        )
    if tables.times:
        yield Picture(
            "over_time",
            bench_figures.accuracy_over_time(results),
            "Accuracy over the fleet's time",
            "Test accuracy over virtual time. Up and to the left is better.",
        )
    if bench_figures.has_cost_choice(results, tables):
        yield Picture(
            "accuracy_and_cost",
            bench_figures.accuracy_against_cost(results, tables),
            "Accuracy against cost",
            "Up and to the left is better. Markers of equal cost are drawn side by side.",
        )
    yield from _pictures_of_models(results, tables)


def _pictures_of_models(results: BenchResults, tables: Tables) -> Iterator[Picture]:
    is_sweep = any(variant.variant.x is not None for variant in results.variants)
    if not is_sweep and diagnosis_figures.has_level_radar(tables):
        yield Picture(
            "levels",
            diagnosis_figures.level_radar(results, tables),
            "Accuracy by capability level",
            "Every client's own model, on its domain's test images. Levels differ in the domains that their clients"
            " hold, too: compare lines on one spoke, not spokes.",
        )
    if diagnosis_figures.has_confusions(results.reference):
        yield Picture(
            "confusion",
            diagnosis_figures.confusion_matrices(results, results.reference),
            f"Confusion matrices of {results.reference.label}",
            "Final model, after the last round. A row is a true class, its cells say what it is taken for.",
        )
    pair = diagnosis_figures.embedded_pair(results, tables)
    if pair:
        yield Picture(
            "representations",
            diagnosis_figures.embeddings(results, pair),
            "Representations of test images",
            "Points are test images. Classes apart and domains mixed is what domain generalisation wants; distances"
            " between far groups mean nothing.",
        )


def _save(folder: Path, pictures: list[Picture]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    known = {f"{picture.name}.{kind}" for picture in pictures for kind in ("png", "pdf")}
    for old in (*folder.glob("*.png"), *folder.glob("*.pdf")):
        if old.name not in known:
            old.unlink()
    for picture in pictures:
        searchable = mpl.rc_context({"pdf.fonttype": 42})  # text that can be searched and edited
        with names_as_text(picture.figure), searchable:
            with written_whole(folder / f"{picture.name}.png") as scratch:
                picture.figure.savefig(scratch, dpi=_PNG_DPI)
            with written_whole(folder / f"{picture.name}.pdf") as scratch:
                picture.figure.savefig(scratch, metadata={"CreationDate": None})


def _analysis(path: Path) -> Markup | None:
    """The analysis as HTML whose headings fit below the page's; what looks like HTML in it is shown, not obeyed."""
    if not path.is_file():
        return None
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    tokens = parser.parse(path.read_text(encoding="utf-8"))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1:]) + 2, 6)}"
        elif token.attrs.pop("style", "") == "text-align:right":  # the page lets no styles through
            token.attrs["class"] = "n"
    return Markup(parser.renderer.render(tokens, parser.options, {}))  # the parser escapes


def _grouped(cells: tuple[OpenCell, ...]) -> dict[str, list[OpenCell]]:
    groups: dict[str, list[OpenCell]] = {}
    for cell in cells:
        groups.setdefault(cell.variant, []).append(cell)
    return groups


@dataclass(frozen=True)
class _Settings:
    """Settings that all runs share, as a config file, and each variant's method and other settings."""

    shared: str
    own: dict[str, tuple[str, str]]


def _settings(results: BenchResults) -> _Settings:
    runs = {variant.label: next(iter(variant.cells.values())).run for variant in results.finished}
    flat = {
        label: {path: value for path, value in _flat(run.settings) if _is_relevant(path, run.method)}
        for label, run in runs.items()
    }
    names = list(dict.fromkeys(name for values in flat.values() for name in values))
    alike = [name for name in names if len({_text(values.get(name, "absent")) for values in flat.values()}) == 1]
    shared: dict[str, Any] = {}
    for name in alike:
        *sections, key = name
        place = shared
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = next(iter(flat.values()))[name]
    own = {
        label: (
            runs[label].method,
            ", ".join(f"{_short(name)} {_text(value)}" for name, value in values.items() if name not in alike),
        )
        for label, values in flat.items()
    }
    return _Settings(yaml.safe_dump(shared, sort_keys=False), own)


_Path = tuple[str, ...]
_PARAMS = ("dapper_args", "params")


def _flat(settings: dict[str, Any], inside: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """Path and value of every setting."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, (*inside, key))
        else:
            yield (*inside, key), value


def _is_relevant(path: _Path, method: str) -> bool:
    """Whether a setting says something beside seed and method; those of other methods do not."""
    if path[: len(_PARAMS)] == _PARAMS:
        return path[len(_PARAMS)] == method
    return path not in (("common_args", "random_seed"), ("dapper_args", "method"))


def _short(path: tuple[str, ...]) -> str:
    return path[-1] if path[:2] == _PARAMS else ".".join(path)


def _text(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
