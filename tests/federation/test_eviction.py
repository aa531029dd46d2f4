"""A client that an operator leaves out, and lets in again."""

from __future__ import annotations

from fedml_dapper.config import DefenceArgs
from fedml_dapper.config.limits import MAX_ROUNDS
from fedml_dapper.federation.round.quarantine import Quarantine, Standing


def test_an_eviction_lasts_until_it_is_lifted_and_survives_a_checkpoint() -> None:
    quarantine = Quarantine(DefenceArgs())
    quarantine.evict(3)
    again = Quarantine(DefenceArgs())
    again.standing = Standing.model_validate_json(quarantine.standing.model_dump_json())
    assert again.holds(3, 1)
    assert again.holds(3, MAX_ROUNDS)
    assert again.is_evicted(3)
    assert again.out(5) == {3: MAX_ROUNDS}
    assert again.lift(3, 5)
    assert not again.holds(3, 6)
    assert not again.lift(3, 5)


def test_a_quarantine_is_lifted_and_is_no_eviction() -> None:
    quarantine = Quarantine(DefenceArgs(strikes=1, quarantine_rounds=10))
    assert quarantine.strike(2, 1)
    assert not quarantine.is_evicted(2)
    assert quarantine.out(5) == {2: 11}
    assert quarantine.lift(2, 5)
    assert quarantine.out(5) == {}
    quarantine.strike(2, 6)
    assert not quarantine.lift(2, 20)  # it was over by itself
