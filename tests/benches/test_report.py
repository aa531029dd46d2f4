import re
from html import unescape

import pytest
from click.testing import CliRunner
from rich.console import Console

from fedml_dapper.benches.bench_report import write_bench_report
from fedml_dapper.benches.bench_terminal import terminal_table
from fedml_dapper.benches.grid import Published, Variant
from fedml_dapper.benches.results import load_results
from fedml_dapper.cli import main

from ..evaluation.pages import check_promises

EVIL = "<script>alert('x')</script>"


def text_of(html: str) -> str:
    body = re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


@pytest.fixture(scope="module")
def folder(make_store):
    """A report with everything: a hostile name, an analysis, cells unfinished, missing, without diagnosis."""
    store = make_store()
    published = {"global": Published(mean=64.54, std=1.1), "mnist": Published(mean=95.89)}
    folder = store.bench(
        [Variant(label="Ours", method="ours", published=published), "FedAvg", EVIL], seeds=(1, 2, 3), rounds=2
    )
    for label, accuracies in (("Ours", (60, 61, 62)), ("FedAvg", (63, 64.1, 65)), (EVIL, (60, 61, 62))):
        for seed, accuracy in enumerate(accuracies, start=1):
            cut = label == EVIL and seed == 3
            store.cell(
                label, seed, [accuracy] if cut else [50, accuracy], planned=2, suite="digits (subset)",
                cost_note=f"{EVIL} is dense." if label == EVIL else "", diagnosed=label != "FedAvg" and not cut,
                validation=[1, 2],
            )  # fmt: skip
    (folder / "analysis.md").write_text(
        f"# Why\n\nIt is *so*. {EVIL}\n\n![far](https://example.org/a.png)\n\n"
        "| method | points |\n|---|--:|\n| ours | 3 |\n"
    )
    (folder / "figures").mkdir()
    (folder / "figures" / "old.png").write_bytes(b"of an earlier version")
    write_bench_report(folder)
    return folder


