"""Small runs for the tests of what a round does, whatever the pictures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.federation import build_experiment

from .silos_in_process import SECURE, Federation
from .test_privacy import FREE_OF_NORMS
from .undisturbed import UndisturbedRuns, undisturbed_in


@pytest.fixture(autouse=True, scope="module")
def _few_test_images(few_test_images: None) -> None:
    """What is compared here is run against run."""


@pytest.fixture
def tiny_settings(tiny_settings: Callable[..., Settings]) -> Callable[..., Settings]:
    """As everywhere, with a client a level, of two batches each."""
    return partial(tiny_settings, "client_share=0.04", "client_num_in_total=5", "client_num_per_round=5")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> UndisturbedRuns:
    """``undisturbed("fedavg", ...)``: its run, trained once for all of pytest's processes."""
    own = tmp_path_factory.getbasetemp()
    folder = (own if worker_id == "master" else own.parent) / "undisturbed"
    folder.mkdir(exist_ok=True)
    return partial(undisturbed_in, folder)


@pytest.fixture
def silos(tiny_settings: Callable[..., Settings], tmp_path: Path) -> Callable[..., Federation]:
    """``silos("method=fedavg", ...)``: five that sum under masks, over DAPPER_GRPC but for the network."""

    def build(*overrides: str) -> Federation:
        content = yaml.safe_load(tiny_settings(*FREE_OF_NORMS, SECURE, *overrides).as_yaml())
        content["common_args"]["training_type"] = "cross_silo"
        address = {"server_address": "localhost:1", "certificates": str(tmp_path)}
        content["comm_args"] = {"backend": "DAPPER_GRPC", "dapper_grpc": address}
        file = tmp_path / "silos.yaml"
        file.write_text(yaml.safe_dump(content))
        return Federation(build_experiment(load_settings([file])))

    return build
