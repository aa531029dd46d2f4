"""The example's vision transformer, small enough for tests: a user's file, whose attention splits heads by a view."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import cast

from torch import nn

FILE = Path(__file__).parents[2] / "examples" / "adapters" / "vit.py"
NETWORK = (f"model_args.model={FILE}:ViT", "model_args.arguments={width: 16, depth: 2}", "model_args.width=null")
"""Settings that name it."""


def small_vit() -> nn.Module:
    """The same network, as an object: for ten classes."""
    spec = spec_from_file_location("vit_of_the_example", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast("nn.Module", module.ViT(10, width=16, depth=2))
