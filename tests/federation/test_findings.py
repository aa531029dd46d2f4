"""Findings on values of an upload."""

from __future__ import annotations

import pytest
import torch

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.round.findings import Finding, all_finite, raise_first


def test_the_first_tensor_that_breaks_a_rule_is_named() -> None:
    fine = Finding(torch.zeros(3, dtype=torch.bool), {"a": 1, "b": 2}, "counts")
    broken = Finding(torch.tensor([False, False, False, True, True]), {"c": 2, "d": 2, "e": 1}, "is negative")
    raise_first([])
    raise_first([fine])
    with pytest.raises(ProtocolError, match=r"^upload's `d` is negative$"):
        raise_first([fine, broken])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_number_makes_all_of_them_not_finite(bad: float) -> None:
    tensors = [torch.full((4,), 3e38), torch.tensor([2**62]), torch.zeros(0)]
    assert all_finite(tensors)
    assert not all_finite([*tensors, torch.tensor([0.0, bad])])
    assert all_finite([])
