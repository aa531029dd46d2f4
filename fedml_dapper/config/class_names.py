"""Names of classes: labels are told apart by them, in tables and figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_LONGEST_QUOTE = 60


def fault_of_names(names: Sequence[str]) -> str:
    """Return what is wrong with ``names``, as what they name, e.g. "the class 'cat' twice"; empty where nothing is."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        return f"the class {twice!r:.{_LONGEST_QUOTE}} twice"
    hidden = next((name for name in names if not name.strip() or not name.isprintable()), None)
    return "" if hidden is None else f"a class {hidden!r:.{_LONGEST_QUOTE}}, which no table can show"
