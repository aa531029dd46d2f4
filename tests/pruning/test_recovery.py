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
    RecoveringMean,
    Recovery,
    TensorSpec,
    plan_by_importance,
    running_sum,
    slim_tensors,
    solve_widths,
    trace_layout,
)
from fedml_dapper.pruning import recovery as recovering
from fedml_dapper.pruning.side_by_side import do_side_by_side

VECTOR = ChannelLayout(
    {"g": ChannelGroup("g", 4, ("w",))}, {"w": TensorSpec((4,), torch.float32, True, 0, (Axis(0, "g"),))}
)
FIRST_TWO = PruningPlan({"g": torch.tensor([0, 1])})


def vector(*values: float) -> dict[str, Tensor]:
    return {"w": torch.tensor(values, dtype=torch.float32)}


@pytest.mark.parametrize(
    ("recovery", "expected"),
    [
        ("global", [6.5, 7.5, 7.5, 8.5]),
        ("zero", [6.5, 7.5, 6.75, 7.5]),
        ("holders", [6.5, 7.5, 9.0, 10.0]),
    ],
)
def test_hand_computed_recovery(recovery: Recovery, expected: list[float]) -> None:
    mean = RecoveringMean(vector(1, 2, 3, 4), VECTOR, recovery)
    mean.add(vector(5, 6), FIRST_TWO, weight=1)
    mean.add(vector(7, 8, 9, 10), DENSE, weight=3)
    assert mean.result()["w"].tolist() == expected


@pytest.mark.parametrize(
    ("recovery", "expected"), [("global", [3.0, 4.0]), ("zero", [0.0, 0.0]), ("holders", [3.0, 4.0])]
)
def test_what_nobody_kept(recovery: Recovery, expected: list[float]) -> None:
    mean = RecoveringMean(vector(1, 2, 3, 4), VECTOR, recovery)
    mean.add(vector(5, 6), FIRST_TWO, weight=1)
    assert mean.result()["w"].tolist()[2:] == expected


def test_disjoint_owners_move_only_their_own_by_their_share() -> None:
    mean = RecoveringMean(vector(1, 1, 1, 1), VECTOR)
    mean.add(vector(5, 5), FIRST_TWO, weight=1)
    mean.add(vector(9, 9), PruningPlan({"g": torch.tensor([2, 3])}), weight=3)
    assert mean.result()["w"].tolist() == [2.0, 2.0, 7.0, 7.0]


def test_tensors_cut_both_ways_recover_by_row_and_column() -> None:
    groups = {"r": ChannelGroup("r", 2, ("w",)), "c": ChannelGroup("c", 3, ())}
    layout = ChannelLayout(groups, {"w": TensorSpec((2, 3), torch.float32, True, 0, (Axis(0, "r"), Axis(1, "c")))})
    mean = RecoveringMean({"w": torch.zeros(2, 3)}, layout, "holders")
    mean.add({"w": torch.tensor([[1.0, 2.0]])}, PruningPlan({"r": torch.tensor([1]), "c": torch.tensor([0, 2])}), 1)
    mean.add({"w": torch.full((2, 3), 4.0)}, DENSE, 1)
    assert mean.result()["w"].tolist() == [[4.0, 4.0, 4.0], [2.5, 4.0, 3.0]]


@pytest.mark.parametrize("recovery", ["global", "zero", "holders"])
def test_full_uploads_give_the_plain_weighted_mean_bit_for_bit(recovery: Recovery) -> None:
    model = build_backbone(ModelArgs(model="resnet10", width=4), 10, seed=1)
    layout = trace_layout(model, example_image(16), "internal")
    uploads = [build_backbone(ModelArgs(model="resnet10", width=4), 10, seed).state_dict() for seed in (2, 3, 4)]
    counts = [25, 153, 47]
    mean = RecoveringMean(model.state_dict(), layout, recovery)
    for upload, count in zip(uploads, counts, strict=True):
        mean.add(upload, DENSE, count)
    for name, tensor in mean.result().items():
        if tensor.is_floating_point():
            total = sum((u[name].double() * n for u, n in zip(uploads, counts, strict=True)), torch.zeros(()).double())
            assert torch.equal(tensor, (total / sum(counts)).float())


def test_untrained_slim_uploads_give_the_previous_model_back_exactly() -> None:
    model = build_backbone(ModelArgs(model="resnet10", width=8), 10, seed=1)
    layout = trace_layout(model, example_image(16), "grouped")
    weights = model.state_dict()
    mean = RecoveringMean(weights, layout)
    for ratio, count in ((0.2, 179), (0.5, 25), (0.8, 47)):
        plan = plan_by_importance(layout, weights, solve_widths(layout, ratio, "channels"))
        mean.add(slim_tensors(weights, layout, plan), plan, count)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in mean.result().items())


