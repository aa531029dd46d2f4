"""Grids of cases (methods, networks, formats): which of them every change runs, and which are left to the nightly ring.

The representatives of a grid run with every change, and those that take longest in ``.ci/run`` alone. A fifth of the
other cases joins them there, chosen by the commit, so that about five commits see all; the rest are marked ``nightly``.
A case is in the same fifth in all grids, so that tests which share a method's undisturbed run ask for the same methods.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest
from _pytest.mark.structures import ParameterSet

from fedml_dapper.methods import METHODS

from .adapters.vit import NETWORK

ROOT = Path(__file__).parents[1]
PARTS = 5

METHODS_OF_EVERY_KIND = (
    "fedavg", "dapperfl", "dapperfl_slim", "heterofl", "scaffold", "ditto", "fpl", "fdse",
)  # fmt: skip
"""The plain average; pruned by importance, dealt, nested; a memory of clients; models of their own; more than weights
in an upload; layers of its own."""


ON_ANY_NETWORK = tuple(name for name in METHODS if not METHODS[name].needs_adapters)
"""Methods that take a network without adapters."""

ADAPTED = (
    *NETWORK,
    "model_args.adapter={rank: 4, alpha: 8}", "dapper_args.levels=[{rank: 4}, {rank: 2, base: 0.2}]",
)  # fmt: skip
"""A vision transformer with adapters, and clients of two levels."""

ON_ADAPTERS = tuple((name, ADAPTED) for name in METHODS if METHODS[name].needs_adapters)
"""The other methods, each with overrides that give it such a network."""


@cache
def commit() -> str:
    """The commit that is checked out; where there is no repository, or no git, the same as in any other such place."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "0"
    return found.stdout.strip() or "0"


def part_of_this_commit() -> int:
    """Which fifth of the other cases joins the representatives, from 0."""
    return int(commit(), 16) % PARTS


def is_drawn(case: str) -> bool:
    """Whether this commit's fifth holds ``case``, one that is no representative."""
    return crc32(case.encode()) % PARTS == part_of_this_commit()


def sampled(
    cases: Iterable[object],
    always: Collection[str] = METHODS_OF_EVERY_KIND,
    quick: Collection[str] | None = None,
) -> list[ParameterSet]:
    """Parameters of ``pytest.mark.parametrize``, one a case: a value, or a tuple of values, or a ``pytest.param``.

    ``always`` are the representatives, by a case's first value; ``quick`` are those among them that are not ``long``,
    by default all.
    """
    return [_marked(case, always, always if quick is None else quick) for case in cases]


def first_and_drawn(first: object, *others: object) -> list[ParameterSet]:
    """Parameters as of :func:`sampled`: ``first`` runs in every ring, of the ``others`` a fifth in ``.ci/run``."""
    return sampled((first, *others), always=(str(first),))


def _marked(case: object, always: Collection[str], quick: Collection[str]) -> ParameterSet:
    found = ParameterSet.extract_from(case, force_tuple=not isinstance(case, tuple))
    name = str(found.values[0])
    if name in quick:
        return found
    mark = pytest.mark.long if name in always or is_drawn(name) else pytest.mark.nightly
    return pytest.param(*found.values, marks=[*found.marks, mark], id=found.id)
