"""FedCMD's election of a layer (Eq. 5-6), by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedml_dapper.methods.parts.activations import Activation
from fedml_dapper.methods.parts.layer_election import LayerMetric, elected, favourite, shift_changes, winner


def gaussian(mean: float, deviation: float) -> Tensor:
    return torch.tensor([[mean], [deviation]], dtype=torch.float64)


def test_scores_by_hand() -> None:
    outputs = [gaussian(0.10, 0.15), gaussian(0.20, 0.20), gaussian(0.35, 0.24), gaussian(0.45, 0.10)]
    scores = shift_changes(gaussian(0.5, 0.3), gaussian(0.4, 0.25), outputs)
    assert scores == pytest.approx([0.000900, 0.000492, 0.062523], abs=1e-6)
    assert favourite(scores) == (1, False)
    means_only = [gaussian(float(output[0]), 0.0) for output in outputs]
    without_deviations = shift_changes(gaussian(0.5, 0.0), gaussian(0.4, 0.0), means_only)
    assert without_deviations == pytest.approx([0, 0, 0.1])


def scaled(values: Tensor) -> Tensor:
    values = values.double().flatten()
    values = (values - values.min()) / (values.max() - values.min())
    return torch.stack([values.mean(), values.std(correction=0)])[:, None]


def test_metric_takes_each_layers_output_from_the_next_ones_input_over_all_batches() -> None:
    images, labels = torch.randn(6, 3, 4, 4), torch.tensor([0, 1, 2, 2, 9, 4])
    first, second, logits = torch.randn(6, 5), torch.rand(6, 4), torch.randn(6, 10)
    metric = LayerMetric(["fc1", "fc2"], "cpu")
    for part in (slice(0, 4), slice(4, 6)):
        seen = {"fc1": Activation(first[part], -second[part]), "fc2": Activation(second[part], logits[part])}
        metric.add(images[part], labels[part], seen)
    expected = shift_changes(scaled(images), scaled(labels), [scaled(first), scaled(second), scaled(logits)])
    assert metric.scores() == pytest.approx(expected, rel=1e-9)


def test_a_client_of_one_class_can_vote() -> None:
    metric = LayerMetric(["fc"], "cpu")
    metric.add(torch.rand(3, 3, 2, 2), torch.full((3,), 7), {"fc": Activation(torch.rand(3, 5), torch.zeros(3, 10))})
    assert all(0 <= score < 2 for score in metric.scores())


def test_ties_go_to_the_lower_layer_and_are_told() -> None:
    assert favourite([0.3, 0.1, 0.1]) == (1, True)
    assert favourite([0.1, 0.3, 0.3]) == (0, False)
    assert winner([2, 5, 5]) == 1


@pytest.mark.parametrize(
    ("rounds", "layer"),
    [
        ([[1, 3], [1, 3], [5, 0]], 1),  # rounds won count before votes
        ([[3, 1], [0, 4]], 1),  # 3 to 5 votes
        ([[4, 0], [1, 3]], 0),  # 5 to 3
        ([[3, 1], [1, 3]], 0),  # alike in both
        ([[0, 2, 2]], 1),
    ],
)
def test_election_by_hand(rounds: list[list[int]], layer: int) -> None:
    assert elected(rounds) == layer
