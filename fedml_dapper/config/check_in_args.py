"""Devices that come and go: when they call, and how many of them a round asks."""

from __future__ import annotations

import re
import shlex
from typing import Annotated

from pydantic import AfterValidator, Field

from fedml_dapper.config.limits import MAX_SECONDS
from fedml_dapper.config.section import Section

_MINUTES_OF_A_DAY = 24 * 60
_WEEK_SECONDS = 7 * 24 * 3600.0
_HOURS = re.compile(r"([01]?\d|2[0-4]):([0-5]\d)-([01]?\d|2[0-4]):([0-5]\d)")


def _window(text: str) -> str:
    found = _HOURS.fullmatch(text)
    if found is None or any(_minutes(text, part) > _MINUTES_OF_A_DAY for part in (0, 1)):
        raise ValueError(f"expected HH:MM-HH:MM, e.g. 22:00-06:30, found {text}")
    if _minutes(text, 0) == _minutes(text, 1) or _minutes(text, 0) - _minutes(text, 1) == _MINUTES_OF_A_DAY:
        raise ValueError(f"{text} ends as it begins, and the device would never call; leave it out for any time")
    return text


def _minutes(window: str, part: int) -> int:
    hours, _, minutes = window.split("-")[part].partition(":")
    return 60 * int(hours) + int(minutes)


def _command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"a quotation mark is not closed: {text}") from error
    if not words:
        raise ValueError("the command is empty")
    return text


class CheckInArgs(Section):
    """``dapper_args.check_in``: with ``training_type: cross_device``, how the server deals with devices that call."""

    over_selection: float = Field(default=1.3, ge=1, le=10)
    """Devices that a round asks, as a multiple of ``train_args.client_num_per_round``; the round closes with so many
    answers as the latter says, and who comes later has worked in vain. With ``dapper_args.buffer_size`` it is how many
    are at work at a time, the round closes with that many answers, and later ones count in later rounds."""
    come_back_s: float = Field(default=30, gt=0, le=MAX_SECONDS)
    """Seconds after which a device for which there is no task is to call again. One that has not called for twice as
    long is gone until it does."""


class MayCallArgs(Section):
    """``silo_args.may_call``: when this device may call the server; at any time when absent."""

    hours: Annotated[str, AfterValidator(_window)] | None = None
    """HH:MM-HH:MM by the device's own clock, over midnight too; any time when absent."""
    command: Annotated[str, AfterValidator(_command)] | None = None
    """Command whose exit code 0 says yes: that the device is on power, idle, on a network that costs nothing. It is run
    as it stands, without a shell, before each call."""
    ask_again_s: float = Field(default=60, gt=0, le=MAX_SECONDS)
    """Seconds until hours and command are asked again after a no."""
    give_up_after_s: float = Field(default=_WEEK_SECONDS, ge=0, le=MAX_SECONDS)
    """Seconds after which the device ends where no server answers, a week by default. Counted are the pauses between
    calls since the last answer, not the time in which it may not call."""

    def is_open_at(self, minute: int) -> bool:
        """Return whether ``minute`` of the day, from 0, lies in ``hours``."""
        if self.hours is None:
            return True
        begin = _minutes(self.hours, 0)
        end = _minutes(self.hours, 1)
        return begin <= minute < end if begin <= end else minute >= begin or minute < end
