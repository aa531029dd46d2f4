"""Which phase of a server's loop may follow which."""

from __future__ import annotations

from itertools import product

import pytest

from fedml_dapper.operations.status import STATES
from fedml_dapper.platform.phase import STATE_OF, TRANSITIONS, Phase, after


def reachable_from(phase: Phase) -> set[Phase]:
    found, new = {phase}, {phase}
    while new:
        new = {after_ for one in new for after_ in TRANSITIONS[one]} - found
        found |= new
    return found


def test_every_phase_is_reached_and_leads_to_the_end() -> None:
    assert TRANSITIONS.keys() == set(Phase)
    assert reachable_from(Phase.WAITING) == set(Phase)
    assert all(Phase.LEAVING in reachable_from(phase) for phase in Phase)
    assert TRANSITIONS[Phase.LEAVING] == frozenset()


@pytest.mark.parametrize(("before", "chosen"), product(Phase, Phase))
def test_nothing_follows_that_is_not_in_the_table(before: Phase, chosen: Phase) -> None:
    if chosen is before or chosen in TRANSITIONS[before]:
        assert after(before, chosen) is chosen
    else:
        with pytest.raises(AssertionError, match="does not follow"):
            after(before, chosen)


def test_an_operator_hears_of_every_phase() -> None:
    assert STATE_OF.keys() == set(Phase)
    assert set(STATE_OF.values()) == set(STATES)
