"""A mutant tried out: its patch on a scratch clone of the commit, and its tests there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from tests.mutants.mutant import ROOT, Mutant

Result = Literal["killed", "survived", "error"]
LIMIT_S = 900
"""For a mutant that never ends, and says nothing either way."""
_PACKAGE = "import fedml_dapper; print(fedml_dapper.__file__)"


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    result: Result
    seconds: float
    said: str = ""
    """The end of what was printed, where there is something to mend."""


class ScratchError(Exception):
    """A scratch clone in which no result would mean anything."""


@contextmanager
def scratch_clone() -> Iterator[Path]:
    """A clone of the commit that is checked out, to be broken; gone afterwards."""
    with TemporaryDirectory(prefix="mutants-") as folder:
        scratch = Path(folder) / "clone"
        commit = _git(ROOT, "rev-parse", "HEAD").strip()
        _git(ROOT, "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(scratch))
        _git(scratch, "checkout", "--quiet", "--detach", commit)
        _check_package(scratch)
        yield scratch


def check_unbroken(tests: Collection[str], scratch: Path) -> None:
    """Raises :class:`ScratchError` unless ``tests`` pass in a scratch clone as it is: one that is red anyway proves
    nothing."""
    code, output = _pytest(sorted(tests), scratch, limit_s=None)
    if code != 0:
        raise ScratchError(f"without any mutant, tests do not pass:\n{_end(output)}")


def outcome(mutant: Mutant, scratch: Path) -> Outcome:
    """Whether the mutant's tests notice it; the scratch clone is afterwards as it was."""
    started = time.monotonic()

    def found(result: Result, said: str = "") -> Outcome:
        return Outcome(result, time.monotonic() - started, said)

    try:
        _git(scratch, "apply", str(mutant.patch))
    except ScratchError as error:
        return found("error", str(error))
    try:
        code, output = _pytest(mutant.tests, scratch, LIMIT_S)
    except subprocess.TimeoutExpired:
        return found("error", f"its tests did not end within {LIMIT_S} s")
    finally:
        _git(scratch, "apply", "--reverse", str(mutant.patch))
    match code:
        case 0:
            return found("survived", _end(output))
        case 1:
            return found("killed")
        case _:  # no verdict of tests: an interruption, a usage error, no tests
            return found("error", f"pytest ended with {code}:\n{_end(output)}")


def _pytest(tests: Collection[str], scratch: Path, limit_s: float | None) -> tuple[int, str]:
    """Exit code and output; raises :class:`subprocess.TimeoutExpired` after ``limit_s``."""
    options = ["-x", "-p", "no:cacheprovider", "-m", "", "--durations=1"]
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests], cwd=scratch, env=_environment(scratch),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=limit_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that tests have started, which may go on
            raise
    return process.returncode, output


def _environment(scratch: Path) -> dict[str, str]:
    """The environment of processes that find the scratch clone's package before any that is installed."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # of a run around this
    # bytecode that is kept goes by a file's size and second, which a mutant may share with what it takes the place of
    return {**ours, "PYTHONPATH": str(scratch), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


def _check_package(scratch: Path) -> None:
    command = [sys.executable, "-c", _PACKAGE]
    found = subprocess.run(command, cwd=scratch, env=_environment(scratch), capture_output=True, text=True, check=True)
    if not Path(found.stdout.strip()).is_relative_to(scratch):
        raise ScratchError(f"tests in {scratch} would import {found.stdout.strip()}, which no patch breaks")


def _git(folder: Path, *command: str) -> str:
    found = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, check=False)
    if found.returncode:
        raise ScratchError(f"git {' '.join(command)}: {found.stderr.strip()}")
    return found.stdout


def _end(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-15:])
