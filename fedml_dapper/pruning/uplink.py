"""Uploads in fewer bits: filters and matrices as bf16, fp16 or int8; vectors and counters travel unchanged.

Weights are rounded on the client, so that all runners see the same numbers whether bytes travel or not. Rounding twice
changes nothing more. Relative to the weight itself bf16 is off by at most 2^-8 and fp16 by 2^-11 (for weights below
6e-5: by 2^-25 in all). int8 has one power of two per filter: it is off by at most 1/127 of the filter's largest weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

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


def is_reduced(spec: TensorSpec, uplink: Uplink) -> bool:
    """Whether a tensor travels up in fewer bits."""
    return uplink != "fp32" and spec.dtype == torch.float32 and len(spec.shape) > 1


def reduce(tensor: Tensor, uplink: Uplink) -> tuple[Tensor, Tensor | None]:
    """Encode ``tensor`` in fewer bits.

    Returns:
        The codes, in the shape of ``tensor``, and for int8 the exponent of each filter's step, int8 of shape (rows,).

    Raises:
        ProtocolError: Values are not finite, or too large for fp16.
    """
    if not bool(torch.isfinite(tensor).all()):
        raise ProtocolError("weights are not finite (NaN or infinity)")
    if uplink != "int8":
        codes = tensor.to(CODES[uplink])
        if not bool(torch.isfinite(codes).all()):
            raise ProtocolError(f"weights reach {float(tensor.abs().max()):.3g}, which {uplink} cannot hold")
        return codes, None
    largest = tensor.flatten(start_dim=1).abs().amax(dim=1)
    mantissa, exponent = torch.frexp(largest / _LARGEST_CODE)  # largest <= 127 * 2^exponent, and no smaller power does
    exponent = (exponent - (mantissa == 0.5).int()).clamp_(min=_SMALLEST_EXPONENT)
    codes = (tensor / _steps(exponent, tensor)).round_().clamp_(-_LARGEST_CODE, _LARGEST_CODE)
    return codes.to(torch.int8), exponent.to(torch.int8)


def restore(codes: Tensor, exponents: Tensor | None) -> Tensor:
    """Decode ``codes`` to float32.

    Raises:
        ProtocolError: An exponent is none that :func:`reduce` makes.
    """
    if exponents is not None and exponents.numel():
        lowest, highest = (int(value) for value in exponents.aminmax())
        if lowest < _SMALLEST_EXPONENT or highest > _LARGEST_EXPONENT:
            raise ProtocolError(f"int8 exponents are {lowest} to {highest}")
    values = codes.to(torch.float32)
    return values if exponents is None else values * _steps(exponents, values)


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
    steps = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents.to(torch.int32))
    return steps.view(-1, *[1] * (like.dim() - 1))
