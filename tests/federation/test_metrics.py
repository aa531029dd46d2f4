from __future__ import annotations

from fedml_dapper.federation import ClientRecord, RoundRecord, Scores, metrics_of
from fedml_dapper.federation.run_folder.records import RoundSeconds


def client(number: int, level: int, num_samples: int, loss: float) -> ClientRecord:
    return ClientRecord(
        client=number, domain="mnist", level=level, ratio=0.0, num_samples=num_samples, params=1, macs=1,
        bytes_up=10 * level, bytes_down=100, loss=loss, steps=1, seconds=1.0,
    )  # fmt: skip


SCORES = Scores(
    global_accuracy=70.0,
    domain_accuracy={"mnist": 80.0, "usps": 60.0},
    domain_loss={"mnist": 0.5, "usps": 1.5},
    best_global_accuracy=75.0,
    best_domain_accuracy={"mnist": 85.0, "usps": 65.0},
)


def test_names_and_values_of_a_round() -> None:
    record = RoundRecord(
        round=3,
        scores=SCORES,
        clients=(
            client(0, 1, 30, 1.0),
            client(1, 2, 10, 4.0),
            client(2, 1, 10, 5.0).model_copy(update={"counted": 0.0}),
        ),
        absent=(7,),
        seconds=RoundSeconds(total=9.0, evaluation=2.0),
    )
    assert metrics_of(record) == {
        "accuracy/global": 70.0,
        "accuracy/mnist": 80.0,
        "accuracy/usps": 60.0,
        "best_accuracy/global": 75.0,
        "best_accuracy/mnist": 85.0,
        "best_accuracy/usps": 65.0,
        "loss/mnist": 0.5,
        "loss/usps": 1.5,
        "train_loss/level_1": 2.0,  # (30 * 1 + 10 * 5) / 40
        "train_loss/level_2": 4.0,
        "bytes/up": 40,
        "bytes/down": 300,
        "clients/answered": 3,
        "clients/absent": 1,
        "clients/refused": 0,
        "clients/not_finite": 0,
        "clients/left_out": 1,
        "clients/from_earlier_rounds": 0,
        "seconds/round": 9.0,
        "seconds/evaluation": 2.0,
    }


def test_a_round_without_test_and_without_answers_has_no_accuracies_and_no_losses() -> None:
    record = RoundRecord(round=1, scores=None, clients=(), seconds=RoundSeconds(total=1.0, evaluation=0.0))
    assert set(metrics_of(record)) == {
        "bytes/up", "bytes/down", "clients/answered", "clients/absent", "clients/refused", "clients/not_finite",
        "clients/left_out",
        "clients/from_earlier_rounds", "seconds/round", "seconds/evaluation",
    }  # fmt: skip


def test_a_domain_called_like_the_run_s_own_figures_does_not_hide_them() -> None:
    named = {"domain_accuracy": {"global": 10.0, "unseen": 20.0}, "best_domain_accuracy": {"global": 11.0}}
    scores = SCORES.model_copy(update={**named, "unseen_accuracy": 30.0})
    record = RoundRecord(round=1, scores=scores, clients=(), seconds=RoundSeconds(total=1.0, evaluation=0.0))
    metrics = metrics_of(record)
    assert [metrics[f"accuracy/{name}"] for name in ("global", "unseen")] == [70.0, 30.0]
    assert [metrics[f"accuracy/domain {name}"] for name in ("global", "unseen")] == [10.0, 20.0]
    assert (metrics["best_accuracy/global"], metrics["best_accuracy/domain global"]) == (75.0, 11.0)
