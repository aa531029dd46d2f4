import pytest

from fedml_dapper.evaluation import Accuracy, summarise
from fedml_dapper.evaluation.announced import as_announced
from fedml_dapper.federation import LedgerWriter, read_ledger

ACCURACIES = {1: (10.0, 50.0), 2: (90.0, 20.0), 3: (60.0, 60.0), 4: (40.0, 70.0), 5: (50.0, 62.0), 6: (54.0, 58.0)}
"""Means 30, 55, 60, 55, 56, 56: the global best is round 3, mnist's own is round 2, usps' round 4."""


@pytest.fixture
def rounds(make_round):
    return [make_round(number, *values) for number, values in ACCURACIES.items()]


def test_matches_hand_computed_values(make_run, rounds):
    summary = summarise(make_run(), rounds)

    assert summary.global_accuracy == Accuracy(
        best=60, best_round=3, last=56, last_round=6, mean_last5=56.4, mean_rounds=5
    )
    assert summary.domain_accuracy == {
        "mnist": Accuracy(best=90, best_round=2, last=54, last_round=6, mean_last5=58.8, mean_rounds=5),
        "usps": Accuracy(best=70, best_round=4, last=58, last_round=6, mean_last5=54, mean_rounds=5),
    }
    assert (summary.rounds, summary.tested_rounds, summary.seconds) == (6, 6, 60)


def test_same_round_is_the_round_of_the_best_global_accuracy(make_run, rounds):
    summary = summarise(make_run(), rounds)

    assert summary.same_round == {"mnist": 60, "usps": 60}
    assert sum(summary.same_round.values()) / 2 == summary.global_accuracy.best


def test_domains_and_clients_that_only_the_rounds_name(make_run, make_round):
    """Silos with data of their own are in no list; one that was away left its domain untested."""
    run = make_run(clients=(), domains=())
    rounds = [make_round(1, 10, 50), make_round(2, 90, 20), make_round(3, 60, 60)]
    away = rounds[2].scores.model_copy(update={"domain_accuracy": {"mnist": 60.0}, "global_accuracy": 60.0})
    rounds[2] = rounds[2].model_copy(update={"scores": away})

    summary, announced = summarise(run, rounds), as_announced(run, rounds)

    assert (announced.clients, announced.domains) == (make_run().clients, ("mnist", "usps"))
    assert {domain: (one.last, one.last_round) for domain, one in summary.domain_accuracy.items()} == {
        "mnist": (60, 3),
        "usps": (20, 2),
    }
    assert summary.same_round == {"mnist": 60}


def test_first_of_equally_good_rounds_is_the_best_round(make_run, make_round):
    summary = summarise(make_run(), [make_round(1, 40, 60), make_round(2, 60, 40)])

    assert summary.global_accuracy.best_round == 1
    assert summary.same_round == {"mnist": 40, "usps": 60}


def test_untested_rounds_count_as_rounds_but_not_as_scores(make_run, make_round):
    rounds = [make_round(1), make_round(2, 30, 50), make_round(3), make_round(4, 20, 40), make_round(5)]

    summary = summarise(make_run(), rounds)

    assert (summary.rounds, summary.tested_rounds, summary.seconds) == (5, 2, 50)
    assert summary.global_accuracy == Accuracy(
        best=40, best_round=2, last=30, last_round=4, mean_last5=35, mean_rounds=2
    )


def test_rounds_without_any_upload_are_counted(make_run, make_round):
    rounds = [make_round(1, 30, 50), *(make_round(n).model_copy(update={"clients": ()}) for n in (2, 3)), make_round(4)]

    assert summarise(make_run(), rounds).empty_rounds == 2


@pytest.mark.parametrize("numbers", [[], [1, 2]])
def test_without_tested_rounds_there_is_no_accuracy(make_run, make_round, numbers):
    summary = summarise(make_run(), [make_round(number) for number in numbers])

    assert summary.rounds == len(numbers)
    assert summary.global_accuracy is None
    assert summary.domain_accuracy == summary.same_round == {}


def test_ledger_file_gives_the_same_summary(tmp_path, make_run, rounds):
    ledger = LedgerWriter(tmp_path / "ledger.jsonl")
    ledger.run_started(make_run())
    for record in rounds:
        ledger.round_finished(record)
    ledger.run_finished()

    assert summarise(*read_ledger(ledger.path)) == summarise(make_run(), rounds)


def test_round_chosen_by_validation_is_scored_on_test_samples(make_run, rounds, make_round):
    validation = {1: 40.0, 2: 70.0, 3: 60.0, 4: 70.0, 5: 10.0, 6: 20.0}
    with_validation = [
        record.model_copy(update={"validation_scores": make_round(1, *(validation[record.round],) * 2).scores})
        for record in rounds
    ]

    chosen = summarise(make_run(), with_validation).chosen

    assert (chosen.round, chosen.validation_accuracy, chosen.global_accuracy) == (2, 70, 55)
    assert chosen.domain_accuracy == {"mnist": 90, "usps": 20}
    assert summarise(make_run(), rounds).chosen is None