@pytest.fixture(scope="module")
def html(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_report_is_one_file_under_a_strict_policy(html):
    check_promises(html)
    assert html.count("<svg class=") > 4


def test_hostile_names_are_escaped(html):
    assert "<script" not in html
    assert html.count("&lt;script&gt;") > 5


def test_it_says_first_that_the_reference_is_behind_and_that_this_is_not_the_papers_protocol(html):
    text = text_of(html)

    assert "do not compare the numbers with the published ones directly" in text
    assert "The runs are smaller: fewer rounds." in text
    assert "subset of the published set" in text
    assert text.index("Ours is not ahead") < text.index("The papers' statistic")
    assert "Data: digits (subset)" in text


def test_published_numbers_stand_beside_ours(html):
    assert "61.0 ± 1.0 [58.5, 63.5] paper 64.5 ± 1.1" in text_of(html)
    assert "paper 95.9" in text_of(html)


def test_differences_are_paired_and_bold_where_clear(html):
    assert "<strong>+3.0</strong>" in html
    assert "[+2.9, +3.2]" in html


def test_what_is_missing_is_said(html):
    text = text_of(html)

    assert "8 of 9 runs finished" in text
    assert f"{EVIL}: seed 3 (1 of 2 rounds)" in text
    assert "FedAvg: seed 1 (no diagnosis), seed 2 (no diagnosis), seed 3 (no diagnosis); in the tables" in text


def test_analysis_follows_the_tables_with_its_html_escaped_and_its_images_unloaded(html):
    assert html.index("What it costs") < html.index("<h2>Analysis</h2>") < html.index("<h2>Figures</h2>")
    assert "<h3>Why</h3>\n<p>It is <em>so</em>. &lt;script&gt;" in html
    assert '<img src="https' not in html


def test_figures_are_saved_and_stale_ones_go(folder):
    names = {path.name for path in (folder / "figures").iterdir()}
    kinds = ("learning_curves", "best_so_far", "domain_curves", "levels", "confusion", "representations")
    assert names == {f"{name}.{kind}" for name in kinds for kind in ("png", "pdf")}
    assert {path.name for path in folder.iterdir()} >= {"report.html", "tables.csv", "summary.json"}


@pytest.mark.nightly
def test_slim_models_as_they_are_sent(store, html):
    folder = store.bench(["Ours", "Slim"], seeds=(1, 2))
    for label in ("Ours", "Slim"):
        for seed in (1, 2):
            store.cell(label, seed, [50, 60, 70], diagnosed=True, sent_slim=label == "Slim")

    text = text_of(write_bench_report(folder).read_text(encoding="utf-8"))

    assert "mean of levels worst level Slim 30.0 ± 0.0 20.0 ± 0.0 30.0 ± 0.0 26.7 ± 0.0 20.0 ± 0.0" in text
    assert "Slim models as they are sent" not in text_of(html)  # nobody is sent one there


def test_settings_that_differ_are_listed_and_shared_ones_once(html):
    text = text_of(html)

    assert "Ours ours alpha 0.5" in text
    assert html.count("comm_round: 2") == 1


def test_the_terminal_gets_the_same(folder):
    console = Console(width=200)
    with console.capture() as capture:
        console.print(terminal_table(load_results(folder)))
    text = " ".join(capture.get().split())

    assert "64.0 ± 1.0 │ +3.0 [+2.9, +3.2]" in text
    assert "2 of 3" in text
    assert "Ours is not ahead" in text


def test_a_bench_that_has_not_begun_has_a_report(store):
    folder = store.bench(["Ours", "FedAvg"], seeds=(1,))

    text = text_of(write_bench_report(folder).read_text(encoding="utf-8"))

    assert "No run of Ours is finished" in text
    assert "Ours: seed 1 (not started)" in text
    assert "0 of 2 runs finished" in text


@pytest.mark.nightly
def test_variants_may_have_more_rounds_than_others(store):
    folder = store.bench(["Ours", "Longer"], seeds=(1,))
    store.cell("Ours", 1, [50, 60])
    same = text_of(write_bench_report(folder).read_text(encoding="utf-8"))
    store.cell("Longer", 1, [50, 60, 70])
    unequal = text_of(write_bench_report(folder).read_text(encoding="utf-8"))

    assert "1 of 2 runs finished, 2 rounds each" in same
    assert "2 of 2 runs finished, 2 to 3 rounds each" in unequal


@pytest.mark.long
def test_papers_protocol_has_no_notice_and_one_seed_is_called_so(store):
    folder = store.bench(["Ours"], seeds=(1,), profiles={"paper": {"seeds": (1,), "note": "the paper's protocol"}})
    store.cell("Ours", 1, [50, 60, 55])

    text = text_of(write_bench_report(folder).read_text(encoding="utf-8"))

    assert "do not compare" not in text
    assert "60.0 1 seed" in text
    assert "± 0.0" not in text
    assert "mean of the last five tested rounds" in text


def test_personal_bench(store):
    published = {"average": Published(mean=91.58, std=2.01)}
    folder = store.bench([Variant(label="Ours", method="m", published=published)], seeds=(1,), statistic="personal")
    store.cell("Ours", 1, [1, 1, 1], personal=[50, 70, 60], validation=[10, 20, 30])

    text = text_of(write_bench_report(folder).read_text(encoding="utf-8"))

    assert "variant AVG minus Ours ALL worst client seeds Ours 60.0 1 seed paper 91.6 ± 2.0" in text


def test_report_command_knows_a_bench(store):
    folder = store.bench(["Ours"], seeds=(1,))

    outcome = CliRunner().invoke(main, ["report", str(folder)])

    assert outcome.exit_code == 0, outcome.output
    assert outcome.output.strip() == str(folder / "report.html")


def test_settings_changed_on_the_command_line_are_named(store):
    folder = store.bench(
        ["Ours"], seeds=(1,), overrides={"train_args": {"comm_round": 2}},
        profiles={"paper": {"seeds": (1,), "note": "the paper's protocol"}},
    )  # fmt: skip

    assert "Settings were changed: train_args.comm_round 2." in text_of(write_bench_report(folder).read_text())
