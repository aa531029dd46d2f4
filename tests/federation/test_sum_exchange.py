"""Rounds in which the server learns sums alone, message by message as bytes, with clients that leave at any step."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedml_dapper.config import Settings
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import Ready, RunJournal, SumMessage, build_experiment, simulate
from fedml_dapper.federation.wire.sum_codec import Deal, Declined, Inbox, Masked, Revealed, Start, Survivors
from fedml_dapper.pruning import encoded_changes, slim_tensors

from ..grids import ADAPTED, first_and_drawn, sampled
from .silos_in_process import SECURE, Federation
from .test_privacy import FREE_OF_NORMS, same

SettingsFactory = Callable[..., Settings]


@pytest.mark.long
@pytest.mark.parametrize("method", first_and_drawn("heterofl", "fedavg", "fedrolex", "dapperfl_slim", "fedbn"))
def test_the_model_is_that_of_the_simulation_bit_for_bit(
    silos: Callable[..., Federation], tiny_settings: SettingsFactory, method: str
) -> None:
    asked = (f"method={method}", *(("norm=batch",) if method == "fedbn" else ()), "comm_round=2")
    simulated, records = simulate(build_experiment(tiny_settings(*FREE_OF_NORMS, SECURE, *asked)))
    federation = silos(*asked)
    for expected in records:
        record = federation.round({})
        if method != "fedbn":  # whose clients' models only a simulation can test
            assert record.scores == expected.scores
        assert [client.client for client in record.clients] == [client.client for client in expected.clients]
        assert record.opened_share is not None
        assert 0.5 < record.opened_share <= 1
    assert same(simulated.state.weights, federation.server.state.weights)


def test_masked_sums_of_adapters_of_unequal_ranks_are_the_simulation_s_bit_for_bit(
    silos: Callable[..., Federation], tiny_settings: SettingsFactory
) -> None:
    asked = (*ADAPTED, "model_args.norm=null", "method=dapperfl_slim", "comm_round=1", "epochs=1")
    simulated, _ = simulate(build_experiment(tiny_settings(*FREE_OF_NORMS, SECURE, *asked)))
    federation = silos(*asked)
    federation.round({})
    assert {len(weights["blocks.0.up.lora_a"]) for _, weights in federation.changes.values()} == {2, 4}
    assert same(simulated.state.weights, federation.server.state.weights)
    before = federation.experiment.method.problem.backbone.state_dict()
    assert not federation.server.state.weights["blocks.0.up.lora_b"].equal(before["blocks.0.up.lora_b"])


GONE: dict[str, tuple[dict[type, set[int]], list[int] | str]] = {
    "dealing": ({Deal: {1}}, [0, 2, 3, 4]),
    "masking": ({Masked: {4}}, [0, 1, 2, 3]),
    "revealing": ({Revealed: {0, 3}}, [0, 1, 2, 3, 4]),
    "dealing, revealing": ({Deal: {1}, Revealed: {0}}, [0, 2, 3, 4]),
    "dealing, masking": ({Deal: {1}, Masked: {2}}, [0, 3, 4]),
    "too many dealing": ({Deal: {1, 2, 3}}, "2 clients have dealt shares, and the threshold is 3"),
    "too many masking": (
        {Deal: {1}, Masked: {2, 3}}, "2 clients have sent their part, and the threshold is 3",
    ),
    "too many revealing": (
        {Masked: {4}, Revealed: {0, 1}}, "2 clients have told their shares, and the threshold is 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("step", sampled(GONE, always=("dealing, revealing", "dealing, masking", "too many revealing")))
def test_whoever_leaves_at_whichever_step_a_round_is_the_sum_of_those_it_names_or_void(
    silos: Callable[..., Federation], step: str
) -> None:
    gone, outcome = GONE[step]
    federation = silos("method=fedavg")
    before = dict(federation.server.state.weights)
    record = federation.round(gone)
    named = [client.client for client in record.clients]
    if isinstance(outcome, str):
        assert named == []
        assert record.absent == (0, 1, 2, 3, 4)
        assert record.rolled_back == f"the sum is void: {outcome}"
        assert record.opened_share is None
        assert same(before, federation.server.state.weights)
    else:
        assert named == outcome
        federation.server.state.weights, after = before, federation.server.state.weights
        assert same(federation.plain_mean(named), after)
    assert federation.round({}).rolled_back is None  # and the next round is none the worse for it


def test_nothing_that_a_silo_sends_holds_its_change(silos: Callable[..., Federation]) -> None:
    """Neither its weights nor their change in fixed point, as bytes."""
    federation = silos("method=fedavg")
    before = dict(federation.server.state.weights)
    federation.round({})
    wire = b"".join(federation.wire)
    problem = federation.experiment.method.problem
    assert problem.secure_sums is not None
    for plan, weights in federation.changes.values():
        changes = encoded_changes(weights, slim_tensors(before, problem.layout, plan), problem.secure_sums.code)
        for name, numbers in changes.items():
            if numbers.size >= 16:
                assert numbers.tobytes() not in wire
                assert numbers.ravel()[:8].tobytes() not in wire
                assert weights[name].flatten()[:8].numpy().tobytes() not in wire


def test_a_client_opens_a_round_once(silos: Callable[..., Federation]) -> None:
    federation = silos("method=fedavg")
    federation.train()
    exchange = federation.sums.begin(federation.codec, federation.people[0])
    federation.sum_up(exchange, {})
    assert all(upload.has_signed for upload in federation.uploads.values())
    again = SumMessage(1, 0, exchange._sum_id, Survivors((0, 1, 2)))
    assert "never again" in str(federation.uploads[0].answer(again).content)


def test_a_round_that_all_have_opened_before_is_void(silos: Callable[..., Federation]) -> None:
    """As after a crash of the server, which does not know what it has seen already."""
    federation = silos("method=fedavg")
    for client_id in federation.server.round_clients():
        opened = federation.sent(SumMessage(1, client_id, "", Ready(None, 0)))
        with pytest.raises(ProtocolError, match="nothing is opened twice") as reason:
            federation.server.receive_ready(opened)
        federation.server.refuse(client_id, reason.value)
    exchange = federation.sums.begin(federation.codec, federation.people[0])
    assert exchange.is_over
    record = federation.server.close_round()
    assert record.rolled_back == "the sum is void: 0 clients are there, and the threshold is 3"
    assert record.refused.keys() == {0, 1, 2, 3, 4}


@pytest.mark.long
def test_before_anybody_is_asked_to_open_it_that_is_written_down_and_a_resumed_server_does_not_ask_again(
    silos: Callable[..., Federation], tmp_path: Path
) -> None:
    """Whatever silos remember: these are started again, too."""
    (tmp_path / "run").mkdir()
    crashed = silos("method=fedavg", "comm_round=2")
    journal = RunJournal(crashed.experiment, crashed.server, [], tmp_path / "run", resume=True)
    journal.started()
    crashed.train()

    def opens() -> None:
        assert not any(upload.has_signed for upload in crashed.uploads.values())
        journal.sum_opens()

    exchange = crashed.sums.begin(crashed.codec, crashed.people[0], opens)
    crashed.sum_up(exchange, {})
    assert exchange.opened is not None

    again = Federation(crashed.experiment)
    journal = RunJournal(again.experiment, again.server, [], tmp_path / "run", resume=True)
    journal.started()
    void = again.round({})
    assert void.rolled_back == (
        "the sum is void: it may have been opened before the server crashed, and nothing is opened twice"
    )
    assert not any(upload.has_signed for upload in again.uploads.values())
    journal.round_closed(void)
    assert again.round({}).rolled_back is None
    journal.finished()


def test_a_client_that_says_others_keys_are_its_own_is_refused(silos: Callable[..., Federation]) -> None:
    federation = silos("method=fedavg")
    federation.train()
    keys = federation.sums._ready[1].keys
    assert keys is not None
    federation.server._round._awaited.append(0)
    for wrong in (keys, replace(keys, sealing=keys.masking)):
        with pytest.raises(ProtocolError, match="public key"):
            federation.server.receive_ready(SumMessage(1, 0, "", Ready(wrong, 1)))


def damaged(message: bytes) -> Iterator[bytes]:
    yield message[:-3]
    yield message[:60] + b"#" + message[61:]
    yield b""
    yield secrets.token_bytes(200)


def test_bytes_that_are_no_message_are_refused(silos: Callable[..., Federation]) -> None:
    federation = silos("method=fedavg")
    federation.round({})
    for message in {data[:300]: data for data in federation.wire}.values():
        for wrong in damaged(message):
            with pytest.raises(ProtocolError):
                federation.codec.decode(wrong)


def test_plans_that_nobody_signed_change_nothing_once_a_client_has_dealt(silos: Callable[..., Federation]) -> None:
    """A lying server says after the deal that others hold less, so that a client would send what it alone holds."""
    federation = silos("method=fedavg")
    federation.train()
    exchange = federation.sums.begin(federation.codec, federation.people[0])
    beginning = {message.client_id: message for message in exchange.beginning()}
    victim = federation.uploads[0]
    assert not isinstance(victim.answer(beginning[0]).content, Declined)
    packing = victim._packing
    start = beginning[0].content
    assert isinstance(start, Start)
    lie = replace(beginning[0], content=replace(start, plans=dict(start.plans)))
    assert isinstance(victim.answer(lie).content, Declined)
    assert victim._packing is packing
    assert "never again" in str(victim.answer(replace(beginning[0], content=Inbox({}))).content)
