from __future__ import annotations

from types import SimpleNamespace

import pytest

from . import processes


def test_a_port_is_given_away_once_though_nobody_listens_on_it_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    first = processes.free_port()
    drawn = iter([first, first, *range(32_100, 32_200)])
    monkeypatch.setattr(processes.random, "SystemRandom", lambda: SimpleNamespace(randrange=lambda *_: next(drawn)))
    assert processes.free_port() >= 32_100
