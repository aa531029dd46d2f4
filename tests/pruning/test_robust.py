"""Order statistics over the clients that hold a coordinate, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import ModelArgs
from fedml_dapper.errors import ProtocolError
from fedml_dapper.models import build_backbone, example_image
from fedml_dapper.pruning import (
    DENSE,
    Axis,
    ChannelGroup,
    ChannelLayout,
    PruningPlan,
    Recovery,
    RobustMean,
    TensorSpec,
    plan_by_importance,
    slim_tensors,
    solve_widths,
    trace_layout,
)

VECTOR = ChannelLayout(
    {"g": ChannelGroup("g", 4, ("w",))}, {"w": TensorSpec((4,), torch.float32, True, 0, (Axis(0, "g"),))}
)
FIRST_TWO, FIRST_THREE = (PruningPlan({"g": torch.arange(count)}) for count in (2, 3))


def vector(*values: float) -> dict[str, Tensor]:
    return {"w": torch.tensor(values, dtype=torch.float32)}


def median(recovery: Recovery = "holders", min_holders: int = 1) -> RobustMean:
    return RobustMean(vector(1, 2, 3, 4), VECTOR, recovery, None, min_holders)


@pytest.mark.parametrize(
    ("recovery", "expected"),
    [
        # holders: three, three, two, one; medians 7, 8, (9 + 90) / 2, 10; T = 1 + 3 + 4, H = 8, 8, 7, 3
        ("holders", [7.0, 8.0, 49.5, 10.0]),
        ("global", [7.0, 8.0, (7 * 49.5 + 1 * 3) / 8, (3 * 10 + 5 * 4) / 8]),
        ("zero", [7.0, 8.0, 7 * 49.5 / 8, 3 * 10 / 8]),
    ],
)
def test_median_over_holders_then_the_recovery_rule(recovery: Recovery, expected: list[float]) -> None:
    mean = median(recovery)
    mean.add(vector(5, 6), FIRST_TWO, weight=1)
    mean.add(vector(7, 8, 9, 10), DENSE, weight=3)
    mean.add(vector(70, 80, 90), FIRST_THREE, weight=4)
    assert mean.result()["w"].tolist() == expected


def test_what_too_few_hold_counts_as_held_by_nobody() -> None:
    for recovery, kept in (("holders", [3.0, 4.0]), ("global", [3.0, 4.0]), ("zero", [0.0, 0.0])):
        mean = median(recovery, min_holders=3)  # type: ignore[arg-type]
        mean.add(vector(5, 6), FIRST_TWO, weight=1)
        mean.add(vector(7, 8, 9, 10), DENSE, weight=1)
        mean.add(vector(70, 80, 90), FIRST_THREE, weight=1)
        assert mean.result()["w"].tolist() == [7.0, 8.0, *kept]


def test_trimming_counts_clients_and_rounds_up() -> None:
    layout = ChannelLayout({}, {"w": TensorSpec((1,), torch.float32, True, 0)})
    for values, share, expected in (
        ((1, 2, 3, 4, 1e6), 0.2, 3.0),  # one at either end
        ((1, 2, 3, 4, 1e6), 0.25, 3.0),  # 1.25 is two: the middle one is left
        ((1, 2, 6, 1e6), 0.1, 4.0),
        ((1, 5), 0.4, 3.0),  # of two nothing can be left out
        (tuple(range(10)), 0.1, 4.5),
        ((0, 0, 0, 3, 3, 3, 3, 3, 3, 9e9), 0.3, 3.0),  # three at either end, not four
    ):
        mean = RobustMean({"w": torch.zeros(1)}, layout, "global", share, min_holders=1)
        for weight, value in enumerate(values, start=1):
            mean.add({"w": torch.tensor([float(value)])}, DENSE, weight)
        assert mean.result()["w"].tolist() == [expected]


def test_tensors_cut_both_ways_and_scalars() -> None:
    groups = {"r": ChannelGroup("r", 2, ("w",)), "c": ChannelGroup("c", 3, ())}
    specs = {
        "w": TensorSpec((2, 3), torch.float32, True, 0, (Axis(0, "r"), Axis(1, "c"))),
        "s": TensorSpec((), torch.float32, True, 0),
    }
    mean = RobustMean({"w": torch.zeros(2, 3), "s": torch.zeros(())}, ChannelLayout(groups, specs), "holders", None, 1)
    for plan, weights, scalar in (
        (PruningPlan({"r": torch.tensor([1]), "c": torch.tensor([0, 2])}), [[1.0, 2.0]], 5.0),
        (PruningPlan({"c": torch.tensor([0, 1])}), [[7.0, 8.0], [9.0, 8.0]], 6.0),
        (DENSE, [[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]], 100.0),
    ):
        mean.add({"w": torch.tensor(weights), "s": torch.tensor(scalar)}, plan, 1)
    result = mean.result()
    assert result["w"].tolist() == [[5.5, 6.0, 4.0], [4.0, 6.0, 3.0]]
    assert float(result["s"]) == 6.0


def test_counters_take_the_median_and_whole_tensors_stay_whole() -> None:
    layout = ChannelLayout(dict(VECTOR.groups), {**VECTOR.tensors, "n": TensorSpec((), torch.int64, False, 0)})
    mean = RobustMean({**vector(0, 0, 0, 0), "n": torch.tensor(3)}, layout, "holders", None, 1)
    for values, count in (((1, 1, 1, 1), 5), ((2, 2, 2, 2), 7), ((9, 9, 9, 9), 2**39)):
        mean.add({**vector(*values), "n": torch.tensor(count)}, FIRST_TWO, 1, unsliced={"w"})
    assert mean.result()["w"].tolist() == [2.0] * 4
    assert int(mean.result()["n"]) == 7


def test_counters_that_are_cut_take_the_median_of_their_holders() -> None:
    layout = ChannelLayout(dict(VECTOR.groups), {"n": TensorSpec((4,), torch.int64, False, 0, (Axis(0, "g"),))})
    mean = RobustMean({"n": torch.tensor([1, 2, -3, -4])}, layout, "holders", None, min_holders=2)
    for plan, numbers in ((FIRST_TWO, [-5, 6]), (FIRST_THREE, [-7, 8, -9]), (FIRST_THREE, [-1, 2, -6])):
        mean.add({"n": torch.tensor(numbers)}, plan, 1)
    assert mean.result()["n"].tolist() == [-5, 6, -6, -4]


def test_tensors_that_a_plan_omits_are_not_held() -> None:
    mean = median()
    for plan in (PruningPlan({}, frozenset({"w"})), PruningPlan({}, frozenset({"w"}))):
        mean.add({}, plan, 1)
    assert mean.result()["w"].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_tensor_without_entries_stays_one() -> None:
    layout = ChannelLayout({}, {"e": TensorSpec((0,), torch.float32, False, 0)})
    mean = RobustMean({"e": torch.zeros(0)}, layout, "holders", 0.2, 1)
    mean.add({"e": torch.zeros(0)}, PruningPlan({}), 1)
    assert mean.result()["e"].shape == (0,)


def test_equal_uploads_of_a_real_model_come_back_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedml_dapper.pruning.robust._BLOCK_ENTRIES", 50)
    model = build_backbone(ModelArgs(model="resnet10", width=4), 10, seed=1)
    layout, weights = trace_layout(model, example_image(16), "grouped"), model.state_dict()
    mean = RobustMean(weights, layout, "global", 0.2, 3)
    for ratio, count in ((0.2, 179), (0.5, 25), (0.8, 47), (0.0, 3)):
        plan = plan_by_importance(layout, weights, solve_widths(layout, ratio, "channels"))
        mean.add(slim_tensors(weights, layout, plan), plan, count)
    for name, tensor in mean.result().items():
        torch.testing.assert_close(tensor, weights[name], rtol=1e-6, atol=0)


def test_uploads_that_do_not_fit_are_refused_and_a_round_needs_one() -> None:
    mean = median()
    with pytest.raises(ProtocolError, match="has shape"):
        mean.add(vector(1, 2, 3), FIRST_TWO, 1)
    with pytest.raises(ProtocolError, match=r"is torch\.float64"):
        mean.add({"w": torch.zeros(4, dtype=torch.float64)}, DENSE, 1)
    with pytest.raises(ProtocolError, match="no client answered"):
        mean.result()
