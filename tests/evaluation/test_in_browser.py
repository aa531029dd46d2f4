"""Pages as a reader sees them: Chromium opens them in both themes, on a phone and on a desk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from docs.pictures.browser import Page, Theme, browser, chromium
from fedml_dapper.datasets import ContactSheet
from fedml_dapper.evaluation import write_report
from fedml_dapper.evaluation.comparison import compare
from fedml_dapper.evaluation.comparison_page import write_comparison
from fedml_dapper.evaluation.last_model import LastModel
from fedml_dapper.federation import LedgerWriter, RoundRecord, RunRecord
from fedml_dapper.federation.run_folder.records import (
    ClientOnClock,
    DeviceFigures,
    DeviceScores,
    LevelFigures,
    PrivacySpent,
    RoundOnClock,
)

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine (apt-get install chromium)")

UNREADABLE = """
(() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, place) => sum + v * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const words = [...element.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join("");
    if (!words || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const [low, high] = [channels(element.closest("svg") ? style.fill : style.color), behind(element)]
      .map(light).sort((a, b) => a - b);
    if ((high + 0.05) / (low + 0.05) < 4.5) found.push(`contrast ${(high + 0.05) / (low + 0.05)}: ${words}`);
    const size = parseFloat(style.fontSize) * (element.getScreenCTM ? element.getScreenCTM().a : 1);
    const turned = /rotate\\(-?90/.test(element.getAttribute("transform") || "");
    if (size < 10.5 && !turned) found.push(`${size} px: ${words}`);
  }
  return found;
})()
"""
CUT_OFF = """
[...document.querySelectorAll("svg text")].filter((text) => {
  const [inner, outer] = [text, text.closest("svg")].map((element) => element.getBoundingClientRect());
  return inner.left < outer.left - 1 || inner.right > outer.right + 1 ||
    inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
}).map((text) => text.textContent)
"""
SIZE = "[document.documentElement.scrollWidth, document.querySelectorAll('svg:not(.dot)').length]"


def figures(*values: float) -> DeviceFigures:
    levels = tuple(
        LevelFigures(level=level, accuracy=value, domain_accuracy={"mnist": value - 9, "usps": value + 9})
        for level, value in enumerate(values, start=1)
    )
    return DeviceFigures(levels=levels, clients=(80, 20.5, 70), accuracy=56.8, worst=20.5)


def everything(record: RoundRecord) -> RoundRecord:
    """``record`` with all that a round may have."""
    at_work = [
        ClientOnClock(client=client, download_s=10, training_s=70, upload_s=20, joules=35, outcome="in time")
        for client in range(3)
    ]
    number = record.round
    clock = RoundOnClock(round_s=100, elapsed_s=100 * number, joules=1e4 * number, clients=tuple(at_work))
    devices = DeviceScores(sent=figures(80, 20), own_statistics=figures(82, 60))
    spent = PrivacySpent(epsilon=number / 2, delta=1e-5, rounds={0: number})
    return record.model_copy(update={"clock": clock, "devices": devices, "privacy": spent})


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.fixture(params=["report", "comparison"])
def file(
    request: pytest.FixtureRequest, tmp_path: Path, make_run: Callable[..., RunRecord],
    make_round: Callable[..., RoundRecord],
) -> Path:  # fmt: skip
    classes = tuple(f"class_number_{number}" for number in range(10))
    run = make_run(classes=classes, suite="digits (subset)")
    rounds = [everything(make_round(number, 40 + number, 60 - number)) for number in range(1, 21)]
    path = tmp_path / "page.html"
    if request.param == "report":
        counts = tuple(tuple(7 if truth == taken else 1 for taken in range(10)) for truth in range(10))
        last = LastModel({1: 10**9, 2: 10**8}, {"mnist": counts, "usps": counts})
        tiles = (Image.new("RGB", (56, 172)),) * 10
        write_report(path, run, rounds, ContactSheet(classes, {"mnist": tiles, "usps": tiles}), last)
    else:
        for name in ("the_first_of_two_runs", "the_second_with_other_settings"):
            (tmp_path / name).mkdir()
            ledger = LedgerWriter(tmp_path / name / "ledger.jsonl")
            ledger.run_started(run.model_copy(update={"settings": {"common_args": {"random_seed": len(name)}}}))
            for record in rounds:
                ledger.round_finished(record)
            ledger.run_finished()
        write_comparison(path, compare([ledger.path.parent, tmp_path / "the_first_of_two_runs"]))
    return path


@pytest.mark.long
@pytest.mark.parametrize(
    ("width", "theme"),
    [
        (390, "dark"),
        (1280, "light"),
        pytest.param(390, "light", marks=pytest.mark.nightly),
        pytest.param(1280, "dark", marks=pytest.mark.nightly),
    ],
)
def test_it_fits_it_can_be_read_and_the_browser_has_no_complaints(
    page: Page, file: Path, width: int, theme: Theme
) -> None:
    page.show(file, width, theme)
    needed, charts = page.evaluate(SIZE)
    assert needed == width
    assert charts >= 4
    assert page.evaluate(UNREADABLE) == []
    assert page.evaluate(CUT_OFF) == []
    assert page.complaints == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 25, 29)"
    assert dark == (theme == "dark")


@pytest.mark.nightly
def test_what_breaks_the_policy_is_not_let_through_and_is_seen_here(page: Page, tmp_path: Path, file: Path) -> None:
    html = file.read_text().replace("<p>", '<p style="color: red">', 1).replace("</h1>", "</h1><script>0</script>", 1)
    (tmp_path / "broken.html").write_text(html)
    page.show(tmp_path / "broken.html", 1280, "light")
    assert sum("Content Security Policy" in complaint for complaint in page.complaints) == 2
