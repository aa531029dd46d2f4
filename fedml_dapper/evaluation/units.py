"""Numbers and times as people read them: ``4.90 M``, ``19.7 MB``, ``2 h 07 min``."""

from __future__ import annotations

from typing import Literal

_NO_BREAK = "\N{NO-BREAK SPACE}"
_MINUS = "\N{MINUS SIGN}"
Prefix = Literal["", "k", "M", "G"]
_SCALES: dict[Prefix, float] = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


def quantity(value: float, unit: str = "") -> str:
    """Format ``value`` to three significant digits with a decimal prefix: 19_669_000 and "B" give ``19.7 MB``."""
    prefixes = iter(("", "k", "M", "G", "T"))
    prefix = next(prefixes)
    while value >= 999.5 and prefix != "T":
        value = value / 1000
        prefix = next(prefixes)
    digits = 0 if not prefix or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f}{_NO_BREAK}{prefix}{unit}".rstrip(_NO_BREAK)


def scale_of(largest: float, usual: Prefix) -> tuple[float, Prefix]:
    """Return the divisor of a column's numbers, given the ``largest`` of them, and its prefix.

    The prefix is the ``usual`` one, or a smaller one where even the largest number would be below a tenth.
    """
    names = list(_SCALES)
    place = names.index(usual)
    while place and largest < 0.1 * _SCALES[names[place]]:
        place -= 1
    return _SCALES[names[place]], names[place]


def share(part: float, whole: float, digits: int = 1) -> str:
    """Format ``part`` as percent of ``whole``; a dash where ``whole`` is zero, e.g. a client's traffic."""
    return f"{100 * part / whole:.{digits}f}{_NO_BREAK}%" if whole else "\N{EN DASH}"


def decimal(value: float, digits: int = 1) -> str:
    """Format a number, with a real minus sign where it is negative."""
    return f"{value:.{digits}f}".replace("-", _MINUS)


def signed(value: float) -> str:
    """Format a difference with its sign, a real minus where it is negative; without a sign where it rounds to zero."""
    text = f"{abs(value):.1f}"
    if float(text) == 0:
        return text
    return f"{'+' if value > 0 else _MINUS}{text}"


def duration(seconds: float) -> str:
    """Format a time in the two units that matter."""
    if seconds < 59.95:
        return f"{seconds:.1f}{_NO_BREAK}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{_NO_BREAK}min{_NO_BREAK}{rest:02d}{_NO_BREAK}s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours}{_NO_BREAK}h{_NO_BREAK}{minutes:02d}{_NO_BREAK}min"
