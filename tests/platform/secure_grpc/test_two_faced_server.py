"""A server that lies to silos over DAPPER_GRPC: they say so in their logs, and no share leaves them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedml_dapper.config import SecureGrpcConfig, Settings
from fedml_dapper.federation import SumExchange, SumMessage
from fedml_dapper.federation.wire.sum_codec import Start, Survivors
from fedml_dapper.pruning import DENSE
from fedml_dapper.secure_sum import Consent, Revealed, Summation

from ..federation_in_threads import Federation
from .experiment_file import experiment_file
from .test_secure_sums import SECURE, settings_of

SettingsFactory = Callable[..., Settings]
InThreads = Callable[[Path, int], Federation]
Lie = Callable[[SumMessage], SumMessage]


def other_survivors(message: SumMessage) -> SumMessage:
    """Silos 1 and 2 hear that the fourth dropped out, the others that all are there."""
    if isinstance(message.content, Survivors) and message.client_id < 2:
        return replace(message, content=Survivors((0, 1, 2)))
    return message


def keys_of_its_own(message: SumMessage) -> SumMessage:
    """Which it puts in place of the fourth silo's, for all but that one."""
    if isinstance(message.content, Start) and message.client_id < 3:
        keys = dict(message.content.keys)
        keys[3] = replace(keys[3], sealing=bytes(range(32)))
        return replace(message, content=replace(message.content, keys=keys))
    return message


def a_plan_of_its_own(message: SumMessage) -> SumMessage:
    """It says that a weak silo holds all, so that what two hold would seem to be held by three."""
    if isinstance(message.content, Start) and message.client_id > 0:
        assert message.content.plans[0].kept
        plans = dict(message.content.plans) | {0: DENSE}
        return replace(message, content=replace(message.content, plans=plans))
    return message


@pytest.mark.long
@pytest.mark.parametrize(
    ("lie", "heard"),
    [
        (other_survivors, r"client \d has not signed this: the server told silo-\d something else than this client"),
        (keys_of_its_own, "client 3 has not signed this: the server told silo-4 something else than this client"),
        (a_plan_of_its_own, "the server says that client 0 holds what it has not signed"),
    ],
)
def test_silos_say_what_it_told_whom_and_nothing_opens(
    in_threads: InThreads, tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lie: Lie, heard: str,
) -> None:  # fmt: skip
    revealed: list[SumMessage] = []
    go_on = SumExchange.go_on
    beginning = SumExchange.beginning
    take = SumExchange.take

    def hear(exchange: SumExchange, message: SumMessage) -> None:
        if isinstance(message.content, Revealed):
            revealed.append(message)
        take(exchange, message)

    def believe(summation: Summation, client: int, consent: Consent) -> None:
        summation._consents[client] = consent

    monkeypatch.setattr(SumExchange, "go_on", lambda exchange: [lie(each) for each in go_on(exchange)])
    monkeypatch.setattr(SumExchange, "beginning", lambda exchange: [lie(each) for each in beginning(exchange)])
    monkeypatch.setattr(SumExchange, "take", hear)
    monkeypatch.setattr(Summation, "take_consent", believe)
    settings = settings_of(tiny_settings, 4, SECURE, "method=heterofl", "comm_round=1")
    federation = in_threads(experiment_file(tmp_path, settings, config), 4)
    federation.start_all()
    federation.wait()
    assert revealed == []
    [record] = federation.rounds()
    assert record.rolled_back is not None
    assert record.clients == ()
    assert re.search(f"this client leaves the sum: {heard}", caplog.text)
