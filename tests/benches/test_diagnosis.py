import pytest

from fedml_dapper.benches.diagnosis import diagnose
from fedml_dapper.federation import build_experiment, simulate
from tests.benches.test_queue import tiny_cells


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("method", "sends_slim"), [("heterofl", True), pytest.param("dapperfl", False, marks=pytest.mark.nightly)]
)
def test_slim_models_that_are_sent_are_tested_on_all_domains(method: str, sends_slim: bool) -> None:
    [cell] = tiny_cells(rounds=2, methods=(method,))
    experiment = build_experiment(cell.settings)
    server, records = simulate(experiment)

    scores = diagnose(experiment, server).levels

    assert {score.level for score in scores} == {1, 2, 3, 4, 5}
    if not sends_slim:
        assert {score.everywhere for score in scores} == {None}
        return
    by_level = {score.level: score.everywhere for score in scores}
    assert by_level[1] == pytest.approx(records[-1].scores.global_accuracy)  # the whole model
    assert by_level[5] != by_level[1]
