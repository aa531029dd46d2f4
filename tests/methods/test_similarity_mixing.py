"""Mixing by similarity (FDSE Eq. 9), by hand."""

from __future__ import annotations

import torch

from fedml_dapper.methods.catalogue.fdse import mix_by_similarity, similarity_weights

VECTORS = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)


def test_weights_and_mixture_by_hand() -> None:
    expected = torch.tensor([[0.880797, 0.119203], [0.119203, 0.880797]], dtype=torch.float64)
    torch.testing.assert_close(similarity_weights(VECTORS, 0.5), expected, rtol=0, atol=1e-6)
    mixed = torch.tensor([[0.880797, 0.238406], [0.119203, 1.761594]], dtype=torch.float64)
    torch.testing.assert_close(mix_by_similarity(VECTORS, 0.5), mixed, rtol=0, atol=1e-6)


def test_temperature_goes_from_identity_to_mean() -> None:
    torch.testing.assert_close(mix_by_similarity(VECTORS, 1e-3), VECTORS)
    torch.testing.assert_close(mix_by_similarity(VECTORS, 1e9), VECTORS.mean(dim=0).expand(2, 2))


def test_every_row_sums_to_one_and_zero_vectors_are_like_nobody() -> None:
    vectors = torch.cat([torch.randn(4, 9, dtype=torch.float64), torch.zeros(1, 9, dtype=torch.float64)])
    weights = similarity_weights(vectors, 0.5)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(weights[4], torch.full((5,), 0.2, dtype=torch.float64))