def test_integer_buffers_keep_dtype_and_take_the_largest() -> None:
    layout = ChannelLayout({}, {"n": TensorSpec((), torch.int64, False, 0)})
    mean = RecoveringMean({"n": torch.tensor(3)}, layout)
    for counter in (5, 9, 7):
        mean.add({"n": torch.tensor(counter)}, DENSE, 10)
    assert mean.result()["n"].dtype == torch.int64
    assert int(mean.result()["n"]) == 9


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool])
def test_buffers_of_whole_numbers_are_recovered_by_channel(dtype: torch.dtype) -> None:
    layout = ChannelLayout(dict(VECTOR.groups), {"n": TensorSpec((4,), dtype, False, 0, (Axis(0, "g"),))})
    mean = RecoveringMean({"n": torch.tensor([-5, 0, -3, 1]).to(dtype)}, layout)
    mean.add({"n": torch.tensor([-2, 0]).to(dtype)}, FIRST_TWO, 1)
    mean.add({"n": torch.tensor([-4, 1]).to(dtype)}, FIRST_TWO, 1)
    expected = torch.tensor([-2, 1, -3, 1]).to(dtype)
    assert torch.equal(mean.result()["n"], expected)


def test_buffers_of_whole_numbers_that_nobody_sends_stay() -> None:
    layout = ChannelLayout({}, {"n": TensorSpec((2,), torch.int64, False, 0)})
    means = [RecoveringMean({"n": torch.tensor([-5, 3])}, layout) for _ in range(2)]
    for mean in means:
        mean.add({}, PruningPlan({}, frozenset({"n"})), 1)
    means[0].merge(means[1].partial())
    assert means[0].result()["n"].tolist() == [-5, 3]


def test_unsliced_tensors_are_averaged_whole() -> None:
    mean = RecoveringMean(vector(0, 0, 0, 0), VECTOR)
    mean.add(vector(4, 4, 4, 4), FIRST_TWO, 1, unsliced={"w"})
    mean.add(vector(0, 8), FIRST_TWO, 1)
    assert mean.result()["w"].tolist() == [2.0, 6.0, 2.0, 2.0]


@pytest.mark.parametrize("bad", [vector(1, 2, 3), {"v": torch.zeros(2)}, {**vector(1, 2), "v": torch.zeros(1)}])
def test_uploads_that_do_not_fit_change_nothing(bad: dict[str, Tensor]) -> None:
    mean = RecoveringMean(vector(1, 2, 3, 4), VECTOR)
    mean.add(vector(5, 6, 7, 8), DENSE, 1)
    with pytest.raises(ProtocolError):
        mean.add(bad, FIRST_TWO, 1)
    assert mean.result()["w"].tolist() == [5.0, 6.0, 7.0, 8.0]


def test_a_round_without_answers_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="no client answered"):
        RecoveringMean(vector(1, 2, 3, 4), VECTOR).result()


@pytest.mark.parametrize("recovery", ["global", "zero", "holders"])
@pytest.mark.parametrize("waits", ["all", "two and three", "the last"])
@pytest.mark.parametrize("threads", [1, 3])
def test_what_waits_together_comes_to_the_same_bit_for_bit(
    recovery: Recovery, waits: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_backbone(ModelArgs(model="resnet10", width=8), 10, seed=1)
    layout = trace_layout(model, example_image(16), "grouped")
    weights = model.state_dict()
    one_by_one, together = (RecoveringMean(weights, layout, recovery) for _ in range(2))
    uploads = []
    for seed, ratio in enumerate((0.0, 0.3, 0.6, 0.8, 0.1), start=2):
        trained = build_backbone(ModelArgs(model="resnet10", width=8), 10, seed).state_dict()
        widths = solve_widths(layout, ratio, "channels")
        plan = plan_by_importance(layout, trained, widths) if widths else DENSE
        uploads.append((slim_tensors(trained, layout, plan), plan, 17 * seed))
        one_by_one.add(*uploads[-1])
    expected = one_by_one.result()
    monkeypatch.setattr(running_sum, "_BLOCK_ENTRIES", 1000)  # so that a tensor is many blocks
    monkeypatch.setattr(recovering, "_LARGE", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        batches = {"all": [5], "two and three": [2, 3], "the last": [1, 1, 1, 1, 1]}[waits]
        together.hold()
        for size in batches:
            for upload in uploads[:size]:
                together.add(*upload)
            del uploads[:size]
            if uploads:
                together.fold()
        found = together.result()
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_one_that_does_not_fit_is_found_before_it_waits() -> None:
    mean = RecoveringMean(vector(1, 2, 3, 4), VECTOR)
    mean.hold()
    mean.add(vector(5, 6, 7, 8), DENSE, 1)
    with pytest.raises(ProtocolError):
        mean.add(vector(1, 2, 3), FIRST_TWO, 1)
    assert mean.result()["w"].tolist() == [5.0, 6.0, 7.0, 8.0]


def test_an_error_in_one_thread_is_raised() -> None:
    def fail() -> None:
        raise ProtocolError("this piece")

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ProtocolError, match="this piece"):
            do_side_by_side([fail, *[lambda: None] * 20])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
