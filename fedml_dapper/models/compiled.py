"""Networks that ``torch.compile`` has compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_MARK = "_torchdynamo_orig_callable"
"""Attribute that ``torch.compile`` sets on a function."""


def is_compiled(network: nn.Module) -> bool:
    """Return whether ``network`` or a layer of it is compiled, or calls a compiled function.

    Such a function may be its own, or stand beside it in its file.
    """
    layers = list(network.modules())
    if any(layer._compiled_call_impl is not None or type(layer).__name__ == "OptimizedModule" for layer in layers):
        return True
    held = (value for layer in layers for value in vars(layer).values())
    named = (function for kind in {type(layer) for layer in layers} for function in _functions(kind))
    return any(hasattr(each, _MARK) for each in (*held, *named))


@contextmanager
def uncompiled(network: nn.Module) -> Iterator[None]:
    """Run ``network`` in the block as it is written, even if it is compiled.

    A compiler would take minutes for a pass that happens once or is watched.
    """
    if not is_compiled(network):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def _functions(kind: type[nn.Module]) -> Iterator[object]:
    """Yield methods of a class that is not torch's, and what they may call of their file."""
    for base in kind.__mro__:
        for method in vars(base).values() if not base.__module__.startswith("torch.") else ():
            yield method
            code = getattr(method, "__code__", None)
            beside = getattr(method, "__globals__", {})
            yield from (beside[name] for name in (() if code is None else code.co_names) if name in beside)
