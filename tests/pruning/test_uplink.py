from __future__ import annotations

from math import inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy import float32
from numpy.typing import NDArray

from fedml_dapper.config import Uplink
from fedml_dapper.errors import ProtocolError
from fedml_dapper.pruning import TensorSpec
from fedml_dapper.pruning.uplink import is_reduced, reduce, restore, rounded, travelling_bytes

VALUES = arrays(float32, (3, 4), elements=st.floats(-60000, 60000, width=32))


@settings(max_examples=200, deadline=None)
@given(values=VALUES, uplink=st.sampled_from(["bf16", "fp16", "int8"]))
def test_errors_are_bounded_and_rounding_twice_changes_nothing(values: NDArray[float32], uplink: Uplink) -> None:
    tensor = torch.from_numpy(values)
    received = rounded(tensor, uplink)
    errors, tiny = (received - tensor).abs().double(), 2.0**-125
    bound = {
        "bf16": tensor.abs().double() * 2**-8 + tiny,
        "fp16": tensor.abs().double() * 2**-11 + 2**-25,
        "int8": (tensor.abs().amax(dim=1, keepdim=True).double() / 127 + tiny).expand_as(errors),
    }[uplink]
    assert bool((errors <= bound).all())
    assert torch.equal(received, rounded(received, uplink))


def test_int8_steps_by_hand() -> None:
    codes, exponents = reduce(torch.tensor([[127.0, -3.4], [127.5, 3.0], [0.0, 0.0]]), "int8")
    assert exponents is not None
    assert codes.tolist() == [[127, -3], [64, 2], [0, 0]]  # 63.75 and 1.5 steps of 2: halves go to the even one
    assert exponents.tolist()[:2] == [0, 1]
    assert restore(codes, exponents).tolist() == [[127.0, -3.0], [128.0, 4.0], [0.0, 0.0]]


@pytest.mark.parametrize("uplink", ["fp16", "bf16", "int8"])
@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_what_is_not_finite_arrives_so_and_costs_no_other_filter_anything(uplink: Uplink, value: float) -> None:
    sound = torch.tensor([[3.0, -4.7], [0.0, 0.0], [1e-3, 5e4]])
    received = rounded(torch.cat([sound, torch.tensor([[1.0, value]])]), uplink)
    assert torch.equal(received[:3], rounded(sound, uplink))
    assert not bool(received[3].isfinite().all())
    assert torch.equal(received.isfinite(), rounded(received, uplink).isfinite())


@pytest.mark.parametrize(("uplink", "holds"), [("fp16", 65504.0), ("bf16", 3.38e38), ("int8", 3.37e38)])
def test_a_format_holds_numbers_up_to_its_largest_and_others_arrive_as_not_finite(uplink: Uplink, holds: float) -> None:
    received = rounded(torch.tensor([[holds, -1.0]]), uplink)
    assert bool(received.isfinite().all())
    assert float(received[0, 0]) == pytest.approx(holds, rel=0.01)
    beyond = min(1.01 * holds, torch.finfo(torch.float32).max)
    assert not bool(rounded(torch.tensor([[beyond, -beyond]]), uplink).isfinite().any())


@pytest.mark.parametrize("exponent", [-127, 122, 126])
def test_exponents_beyond_float32_are_refused(exponent: int) -> None:
    with pytest.raises(ProtocolError, match="exponents"):
        restore(torch.ones(1, 1, dtype=torch.int8), torch.tensor([exponent], dtype=torch.int8))


def test_vectors_and_counters_travel_as_they_are() -> None:
    filters, vector, counter = (
        TensorSpec(shape, dtype, True, 0)
        for shape, dtype in (((8, 4, 3, 3), torch.float32), ((8,), torch.float32), ((2, 2), torch.int64))
    )
    assert [is_reduced(spec, "int8") for spec in (filters, vector, counter)] == [True, False, False]
    assert not is_reduced(filters, "fp32")
    assert travelling_bytes((5, 4, 3, 3), filters, "int8") == 5 * 36 + 5
    assert travelling_bytes((5, 4, 3, 3), filters, "bf16") == 2 * 5 * 36
    assert travelling_bytes((8,), vector, "int8") == 32
