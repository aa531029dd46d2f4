"""Server and silos that are told to stop, and what the others do then."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fedml_dapper.config import SecureGrpcConfig, Settings
from fedml_dapper.process.interruption import GOING_ON, INTERRUPTED

from ..processes import Silos
from ..slow_silo import AT_WORK, busy_program
from ..timeless_server import let_time_pass, timeless_program, wait_for_all_but
from .test_processes import federation

__all__ = ["federation"]

SettingsFactory = Callable[..., Settings]


@pytest.mark.nightly
def test_silos_and_server_end_at_once_and_the_others_as_is_documented(
    federation: Callable[..., Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig,
    tmp_path: Path,
) -> None:  # fmt: skip
    settings = tiny_settings(
        "client_num_in_total=4", "client_num_per_round=4", "epochs=1", "threads=1", "comm_round=2000",
        "min_clients_per_round=1",
    )  # fmt: skip
    silos = federation(settings, config)
    impatient = tmp_path / "impatient.yaml"
    impatient.write_text("dapper_args: {round_timeout_s: 10}\n")
    silos.start(0, program=timeless_program(tmp_path))
    silos.wait_for_words("waiting for ranks")
    silos.start(1, above=impatient)
    silos.start(2, program=busy_program(tmp_path))
    silos.wait_for_words("rank 1 is there", "rank 2 is there")
    let_time_pass(silos.processes[0])
    silos.wait_for_words(AT_WORK, rank=2)
    interrupted(silos, 2, signal.SIGTERM)
    assert wait_for_all_but(silos, 2, 3, 4)
    let_time_pass(silos.processes[0])
    silos.wait_for_round(3)
    assert [client.client for client in silos.rounds()[-1].clients] == [0]
    interrupted(silos, 0, signal.SIGINT)
    assert "Stopped after" in silos.output(0)
    assert silos.wait(1) == 2
    last = silos.output(1).splitlines()[-1]  # of a silo that was waiting, or had an upload to send
    assert "no server at" in last or "rank 1 cannot reach the server" in last


def interrupted(silos: Silos, rank: int, number: signal.Signals) -> None:
    """Tell one process to stop, and see it do so."""
    silos.processes[rank].send_signal(number)
    assert silos.wait(rank, 60) == INTERRUPTED, silos.output(rank)
    output = silos.output(rank)
    assert "Traceback" not in output, output
    assert (GOING_ON in output) + ("Stopped after" in output) == 1, output
