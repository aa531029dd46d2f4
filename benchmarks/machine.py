"""What the figures were measured on."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def describe() -> str:
    """Processor, threads and torch version in one line."""
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    processor = names[0] if names else platform.processor()
    return f"{processor} ({len(names)} cores), {torch.get_num_threads()} threads, torch {torch.__version__}"
