from __future__ import annotations

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
def test_what_cannot_be_held_is_refused(uplink: Uplink) -> None:
    with pytest.raises(ProtocolError, match=r"^weights are not finite \(NaN or infinity\)$"):
        reduce(torch.tensor([[1.0, float("nan")]]), uplink)
    if uplink == "fp16":
        with pytest.raises(ProtocolError, match="7e\\+04, which fp16 cannot hold"):
            reduce(torch.tensor([[70000.0]]), uplink)


@pytest.mark.parametrize("exponent", [-127, 122])
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
