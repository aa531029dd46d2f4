"""Shared fixtures: small experiments on the embedded suite, and one global torch state for all tests."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.datasets.digits_offline import Rendered
from fedml_dapper.datasets.sources import Request, Splits

from .traced_once import traced_once

pytest_plugins = ["tests.rings.seconds", "tests.rings.once_more"]

DIGITS = Path(__file__).parents[1] / "config" / "digits_offline.yaml"

SettingsFactory = Callable[..., Settings]


torch.set_num_threads(1)  # once, for all: figures repeat bit for bit, and torch dislikes changes of it between steps


@pytest.fixture(autouse=True, scope="session")
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where runs note which code is the user's own, for this process and those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("state")
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def _torch_seed() -> None:
    """A fresh global generator for every test."""
    torch.manual_seed(0)


_READ_WHOLE = Rendered.read


@pytest.fixture
def all_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded suite as other processes have it, for tests that compare a run of one with a run in this process."""
    monkeypatch.setattr(Rendered, "read", _READ_WHOLE)


@pytest.fixture(scope="module")
def few_test_images() -> Iterator[None]:
    """A fifth of the embedded suite's test images, in this process: for tests that compare run with run, where most of
    the time went into testing."""
    read = Rendered.read

    def read_few(domain: Rendered, request: Request) -> Splits | None:
        whole = read(domain, request)
        return whole and whole._replace(test=whole.test.take(torch.arange(0, len(whole.test), 5)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rendered, "read", read_few)
        yield


@pytest.fixture(autouse=True, scope="module")
def networks_traced_once() -> Iterator[None]:
    """For tests of what is done with a network's channels; folders that test how these are found do without it."""
    with traced_once():
        yield


@pytest.fixture
def chance() -> random.Random:
    """For faults at random moments. A failure shows its seed, which the environment variable DAPPER_TEST_SEED takes
    back."""
    seed = int(os.environ.get("DAPPER_TEST_SEED", random.SystemRandom().randrange(10**9)))
    print(f"DAPPER_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def tiny_settings(tmp_path: Path) -> SettingsFactory:
    """Settings of a run of seconds: ResNet10 of width 8, ten clients, two rounds, in this process; give overrides as
    key=value, and as ``above`` a file to lay over the suite's."""

    def build(*overrides: str, above: Path | None = None) -> Settings:
        small = [
            "width=8", "image_size=16", "comm_round=2", "epochs=2", "client_share=0.08", "batch_size=16", "workers=1",
            f"output_dir={tmp_path}",
        ]  # fmt: skip
        return load_settings([DIGITS] if above is None else [DIGITS, above], [*small, *overrides])

    return build
