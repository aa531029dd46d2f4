"""Uploads in fewer bits: filters and matrices as bf16, fp16 or int8; vectors and counters travel unchanged.

Weights are rounded on the client, so that all runners see the same numbers whether bytes travel or not. Rounding twice
changes nothing more. Relative to the weight itself bf16 is off by at most 2^-8 and fp16 by 2^-11 (for weights below
6e-5: by 2^-25 in all). int8 has one power of two per filter: it is off by at most 1/127 of the filter's largest weight.

What is not finite arrives so in every format, for the server to judge: fp16 and bf16 hold NaN and infinity, and int8
marks a filter with such a weight. So it goes with what a format cannot hold: weights beyond 65504 in fp16, and beyond
3.37e38 in bf16 and int8.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan, prod

import torch
from torch import Tensor

from fedml_dapper.config import Uplink
from fedml_dapper.errors import ProtocolError
from fedml_dapper.pruning.layout import TensorSpec

CODES: dict[Uplink, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}
_LARGEST_CODE = 127
_SMALLEST_EXPONENT = -126
"""Below this exponent a power of two is no normal float32; above ``_LARGEST_EXPONENT`` 127 steps would not be finite.
"""
_LARGEST_EXPONENT = 121
_LARGEST_IN_INT8 = 127 * 2.0**_LARGEST_EXPONENT
_NOT_FINITE = 127
"""In place of the exponent of a filter with a weight that is not finite, or beyond ``_LARGEST_IN_INT8``."""


def is_reduced(spec: TensorSpec, uplink: Uplink) -> bool:
    """Whether a tensor travels up in fewer bits."""
    return uplink != "fp32" and spec.dtype == torch.float32 and len(spec.shape) > 1


def reduce(tensor: Tensor, uplink: Uplink) -> tuple[Tensor, Tensor | None]:
    """Encode ``tensor`` in fewer bits.

    Returns:
        The codes, in the shape of ``tensor``, and for int8 the exponent of each filter's step, int8 of shape (rows,).
    """
    if uplink != "int8":
        return tensor.to(CODES[uplink]), None
    largest = tensor.flatten(start_dim=1).abs().amax(dim=1)
    is_held = largest <= _LARGEST_IN_INT8  # no NaN is
    if not bool(is_held.all()):
        largest = torch.where(is_held, largest, 0)
        tensor = torch.where(_by_row(is_held, tensor), tensor, 0)
    mantissa, exponent = torch.frexp(largest / _LARGEST_CODE)  # largest <= 127 * 2^exponent, and no smaller power does
    exponent = (exponent - (mantissa == 0.5).int()).clamp_(min=_SMALLEST_EXPONENT)
    codes = (tensor / _steps(exponent, tensor)).round_().clamp_(-_LARGEST_CODE, _LARGEST_CODE)
    return codes.to(torch.int8), torch.where(is_held, exponent, _NOT_FINITE).to(torch.int8)


def restore(codes: Tensor, exponents: Tensor | None) -> Tensor:
    """Decode ``codes`` to float32; filters that are marked as not finite become NaN.

    Raises:
        ProtocolError: An exponent is none that :func:`reduce` makes.
    """
    values = codes.to(torch.float32)
    if exponents is None:
        return values
    is_marked = exponents == _NOT_FINITE
    others = exponents[~is_marked]
    if others.numel():
        lowest, highest = (int(value) for value in others.aminmax())
        if lowest < _SMALLEST_EXPONENT or highest > _LARGEST_EXPONENT:
            raise ProtocolError(f"int8 exponents are {lowest} to {highest}")
    return (values * _steps(exponents, values)).masked_fill_(_by_row(is_marked, values), nan)


def rounded(tensor: Tensor, uplink: Uplink) -> Tensor:
    """Return ``tensor`` as the server will see it."""
    return restore(*reduce(tensor, uplink))


def travelling_bytes(shape: Sequence[int], spec: TensorSpec, uplink: Uplink) -> int:
    """Count the bytes on the way up of a tensor of ``shape``, to which ``spec`` was cut."""
    if not is_reduced(spec, uplink):
        return prod(shape) * spec.dtype.itemsize
    exponents = shape[0] if uplink == "int8" else 0
    return prod(shape) * CODES[uplink].itemsize + exponents


def _steps(exponents: Tensor, like: Tensor) -> Tensor:
    return _by_row(torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents.to(torch.int32)), like)


def _by_row(values: Tensor, like: Tensor) -> Tensor:
    """Return one value per filter in a shape that goes with ``like``."""
    return values.view(-1, *[1] * (like.dim() - 1))
