"""Every method by recorded steps, which are called again here: what surrounds CUDA graphs changes no bit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from fedml_dapper.capture import EAGER, Capture, Captures
from fedml_dapper.capture.reading import NotCapturableError, read
from fedml_dapper.config import Settings
from fedml_dapper.federation import ClientSide, Server, build_experiment
from fedml_dapper.federation.rounds import run_rounds
from fedml_dapper.methods import ClientContext

from ..grids import ADAPTED, ON_ANY_NETWORK, sampled
from .recorders import CountedCalls

SettingsFactory = Callable[..., Settings]
FEW = ("client_num_in_total=4", "client_num_per_round=4", "epochs=3", "learning_rate_decay=0.9")
STEP_BY_STEP = {
    "dapperfl_slim": "reads an object of PerStep",
    "fdse": "reads an object of ConsistencyLoss",
    "fedfa": "reads an object of Generator",
    "fedsr": "reads an object of Generator",
    "fiarse": "reads an object of ImportanceGradient",
    "fjord": "reads an object of PerStep",
    "fpl": "reads an object of ClassMeans",
}
"""Methods of which some steps cannot be recorded, and what they read that changes beside their tensors."""


@pytest.mark.parametrize("method", sampled(sorted(ON_ANY_NETWORK)))
def test_a_method_ends_at_the_same_bits(
    tiny_settings: SettingsFactory, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = tiny_settings(*FEW, f"method={method}")
    with caplog.at_level(logging.WARNING, "fedml_dapper.capture"):
        replays = replays_to_the_same_bits(settings)
    assert replays > 0 or method in STEP_BY_STEP
    expected = STEP_BY_STEP.get(method)
    assert not caplog.messages if expected is None else any(expected in line for line in caplog.messages)


@pytest.mark.parametrize("method", sampled(sorted(ON_ANY_NETWORK), always=("depthfl", "fedprox", "scalefl")))
def test_steps_of_later_rounds_are_those_that_were_recorded(tiny_settings: SettingsFactory, method: str) -> None:
    """What changes from round to round is a tensor, but for what a method begins to do at some time."""
    experiment = build_experiment(tiny_settings(*FEW, f"method={method}", "comm_round=50"))
    server = Server(experiment)
    [sent, *_] = [server.downlink(client_id) for client_id in server.round_clients()]
    context = ClientContext(experiment.profiles[sent.client_id], experiment.clients[sent.client_id])
    found = set()
    for number in range(1, 51):
        try:
            found.add(read(experiment.method.objective(context, replace(sent, round=number))).fingerprint)
        except NotCapturableError:
            assert method in STEP_BY_STEP
            return
    assert len(found) <= 2


@pytest.mark.parametrize("method", ["flora", "hetlora"])
def test_methods_for_adapters_end_at_the_same_bits(tiny_settings: SettingsFactory, method: str) -> None:
    pruning = "dapper_args.params.hetlora={gamma: 0.5, penalty: 1}"
    assert replays_to_the_same_bits(tiny_settings(*FEW, *ADAPTED, f"method={method}", pruning)) > 0


def test_steps_that_teach_are_told_from_those_that_do_not(tiny_settings: SettingsFactory) -> None:
    levels = ("client_num_in_total=4", "client_num_per_round=4", "ratios=[0.0, 0.5]")
    every_other = "dapper_args.params.dapperfl_slim.teach_every=2"
    settings = tiny_settings(*levels, "norm=standardised", "method=dapperfl_slim", every_other)
    assert replays_to_the_same_bits(settings) > 0  # of those who teach nobody


def replays_to_the_same_bits(settings: Settings) -> int:
    """Check that recorded steps train what Python's do; returns how many were replayed."""
    recorder = CountedCalls()
    recorded = trained(settings, Captures(recorder))
    plain = trained(settings, EAGER)
    for name, tensor in plain.state.weights.items():
        assert tensor.equal(recorded.state.weights[name]), name
    return recorder.replays


def trained(settings: Settings, capture: Capture) -> Server:
    """The server after all rounds."""
    experiment = build_experiment(settings)
    server = Server(experiment)
    clients = ClientSide(experiment)
    clients.capture = capture
    run_rounds(experiment, server, clients, lambda sent: clients.update(sent, experiment.clients[sent.client_id]), [])
    return server
