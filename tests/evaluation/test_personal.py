"""Clients' own models in summary, table and report."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from fedml_dapper.evaluation import personal_table, result_table, summarise, write_report
from fedml_dapper.evaluation.summary import Accuracy
from fedml_dapper.federation.run_folder.records import PersonalScores


def scores(overall: float, worst: float) -> PersonalScores:
    return PersonalScores(overall=overall, average=overall + 1, worst=worst, deviation=4.5, accuracy=(overall, worst))


@pytest.fixture
def rounds(make_round):
    """Test scores 60, 80, 70; validation prefers the third round. The second was not measured."""
    measured = {1: (60.0, 50.0, 61.0), 3: (80.0, 40.0, 62.0), 4: (70.0, 45.0, 65.0)}
    records = [make_round(number, 50.0, 30.0) for number in (1, 2, 3, 4)]
    for place, record in enumerate(records):
        if record.round in measured:
            overall, worst, validation = measured[record.round]
            clients = tuple(
                client.model_copy(update={"accuracy_before": 20.0 + client.client, "accuracy_after": 30.0})
                for client in record.clients[:2]
            )
            records[place] = record.model_copy(
                update={"personal": scores(overall, worst), "validation": scores(validation, 1.0), "clients": clients}
            )
    return records


def text_of(table) -> str:
    console = Console(width=140, file=StringIO())
    console.print(table)
    return " ".join(console.file.getvalue().split())


def test_summary_by_hand(make_run, rounds):
    personal = summarise(make_run(), rounds).personal

    assert personal.overall == Accuracy(best=80, best_round=3, last=70, last_round=4, mean_last5=70, mean_rounds=3)
    assert personal.worst == Accuracy(best=50, best_round=1, last=45, last_round=4, mean_last5=45, mean_rounds=3)
    assert (personal.chosen_round, personal.chosen) == (4, scores(70, 45))
    assert personal.last == scores(70, 45)
    assert (personal.before_training, personal.after_training) == (20.5, 30)


def test_without_validation_samples_no_round_is_chosen(make_run, rounds):
    rounds = [record.model_copy(update={"validation": None}) for record in rounds]

    personal = summarise(make_run(), rounds).personal

    assert (personal.chosen_round, personal.chosen) == (None, None)
    assert "by validation" not in text_of(personal_table(personal, make_run()))


def test_not_measured_is_not_shown(make_run, make_round, tmp_path):
    rounds = [make_round(1, 50.0, 30.0)]

    assert summarise(make_run(), rounds).personal is None
    write_report(tmp_path / "report.html", make_run(), rounds)
    assert "Clients' own models" not in (tmp_path / "report.html").read_text()


def test_table_and_report_show_the_numbers(make_run, rounds, tmp_path):
    text = text_of(personal_table(summarise(make_run(), rounds).personal, make_run()))
    for expected in ("by validation", "(round 4)", "80.0", "worst client", "from 20.5 to 30.0", "last: 4.5"):
        assert expected in text

    write_report(tmp_path / "report.html", make_run(), rounds)
    html = (tmp_path / "report.html").read_text()
    for expected in (
        "Clients' own models",
        "by validation (round 4)",
        '<td class="n">80.0</td>',
        "from 20.5 % to 30.0 %",
    ):
        assert expected in html


def test_the_unseen_domain_has_a_row_of_its_own(make_run, make_round, tmp_path):
    rounds = [make_round(number, 50.0, 30.0) for number in (1, 2)]
    rounds = [
        record.model_copy(update={"scores": record.scores.model_copy(update={"unseen_accuracy": unseen})})
        for record, unseen in zip(rounds, (64.3, 62.1), strict=True)
    ]
    run = make_run(unseen_domain="svhn")
    summary = summarise(run, rounds)

    assert summary.unseen_accuracy == Accuracy(
        best=64.3, best_round=1, last=62.1, last_round=2, mean_last5=63.2, mean_rounds=2
    )
    assert "svhn (unseen)" in text_of(result_table(summary, run))
    write_report(tmp_path / "report.html", run, rounds)
    assert "svhn (unseen)" in (tmp_path / "report.html").read_text()
