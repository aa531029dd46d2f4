"""A client that an operator leaves out, and lets in again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedml_dapper.config import DefenceArgs, Settings
from fedml_dapper.config.limits import MAX_ROUNDS
from fedml_dapper.federation import RunJournal, Server, build_experiment
from fedml_dapper.federation.round.quarantine import Quarantine, Standing
from fedml_dapper.operations.orders import Order
from fedml_dapper.platform.steering import Steering


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


@pytest.mark.parametrize("stops", ["at once", "in order"])
def test_an_eviction_and_its_end_survive_a_stop_between_two_checkpoints(
    tiny_settings: Callable[..., Settings], tmp_path: Path, stops: str
) -> None:
    experiment = build_experiment(tiny_settings("comm_round=3"))
    folder = tmp_path / "run"
    folder.mkdir()

    def begun() -> tuple[Server, RunJournal, Steering]:
        server = Server(experiment)
        journal = RunJournal(experiment, server, [], folder, resume=True)
        journal.started()
        return server, journal, Steering(server, Nobody(), 5, journal)

    def ended(journal: RunJournal) -> None:
        assert journal._files is not None
        if stops == "in order":
            journal.finished()
        else:
            journal._files._ledger.run_finished()  # which lets go of the folder, as the end of a process does

    server, journal, steering = begun()
    steering.carry_out(Order(act="evict", silo=4))
    steering.carry_out(Order(act="evict", silo=2))
    ended(journal)
    server, journal, steering = begun()
    assert server.attendance.quarantine.evicted == {1, 3}
    assert list(server.round_clients()) == [0, 2, 4]
    steering.carry_out(Order(act="lift", silo=4))
    ended(journal)
    server, journal, _ = begun()
    assert server.attendance.quarantine.evicted == {1}
    journal.finished()


def test_of_a_checkpoint_s_evictions_those_stay_that_were_not_lifted_since() -> None:
    quarantine = Quarantine(DefenceArgs())
    quarantine.standing = Standing(strikes={5: 1}, out_until={1: MAX_ROUNDS, 2: 7})
    quarantine.evict_only({3})
    assert quarantine.standing == Standing(strikes={5: 1}, out_until={2: 7, 3: MAX_ROUNDS})


class Nobody:
    """A manager of no processes."""

    def go_on(self) -> None:
        """Nothing waits."""

    def expel(self, client_id: int) -> None:
        """Nobody is there to be told."""
