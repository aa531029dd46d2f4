"""Shared fixtures: small experiments on the embedded suite, and global torch state put back after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fedml_dapper.config import Settings, load_settings

QUICKSTART = Path(__file__).parents[1] / "config" / "quickstart.yaml"

SettingsFactory = Callable[..., Settings]


@pytest.fixture(autouse=True)
def _torch_state() -> Iterator[None]:
    """One thread, so that figures repeat bit for bit, and a fresh global generator for every test."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def tiny_settings(tmp_path: Path) -> SettingsFactory:
    """Settings of a run of seconds: ResNet10 of width 8, ten clients, two rounds; give overrides as key=value."""

    def build(*overrides: str) -> Settings:
        small = ["width=8", "comm_round=2", "epochs=2", "client_share=0.08", "batch_size=16", f"output_dir={tmp_path}"]
        return load_settings([QUICKSTART], [*small, *overrides])

    return build
