"""Options of a bench, in a module that the command line can import without loading the rest."""

from __future__ import annotations

from typing import Literal

ProfileName = Literal["paper", "small"]
Device = Literal["cpu", "cuda"]
