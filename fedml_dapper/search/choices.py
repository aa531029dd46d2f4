"""Options of a search, in a module that the command line can import without loading the rest."""

from __future__ import annotations

from typing import Literal

SamplerName = Literal["gp", "tpe"]
