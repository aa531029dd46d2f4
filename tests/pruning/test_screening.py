"""Agreement over what slim models share, and who is left out or shortened for it, by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fedml_dapper.errors import ProtocolError
from fedml_dapper.pruning import (
    DENSE,
    Axis,
    ChannelGroup,
    ChannelLayout,
    PruningPlan,
    RecoveringMean,
    Recovery,
    ScreenedMean,
    TensorSpec,
)
from fedml_dapper.pruning.agreement import overlaps
from fedml_dapper.pruning.slim import KeptIndices
from fedml_dapper.pruning.waiting_uploads import WaitingUpload

VECTOR = ChannelLayout(
    {"g": ChannelGroup("g", 4, ("w",))},
    {
        "w": TensorSpec((4,), torch.float32, True, 0, (Axis(0, "g"),)),
        "running_mean": TensorSpec((), torch.float32, False, 0),
        "count": TensorSpec((), torch.int64, False, 0),
    },
)
FIRST_TWO, LAST_THREE = PruningPlan({"g": torch.tensor([0, 1])}), PruningPlan({"g": torch.tensor([1, 2, 3])})
BEFORE = (10.0, 20.0, 30.0, 40.0)


def model(values: Sequence[float], statistic: float = 0.0, count: int = 1) -> dict[str, Tensor]:
    return {"w": torch.tensor(values), "running_mean": torch.tensor(statistic), "count": torch.tensor(count)}


def changed(*changes: float, since: int = 0, statistic: float = 1.0) -> dict[str, Tensor]:
    """The coordinates from ``since`` on, each moved by so much."""
    values = [before + change for before, change in zip(BEFORE[since:], changes, strict=False)]
    return model(values, statistic)


def screened(recovery: Recovery = "holders", least: float = 0.0, most: float = 3.0) -> ScreenedMean:
    return ScreenedMean(model(BEFORE), VECTOR, recovery, least, most)


def test_pairs_are_compared_where_both_hold() -> None:
    uploads = [
        WaitingUpload(weights, KeptIndices(plan), (), 1)
        for weights, plan in (
            (changed(3, 4), FIRST_TWO),
            (changed(4, 0, 3, since=1), LAST_THREE),
            (changed(-6, -8, 0, 5), DENSE),
        )
    ]
    found = overlaps(uploads, model(BEFORE), VECTOR, ["w"])
    # shared: {1} of the first and the second, {0, 1} of the first and the third, {1, 2, 3} of the others
    assert found.products.tolist() == [[25, 16, -50], [16, 25, -32 + 15], [-50, -17, 125]]
    assert found.squares.tolist() == [[25, 16, 25], [16, 25, 25], [100, 89, 125]]
    assert found.cosines()[0].tolist() == [1, 1, -1]
    assert found.cosines()[1, 2] == pytest.approx(-17 / math.sqrt(25 * 89))
    assert found.ratios()[2, 0] == 2  # twice as far, over what both hold


def test_tensors_larger_than_a_block_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = [WaitingUpload(changed(1, 2, 3, 4), KeptIndices(DENSE), (), 1)] * 2
    whole = overlaps(uploads, model(BEFORE), VECTOR, ["w", "running_mean"])
    monkeypatch.setattr("fedml_dapper.pruning.agreement._BLOCK_ENTRIES", 3)
    parts = overlaps(uploads, model(BEFORE), VECTOR, ["w", "running_mean"])
    assert parts.products.tolist() == whole.products.tolist() == [[31, 31], [31, 31]]


@pytest.mark.parametrize(
    ("recovery", "expected"),
    [
        # the first two stay, of weight 1 and 3: T = 4, coordinates 2 and 3 are held by the second alone
        ("holders", [11.0, 22.5, 31.0, 41.0]),
        ("global", [11.0, 22.5, 30.75, 40.75]),
        ("zero", [11.0, 22.5, 0.75 * 31, 0.75 * 41]),
    ],
)
def test_who_disagrees_is_left_out_with_all_that_it_alone_holds(recovery: Recovery, expected: list[float]) -> None:
    mean = screened(recovery, most=100)
    mean.add(changed(1, 0), FIRST_TWO, weight=1)
    mean.add(changed(1, 10 / 3, 1, 1), DENSE, weight=3)
    mean.add(changed(-1, -1, -50, -50), DENSE, weight=7)
    torch.testing.assert_close(mean.result()["w"], torch.tensor(expected))
    assert [verdict.counted for verdict in mean.verdicts] == [1, 1, 0]
    assert mean.verdicts[2].agreement is not None
    assert mean.verdicts[2].agreement < 0


def test_the_worst_goes_first_and_the_others_are_asked_again() -> None:
    """The third agrees with two of five others, and once one of the hostile is gone, with two of four."""
    mean = screened()
    for changes in ((5, 1, 1, 0), (5, 0, 1, 1), (1, 5, 0, 0), (5, -2, 0, 0), (-6, -1, -1, 0), (-6, 0, -1, -1)):
        mean.add(changed(*map(float, changes)), DENSE, 1)
    mean.result()
    assert [verdict.counted for verdict in mean.verdicts] == [1, 1, 1, 1, 0, 0]


def test_who_merely_has_nothing_in_common_stays() -> None:
    """The last disagrees by a tenth where the others agree by 1; bounds are in units of what is typical."""
    for least, counted in ((-0.5, 1), (-0.05, 0), (0.0, 0)):
        mean = screened(least=least)
        for changes in ((1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (-0.1, math.sqrt(1 - 0.01))):
            mean.add(changed(*changes), FIRST_TWO, 1)
        mean.result()
        assert [verdict.counted for verdict in mean.verdicts] == [1, 1, 1, counted]
        assert mean.verdicts[3].agreement == pytest.approx(-0.1, abs=1e-4)


def test_fewer_than_half_are_left_out() -> None:
    for count, stay in ((1, 1), (2, 2), (3, 2), (4, 3), (5, 3)):
        mean = screened()
        for row in range(count):  # of opposite signs in turns, with no majority in even numbers
            mean.add(changed(*[(-1.0) ** row] * 4), DENSE, 1)
        mean.result()
        assert sum(verdict.counted for verdict in mean.verdicts) == stay, count


def test_who_moved_further_than_the_others_is_shortened_and_statistics_by_their_own_lengths() -> None:
    mean = screened(most=2)
    for length, statistic in ((1.0, 1.0), (1.0, 1.0), (1.0, 10.0), (8.0, 1.0)):
        mean.add(changed(*[length] * 4, statistic=statistic), DENSE, 1)
    result = mean.result()
    assert [verdict.counted for verdict in mean.verdicts] == [1, 1, 1, 0.25]
    assert [verdict.counted_statistics for verdict in mean.verdicts] == [1, 1, 0.2, 1]
    torch.testing.assert_close(result["w"], torch.tensor(BEFORE) + (1 + 1 + 1 + 2) / 4)
    assert float(result["running_mean"]) == pytest.approx((1 + 1 + 2 + 1) / 4)
    assert int(result["count"]) == 1


@pytest.mark.parametrize("recovery", ["holders", "global", "zero"])
def test_where_nobody_is_odd_it_is_the_recovering_mean_bit_for_bit(recovery: Recovery) -> None:
    generator = torch.Generator().manual_seed(1)
    ours, plain = screened(recovery), RecoveringMean(model(BEFORE), VECTOR, recovery)
    for weight, plan in ((3, FIRST_TWO), (5, LAST_THREE), (7, DENSE), (11, DENSE)):
        count = 4 if plan is DENSE else len(plan.kept["g"])
        noise = (1 + torch.rand(count, generator=generator)).tolist()
        weights = changed(*noise, since=1 if plan is LAST_THREE else 0)
        for mean in (ours, plain):
            mean.add(weights, plan, weight)
    assert all(torch.equal(tensor, plain_one) for tensor, plain_one in zip(*_results(ours, plain), strict=True))


def _results(*means: ScreenedMean | RecoveringMean) -> list[list[Tensor]]:
    return [list(mean.result().values()) for mean in means]


def test_what_is_not_finite_is_left_out_and_hides_nobody() -> None:
    mean = screened()
    for changes in ((1.0,) * 4, (1.0,) * 4, (-1.0,) * 4, (torch.inf, 1, 1, 1), (torch.nan,) * 4):
        mean.add(changed(*changes), DENSE, 1)
    assert mean.result()["w"].tolist() == [before + 1 for before in BEFORE]
    assert [verdict.counted for verdict in mean.verdicts] == [1, 1, 0, 0, 0]


def test_where_nothing_is_finite_the_model_stays() -> None:
    mean = screened()
    for _ in range(2):
        mean.add(changed(*(torch.nan,) * 4), DENSE, 1)
    assert mean.result()["w"].tolist() == list(BEFORE)
    assert [verdict.counted for verdict in mean.verdicts] == [0, 0]


def test_uploads_that_do_not_fit_are_refused_and_a_round_needs_one() -> None:
    mean = screened()
    with pytest.raises(ProtocolError, match="has shape"):
        mean.add(changed(1, 2, 3), FIRST_TWO, 1)
    with pytest.raises(ProtocolError, match="no client answered"):
        mean.result()
