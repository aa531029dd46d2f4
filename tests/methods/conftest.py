"""One small experiment for all methods' tests, built once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.federation import Experiment, build_experiment

DIGITS = Path(__file__).parents[2] / "config" / "digits_offline.yaml"


@pytest.fixture(autouse=True, scope="module")
def _few_test_images(few_test_images: None) -> None:
    """What is compared here is run against run."""


@pytest.fixture
def tiny_settings(tiny_settings: Callable[..., Settings]) -> Callable[..., Settings]:
    """As everywhere, with one client of each level."""
    small = ("client_num_in_total=5", "client_num_per_round=5", "client_share=0.05", "frequency_of_the_test=2")
    return partial(tiny_settings, *small)


@pytest.fixture(scope="session")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """FedAvg on four clients, scored in round 9 only; others are built on its problem. Nothing in it may change."""
    small = [
        "method=fedavg", "width=8", "client_num_in_total=4", "client_num_per_round=4", "client_share=0.05", "epochs=1",
        "batch_size=16", "comm_round=9", "workers=1", "frequency_of_the_test=9",
        f"output_dir={tmp_path_factory.mktemp('runs')}",
    ]  # fmt: skip
    return build_experiment(load_settings([DIGITS], small))


@pytest.fixture(scope="session")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """As ``fedavg``, with LeNet5 and for 10 rounds."""
    small = [
        "method=fedavg", "model=lenet5", "width=6", "client_num_in_total=4", "client_num_per_round=4",
        "client_share=0.05", "epochs=1", "batch_size=16", "comm_round=10", "workers=1", "frequency_of_the_test=10",
        f"output_dir={tmp_path_factory.mktemp('runs')}",
    ]  # fmt: skip
    return build_experiment(load_settings([DIGITS], small))
