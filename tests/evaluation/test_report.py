import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedml_dapper.errors import DataError
from fedml_dapper.evaluation import write_report
from fedml_dapper.federation import LedgerWriter, read_ledger
from fedml_dapper.federation.records import PrivacySpent


class _Page(HTMLParser):
    """Everything a browser would load, the text, and the headings in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.headings: list[str] = []
        self._tag = ""
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self._tag = tag
        self.loads += [value for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]

    def handle_data(self, data):
        if self._tag == "h2" and data.strip():
            self.headings.append(data)
        if self._tag != "style":
            self.words.append(data)


@pytest.fixture
def rounds(make_round):
    return [make_round(number, 50 + number, 30 + number) for number in range(1, 21)]


@pytest.fixture
def write(tmp_path: Path):
    def write(run, rounds, sheet=None) -> str:
        write_report(tmp_path / "report.html", run, rounds, sheet)
        return (tmp_path / "report.html").read_text(encoding="utf-8")

    return write


def _pictures(html: str) -> list[tuple[str, bytes]]:
    found = re.findall(r'src="data:([^;]+);base64,([^"]+)"', html)
    return [(media_type, base64.b64decode(content)) for media_type, content in found]


def test_report_is_self_contained(make_run, rounds, write):
    html = write(make_run(), rounds, Image.new("RGB", (600, 660)))
    page = _Page(html)

    assert page.loads
    assert all(load.startswith(("data:", "#")) for load in page.loads)
    assert not page.tags & {"script", "link", "iframe", "object"}
    for text in [html, *(content.decode() for kind, content in _pictures(html) if kind == "image/svg+xml")]:
        assert not re.search(r"""(src|href)=["']?\s*(https?:)?//|@import|url\(\s*["']?(?!#)""", text)


def test_sections_come_in_reading_order(make_run, rounds, write):
    page = _Page(write(make_run(), rounds, Image.new("RGB", (60, 66))))

    assert page.headings == [
        "Result",
        "Who the clients are",
        "What a client costs",
        "Training loss",
        "Time",
        "What the images look like",
        "Notes on the data's partition",
        "Settings",
        "How to read this",
    ]
    assert "client 2 shares samples" in page.text
    assert "random_seed: 7" in page.text


def test_headline_numbers(make_run, make_round, write):
    page = _Page(write(make_run(), [make_round(1, 90, 20), make_round(2, 60, 62)]))

    assert "61.0 % last (round 2) 58.0 % mean of last 2 61.0 % best (round 2)" in page.text
    assert "mnist 60.0 90.0 1 60.0" in page.text
    assert "usps 62.0 62.0 2 62.0" in page.text
    assert "global (mean) 61.0 61.0 2 61.0" in page.text


def test_epsilon_stands_beside_accuracy_where_there_is_one(make_run, make_round, write):
    def page(*epsilons: float | None) -> str:
        private = [
            make_round(number, 70.0, 60.0).model_copy(
                update={"privacy": PrivacySpent(epsilon=epsilon, delta=1e-5, rounds={0: number})}
            )
            for number, epsilon in enumerate(epsilons, start=1)
        ]
        return write(make_run(), private)

    text = _Page(page(1.25, 2.5)).text
    assert "2.5 epsilon (delta 1e-05, round 2)" in text
    assert "accuracies, losses and times are measured without noise" in text
    assert "epsilon" not in _Page(page(None, None)).text


def test_labels_are_escaped(make_run, make_round, write):
    evil = "<script>alert('x')</script>"
    run = make_run(suite=evil, method=evil, notes=(evil,), settings={"data_args": {"dataset": evil}})
    html = write(run, [make_round(1, 1, 2)])

    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 4


@pytest.mark.parametrize(("suite", "shown"), [("digits (subset)", True), ("digits", False)])
def test_notice_when_the_data_are_not_the_papers(make_run, write, suite, shown):
    assert ("These are not the paper's data." in _Page(write(make_run(suite=suite), [])).text) == shown


@pytest.mark.parametrize("note", ["peak memory stays.", ""])
def test_what_pruning_does_not_save_is_said_where_there_is_something_to_say(make_run, write, note):
    text = _Page(write(make_run(cost_note=note), [])).text
    assert ("What these figures leave out" in text) == bool(note)
    assert note in text


def test_levels_that_train_the_same_model_are_pointed_out(make_run, write):
    dense, slim = make_run().footprints
    alike = (dense, dense.model_copy(update={"level": 2, "ratio": slim.ratio}))

    text = _Page(write(make_run(method="fedavg", footprints=alike, cost_note=""), [])).text

    assert "fedavg trains the same model on every client" in text


def test_size_with_a_busy_contact_sheet(make_run, rounds, write):
    noise = np.random.default_rng(0).integers(0, 255, (672, 596, 3), dtype=np.uint8)
    smooth = Image.fromarray(noise).resize((150, 168)).resize((596, 672))

    assert len(write(make_run(), rounds, smooth)) < 400_000


def test_pictures_are_whole(make_run, rounds, write):
    pictures = _pictures(write(make_run(), rounds, Image.new("RGBA", (60, 66))))

    assert [kind for kind, _ in pictures] == ["image/svg+xml"] * 4 + ["image/jpeg"]
    for _, drawing in pictures[:4]:
        assert b"</text>" in drawing, "text as outlines triples the size"
        assert drawing.rstrip().endswith(b"</svg>")


@pytest.mark.parametrize("finished", [0, 3])
def test_interrupted_run_gets_a_report_that_says_so(tmp_path, make_run, make_round, write, finished):
    ledger = LedgerWriter(tmp_path / "ledger.jsonl")
    ledger.run_started(make_run())
    for number in range(1, finished + 1):
        ledger.round_finished(make_round(number))
    ledger.run_finished()

    text = _Page(write(*read_ledger(ledger.path))).text

    assert f"{finished} of 20 rounds are in the ledger" in text
    assert "No round was tested yet" in text


def test_finished_run_is_not_called_unfinished(make_run, rounds, write):
    assert "Not finished" not in _Page(write(make_run(), rounds)).text


def test_settings_of_another_version_are_no_obstacle(make_run, write):
    assert "0 rounds, 3 clients, 2 domains, 1 seed, 0.0 s" in _Page(write(make_run(settings={}), [])).text


def test_equal_ledgers_give_equal_reports(make_run, rounds, write):
    assert write(make_run(), rounds) == write(make_run(), rounds)


def test_failed_report_leaves_the_old_one(tmp_path, make_run, write, monkeypatch):
    before = write(make_run(), [])

    def disk_full(self, *_, **__):
        self.write_bytes(b"<!DOCTYPE")
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", disk_full)
    with pytest.raises(DataError, match=r"cannot write .*no space"):
        write_report(tmp_path / "report.html", make_run(), [])

    assert (tmp_path / "report.html").read_bytes().decode() == before
