"""Rooms whose names are loaded when they are asked for."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import pytest

ROOMS = ("fedml_dapper.evaluation", "fedml_dapper.federation")


@pytest.mark.nightly
@pytest.mark.parametrize("room", [ROOMS[0], pytest.param(ROOMS[1], marks=pytest.mark.nightly)])
def test_everything_that_a_room_offers_is_there_whatever_is_asked_first(room: str) -> None:
    package = import_module(room)
    assert not set(package.__all__) & {module.name for module in iter_modules(package.__path__)}
    ask = f"import sys, {room} as room; assert 'torch' not in sys.modules; [getattr(room, name) for name in {{}}]"
    for names in (package.__all__, package.__all__[::-1]):
        subprocess.run([sys.executable, "-c", ask.format(names)], check=True)


@pytest.mark.parametrize("room", ROOMS)
def test_what_a_room_does_not_have_is_an_error_as_anywhere(room: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{room}' has no attribute 'nothing'"):
        import_module(room).nothing  # noqa: B018
