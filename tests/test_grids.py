"""Which cases of a grid run at a commit."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from fedml_dapper.methods import METHODS

from . import grids
from .grids import METHODS_OF_EVERY_KIND, PARTS, sampled

CASES = tuple(f"case {number}" for number in range(40))
ALWAYS = CASES[:8]


def is_nightly(case: ParameterSet) -> bool:
    return "nightly" in {mark.name for mark in case.marks}  # type: ignore[union-attr]


def drawn(monkeypatch: pytest.MonkeyPatch, part: int) -> list[str]:
    """The cases that a commit of the ``part`` runs."""
    monkeypatch.setattr(grids, "part_of_this_commit", lambda: part)
    return [str(case.values[0]) for case in sampled(CASES, ALWAYS) if not is_nightly(case)]


def test_over_as_many_commits_as_there_are_parts_every_case_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Counter(case for part in range(PARTS) for case in drawn(monkeypatch, part))
    assert times == {case: PARTS if case in ALWAYS else 1 for case in CASES}


@pytest.mark.parametrize("part", range(PARTS))
def test_a_part_is_about_a_fifth(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    found = drawn(monkeypatch, part)
    assert {*ALWAYS} < {*found}
    assert len(found) - len(ALWAYS) < 2 * (len(CASES) - len(ALWAYS)) / PARTS


def test_a_case_is_in_the_same_part_whatever_else_its_grid_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a method whose undisturbed run is trained is asked for in all grids."""
    found = {*drawn(monkeypatch, 2)}
    few = sampled(CASES[20:], ALWAYS)
    assert {str(case.values[0]) for case in few if not is_nightly(case)} == found & {*CASES[20:]}


def test_parameters_keep_their_own_marks_names_and_values() -> None:
    slow = pytest.param("c", 3, marks=pytest.mark.long, id="slow")
    found = sampled(["a", ("b", 2), slow], always=["a", "b"])
    assert [case.values for case in found] == [("a",), ("b", 2), ("c", 3)]
    assert found[2].id == "slow"
    assert "long" in {mark.name for mark in found[2].marks}  # type: ignore[union-attr]


def test_outside_of_the_quick_ring_are_the_other_representatives_and_what_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grids, "is_drawn", lambda case: case == "c")
    found = sampled(["a", "b", "c", "d"], always=["a", "b"], quick=["a"])
    assert [[mark.name for mark in case.marks] for case in found] == [[], ["long"], ["long"], ["nightly"]]  # type: ignore[union-attr]


def test_the_last_of_the_marks_is_nightly_where_it_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids, "is_drawn", lambda case: False)
    [case] = sampled([pytest.param("c", marks=pytest.mark.long)])
    assert [mark.name for mark in case.marks] == ["long", "nightly"]  # type: ignore[union-attr]


def test_only_the_commit_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        named = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
        done = subprocess.run(["git", *named, *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def part() -> int:
        grids.commit.cache_clear()
        return grids.part_of_this_commit()

    monkeypatch.setattr(grids, "ROOT", tmp_path)
    try:
        assert part() == 0  # no repository
        git("init", "-q")
        for number in range(3):
            git("commit", "-q", "--allow-empty", "-m", f"change {number}")
            assert part() == int(git("rev-parse", "HEAD"), 16) % PARTS
        (tmp_path / "not committed").touch()
        assert part() == int(git("rev-parse", "HEAD"), 16) % PARTS
    finally:
        grids.commit.cache_clear()


def test_representatives_are_methods() -> None:
    assert {*METHODS_OF_EVERY_KIND} <= {*METHODS}
