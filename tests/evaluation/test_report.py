import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from fedml_dapper.datasets import ContactSheet
from fedml_dapper.errors import DataError
from fedml_dapper.evaluation import write_report
from fedml_dapper.federation import LedgerWriter, read_ledger
from fedml_dapper.federation.run_folder.records import DeviceFigures, DeviceScores, LevelFigures, PrivacySpent

from .pages import MOST_BYTES, check_promises


class _Page(HTMLParser):
    """The text, and the headings in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.headings: list[str] = []
        self._tag = ""
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self._tag = tag

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


def _sheet(*pictures: Image.Image) -> ContactSheet:
    return ContactSheet(("zero", "one"), dict.fromkeys(("mnist", "usps"), pictures))


@pytest.mark.nightly
def test_silos_that_no_list_names_are_counted_and_have_rows(make_run, make_round, write):
    rounds = [make_round(1, 40, 50), make_round(2, 90, 40)]
    settings = {"common_args": {"training_type": "cross_silo"}, "data_args": {"partition": "own"}}
    page = write(make_run(clients=(), domains=(), settings=settings), rounds)
    assert "3 clients, 2 domains" in page
    assert "as each silo measured it on its own" in page
    assert "share one machine" not in page
    assert len(re.findall(r"</svg>(mnist|usps)</td>", page.partition("Who the clients are")[0])) == 2
    assert "say what they hold when they join" not in page
    only_mnist = rounds[1].scores.model_copy(update={"domain_accuracy": {"mnist": 90.0}})
    write(make_run(clients=(), domains=()), [rounds[0], rounds[1].model_copy(update={"scores": only_mnist})])


def test_report_is_one_file_under_a_strict_policy(make_run, rounds, write):
    html = write(make_run(), rounds, _sheet(*[Image.new("RGB", (56, 172))] * 2))

    check_promises(html)
    assert html.count("data:image/jpeg") == 4


@pytest.mark.parametrize("name", [r"$\foo$", "a$b$c", r"\$1", "$", "$x_{$y", "数字"])
@pytest.mark.filterwarnings("error:Glyph")
def test_names_are_drawn_as_text(make_run, make_round, write, name: str):
    said = json.dumps(name)[1:-1]

    def renamed(record):
        return type(record).model_validate_json(record.model_dump_json().replace("mnist", said))

    page = write(renamed(make_run()), [renamed(make_round(number, 50, 30)) for number in (1, 2)])
    assert f">{name}</text>" in page
    check_promises(page)


def test_no_machine_s_matplotlibrc_sends_names_to_latex(make_run, rounds, write):
    with mpl.rc_context({"text.usetex": True}):
        page = write(make_run(), rounds)
    assert ">global (mean)</text>" in page
    assert "What this page goes without" not in page
    check_promises(page)


def test_code_in_messages_is_set_as_code(make_run, rounds, write):
    page = write(make_run(cost_note="`slim` <b> costs", notes=("with `epochs` and `a", "`x` & y")), rounds)
    assert "<code>slim</code> &lt;b&gt; costs" in page
    assert "<li>with <code>epochs</code> and `a</li>" in page
    assert "<li><code>x</code> &amp; y</li>" in page


def test_sections_come_in_reading_order(make_run, rounds, write):
    page = _Page(write(make_run(), rounds, _sheet(Image.new("RGB", (56, 56)), None)))

    assert page.headings == [
        "Result",
        "Top-1 accuracy (%) against what it cost",
        "What each device gets",
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


@pytest.mark.long
def test_sums_under_masks_and_rounds_that_came_to_nothing_are_shown(make_run, make_round, write):
    void, ruinous = "the sum is void: 2 clients are there, and the threshold is 3", "client 1 sent <b>3e38</b>"
    rounds = [
        make_round(1, 20.0, 10.0).model_copy(update={"opened_share": 0.5}),
        make_round(2).model_copy(update={"rolled_back": void}),
        make_round(3, 30.0, 20.0).model_copy(update={"opened_share": 1.0}),
        make_round(4).model_copy(update={"rolled_back": void}),
        make_round(5).model_copy(update={"rolled_back": ruinous}),
    ]
    html = write(make_run(), rounds)
    assert "<strong>75 %</strong>of the weights opened in sums under masks" in html
    assert "3 rounds left the model as it was:" in html
    assert f"{void} (round 2, 4)" in html
    assert "client 1 sent &lt;b&gt;3e38&lt;/b&gt; (round 5)" in html
    plain = write(make_run(), [make_round(1, 20.0, 10.0)])
    assert "under masks" not in plain
    assert "left the model as it was" not in plain


def test_rounds_without_any_upload_are_counted(make_run, make_round, write):
    nobody = {"rolled_back": "0 of the 2 uploads that min_clients_per_round asks for came in time", "clients": ()}
    rounds = [make_round(1, 20.0, 10.0), make_round(2).model_copy(update=nobody), make_round(3, 30.0, 20.0)]
    html = write(make_run(), rounds)
    assert "1 round left the model as it was:" in html
    assert "1 of the 3 rounds closed without any upload." in html
    assert "without any upload" not in write(make_run(), rounds[:1])


def test_levels_that_a_rule_changed_are_said_to_be_the_first_round_s(make_run, make_round, write):
    first, later = make_round(1, 40, 50), make_round(2, 90, 40)
    said = "Levels changed during the run"
    assert said not in write(make_run(), [first, later])
    moved = (later.clients[0].model_copy(update={"level": later.clients[0].level + 1}), *later.clients[1:])
    assert said in write(make_run(), [first, later.model_copy(update={"clients": moved})])


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


def test_size_of_a_long_run_with_many_busy_pictures(make_run, make_round, write):
    noise = np.random.default_rng(0).integers(0, 255, (56, 56, 3), dtype=np.uint8)
    pictures = (Image.fromarray(noise),) * 20
    sheet = ContactSheet(tuple(map(str, range(20))), {str(domain): pictures for domain in range(6)})
    rounds = [make_round(number, 50 + number / 10, 30 + number / 9) for number in range(1, 301)]

    assert len(write(make_run(), rounds, sheet)) < MOST_BYTES


def test_charts_are_whole(make_run, rounds, write):
    charts = re.findall(r"<svg class=\"(?:narrow|broad)\".*?</svg>", write(make_run(), rounds), re.DOTALL)

    assert len(charts) == 6
    for chart in charts:
        assert "</text>" in chart, "text as outlines triples the size"
        ElementTree.fromstring(chart)


def test_many_clients_share_rows(make_run, make_round, write):
    three = make_run().clients
    many = tuple(three[number % 3].model_copy(update={"client": number}) for number in range(300))
    text = _Page(write(make_run(clients=many), [make_round(1, 90, 20)])).text

    assert "100 mnist 1 0 6000" in text
    assert "200 usps 2 0.5 12000" in text


@pytest.mark.long
def test_every_device_has_the_figure_of_what_it_carries(make_run, make_round, write):
    levels = [LevelFigures(level=level, accuracy=50, domain_accuracy={"mnist": 40, "usps": 60}) for level in (1, 2)]
    sent = DeviceFigures(levels=tuple(levels), clients=(81.5, None, 62.5), accuracy=None, worst=62.5)
    record = make_round(1, 90, 20).model_copy(update={"devices": DeviceScores(sent=sent, own_statistics=None)})
    unseen = make_run().clients[0].model_copy(update={"client": 3, "domain": "usps", "num_samples": 9})
    run = make_run(clients=(*make_run().clients, unseen))
    assert "62.5 3 usps" not in _Page(write(run, [record])).text, "figures of three cannot be those of four"
    text = _Page(write(make_run(), [record])).text

    assert "0 mnist 1 0 60 81.5 1 usps 2 0.5 60 no model 2 usps 2 0.5 60 62.5" in text


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
