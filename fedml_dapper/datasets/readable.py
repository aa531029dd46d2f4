"""Tensors whose values can be read row by row: dense ones, on a device that keeps values."""

from __future__ import annotations

import torch
from torch import Tensor


def hindrance(tensor: Tensor) -> str:
    """Return in words why the values of ``tensor`` cannot be read row by row; empty where they can."""
    if tensor.is_meta:
        return "on the device meta, which keeps no values"
    if tensor.is_nested:
        return "nested"
    if tensor.layout != torch.strided:
        return "sparse"
    return "quantised" if tensor.is_quantized else ""


def say_unreadable(where: str, tensor: Tensor) -> str:
    """Return the one-line error on a tensor with a :func:`hindrance`, which ``where`` has."""
    return f"{where} has a tensor that is {hindrance(tensor)}; {_remedy(tensor)}"


def _remedy(tensor: Tensor) -> str:
    if tensor.is_meta:
        return "make it on the CPU, with its values"
    if tensor.is_nested:
        return "pad its parts to one shape, as `.to_padded_tensor(0)` does"
    return "make it dense by `.to_dense()`" if tensor.layout != torch.strided else "take `.dequantize()` of it"
