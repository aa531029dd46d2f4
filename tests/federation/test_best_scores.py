"""The best figures so far, where not all domains are tested in every round."""

from __future__ import annotations

from fedml_dapper.federation.scoring.after_round import Best
from fedml_dapper.federation.scoring.testing import Figures
from fedml_dapper.tasks import TOP_1


def test_a_domain_whose_silos_were_away_keeps_its_best() -> None:
    best = Best()
    rounds = ({"a": 90.0, "b": 80.0}, {"a": 70.0}, {"a": 60.0, "b": 50.0})
    found = [best.update({name: Figures(value, 0.0) for name, value in one.items()}, TOP_1) for one in rounds]
    assert found[1].domain_accuracy == {"a": 70.0}
    assert [scores.best_domain_accuracy for scores in found] == [{"a": 90.0, "b": 80.0}] * 3
