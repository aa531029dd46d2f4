"""FedEcover's coverage and steps, by hand; what it shares is in test_sub_models.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import Settings
from fedml_dapper.federation import Server, build_experiment
from fedml_dapper.methods import MergingAggregation, RecoverAndAverage, TrainingMetrics, Upload
from fedml_dapper.methods.catalogue.fedecover import FedEcover, count, least
from fedml_dapper.pruning import PruningPlan
from fedml_dapper.randomness.seeding import Stream, torch_generator

SettingsFactory = Callable[..., Settings]
FEW = (
    "method=fedecover", "client_num_in_total=5", "client_num_per_round=5", "client_share=0.05", "scope=grouped",
    "ratio_of=channels",
)  # fmt: skip
LEVELS = ("ratios=[0.25, 0.5, 0.625, 0.75, 0.875]", "assignment=index_mod", "comm_round=99")
GROUP = "stages.0.0.conv1"
"""Eight channels, of which the five clients keep 6, 4, 3, 2 and 1."""


def started(settings: Settings) -> tuple[Server, FedEcover]:
    experiment = build_experiment(settings)
    assert isinstance(experiment.method, FedEcover)
    return Server(experiment), experiment.method


def answer(server: Server, client_id: int, moved: float = 0.0) -> Upload:
    """The model as it was sent, with ``moved`` added to everything but counters."""
    sent = server.downlink(client_id)
    weights = {name: t + moved if t.is_floating_point() else t for name, t in sent.weights.items()}
    samples = server.state.profiles[client_id].num_samples
    return Upload(sent.round, client_id, samples, weights, TrainingMetrics(1.0, 1, 0.0), sent.plan)


def untrained_round(server: Server, silent: Sequence[int] = ()) -> dict[int, set[int]]:
    """The channels of GROUP that each client was sent."""
    hands = {}
    for client_id in server.round_clients():
        upload = answer(server, client_id)
        hands[client_id] = set(upload.plan.kept[GROUP].tolist())
        if client_id not in silent:
            server.receive(upload)
    server.close_round()
    return hands


def test_least_trained_channels_come_first_and_equals_are_drawn() -> None:
    trained = torch.tensor([1, 0, 2, 1, 0, 1])
    hands = {tuple(least(trained, 3, torch_generator(seed, Stream.METHOD)).tolist()) for seed in range(40)}
    assert hands == {(0, 1, 4), (1, 3, 4), (1, 4, 5)}
    counts = {"a": trained.clone(), "b": torch.tensor([4, 4])}
    count(counts, PruningPlan({"a": torch.tensor([1, 4])}))
    assert [each.tolist() for each in counts.values()] == [[1, 1, 2, 1, 1, 1], [5, 5]]  # b is held whole


def test_hands_are_disjoint_until_the_pool_is_refilled(tiny_settings: SettingsFactory) -> None:
    server, method = started(tiny_settings(*FEW, *LEVELS))
    seen = []
    for completed in range(4):
        hands = untrained_round(server)
        assert [len(hands[client_id]) for client_id in range(5)] == [6, 4, 3, 2, 1]
        dealt: list[int] = []
        if completed % 2 == 0:  # 16 channels a round: twice all eight
            assert hands[0] | hands[1] == set(range(8))  # 6, then the two that are left and two of a new pool
            assert len(hands[0] & hands[1]) == 2
            left = set(range(8)) - (hands[0] & hands[1])
            assert (hands[2], hands[3], hands[4]) != (left, left, left)
            assert hands[2] | hands[3] | hands[4] == left
        for hand in hands.values():
            dealt += hand
        assert sorted(dealt) == sorted([*range(8), *range(8)])
        seen.append(hands[0])
    assert len({tuple(sorted(hand)) for hand in seen}) > 1
    for counts in method.trained(server.state).values():
        assert counts.max() - counts.min() <= 1


def test_partial_rounds_cover_as_well(tiny_settings: SettingsFactory) -> None:
    server, method = started(tiny_settings(*FEW, *LEVELS, "client_num_per_round=2"))
    total = 0
    for _ in range(9):
        hands = untrained_round(server)
        assert len(hands) == 2
        total += sum(map(len, hands.values()))
        counts = method.trained(server.state)[GROUP]
        assert counts.sum() == total
        assert counts.max() - counts.min() <= 1


def test_what_did_not_arrive_is_dealt_next(tiny_settings: SettingsFactory) -> None:
    server, method = started(tiny_settings(*FEW, "ratios=[0.75]", "comm_round=99"))
    hands = untrained_round(server, silent=(1, 2))  # 2 channels each; the fifth client gets two of a new pool
    missed = hands[1] | hands[2]
    assert len(missed) == 4
    trained = method.trained(server.state)[GROUP]
    assert set((trained == 0).nonzero().flatten().tolist()) == missed - hands[4]
    again = untrained_round(server)
    assert (missed - hands[4]) <= again[0] | again[1]


def test_a_level_s_model_is_the_first_that_would_be_dealt(tiny_settings: SettingsFactory) -> None:
    server, method = started(tiny_settings(*FEW, *LEVELS))
    untrained_round(server, silent=(0, 1, 2))
    assert server.state.clients == ()
    trained = method.trained(server.state)[GROUP]
    plan = method.plan(server.state, 3)
    assert trained[plan.kept[GROUP]].max() == 0
    assert method.level_model(server.state, 4).get_parameter(f"{GROUP}.weight").shape[0] == 2


@pytest.mark.parametrize(
    ("round_", "expected"), [(1, 1.0), (10, 1.0), (11, 0.9), (21, 0.81), (200, 0.9**19), (201, 0.9**20), (999, 0.9**20)]
)
def test_step_sizes_by_hand(tiny_settings: SettingsFactory, round_: int, expected: float) -> None:
    _, method = started(tiny_settings(*FEW))
    assert method.step_size(round_) == pytest.approx(expected)


def test_the_server_goes_part_of_the_way_with_parameters_alone(tiny_settings: SettingsFactory) -> None:
    params = "dapper_args.params.fedecover={gamma: 0.5, decay_interval: 1}"
    server, method = started(tiny_settings(*FEW, *LEVELS, "aggregation_weights=uniform", params))
    untrained_round(server)
    before, plans = {name: tensor.clone() for name, tensor in server.state.weights.items()}, {}
    for client_id in server.round_clients():
        upload = answer(server, client_id, moved=float(client_id))
        plans[client_id] = upload.plan.kept[GROUP]
        server.receive(upload)
    server.close_round()

    def moved(name: str) -> Tensor:
        return server.state.weights[name] - before[name]

    holders: list[list[float]] = [[float(i) for i in range(5) if c in plans[i].tolist()] for c in range(8)]
    means = torch.tensor([sum(own) / len(own) for own in holders])
    torch.testing.assert_close(moved(f"{GROUP.replace('conv', 'bn')}.bias"), 0.5 * means)
    torch.testing.assert_close(moved("predictor.bias"), torch.full((10,), 0.5 * 2.0))
    torch.testing.assert_close(moved(f"{GROUP.replace('conv', 'bn')}.running_mean"), means)
    assert method.step_size(2) == 0.5


def test_plans_follow_from_the_seed(tiny_settings: SettingsFactory) -> None:
    plans = []
    for seed in (1, 1, 2):
        server, method = started(tiny_settings(*FEW, *LEVELS, f"random_seed={seed}"))
        plans.append(method.plan(replace(server.state, clients=(0, 1, 2, 3, 4)), 4))
    assert plans[0].equals(plans[1])
    assert not plans[0].equals(plans[2])


def test_sums_of_uploads_count_as_the_uploads_do(tiny_settings: SettingsFactory) -> None:
    trained = []
    for is_summed in (False, True):
        server, method = started(tiny_settings(*FEW, *LEVELS))
        server.round_clients()
        answers = [answer(server, client_id) for client_id in range(5)]
        aggregation = method.aggregation(server.state)
        sums = RecoverAndAverage(server.state, method.problem, "holders")
        assert isinstance(aggregation, MergingAggregation)
        for upload in answers:
            (sums if is_summed else aggregation).add(upload)
        if is_summed:
            aggregation.merge(sums.partial(), [upload.plan for upload in answers])
        aggregation.close()
        trained.append(method.trained(server.state))
    one_by_one, summed = trained
    assert sum(map(int, one_by_one[GROUP])) == 6 + 4 + 3 + 2 + 1
    assert all(counts.equal(summed[group]) for group, counts in one_by_one.items())
