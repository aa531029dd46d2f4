"""What a bench can be asked for. Apart, so that the command line shows it without loading the rest."""

from __future__ import annotations

from typing import Literal

ProfileName = Literal["paper", "small"]
Device = Literal["cpu", "cuda"]
