"""Provenance of a result: the code's commit, and the machine."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from pathlib import Path

import torch

_ROOT = Path(__file__).parents[2]


@cache
def commit() -> str | None:
    """Return the git commit of this package, with ``-dirty`` where files differ from it; None outside of a clone."""
    if not (_ROOT / ".git").exists():  # installed: git would find a user's repository further up
        return None
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() or None


def machine() -> str:
    """Return processor, threads and torch version in one line."""
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    processor = names[0] if names else platform.processor()
    return f"{processor} ({len(names)} cores), {torch.get_num_threads()} threads, torch {torch.__version__}"
