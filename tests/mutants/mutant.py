"""What a patch breaks, and which tests have to turn red for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
_TESTS = "Tests:"


@dataclass(frozen=True)
class Mutant:
    """One mechanism of the package, broken."""

    name: str
    what: str
    """What is broken, in a line."""
    tests: tuple[str, ...]
    """Those that have to turn red, as pytest takes them."""
    patch: Path


def all_mutants(folder: Path = FOLDER) -> tuple[Mutant, ...]:
    """Those in ``folder``, by name."""
    return tuple(read_mutant(patch) for patch in sorted(folder.glob("*.patch")))


def read_mutant(patch: Path) -> Mutant:
    """The mutant of a patch. Raises :class:`ValueError` where the patch does not begin with what it breaks, and then
    the tests, in a line that begins with ``Tests:``."""
    what, tests, *_ = [*patch.read_text(encoding="utf-8").splitlines(), "", ""]
    names = tuple(tests.removeprefix(_TESTS).split())
    if not what or not tests.startswith(_TESTS) or not names:
        raise ValueError(f"{patch.name}: expected a line of what is broken, and then one of tests: {_TESTS} ...")
    return Mutant(patch.stem, what, names, patch)
