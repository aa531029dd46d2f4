"""The nightly ring: every test and every mutant, on the commit that is checked out. ``python -m tests.rings.nightly``.

What passed is noted below ``.nightly/COMMIT``, so that a run which was interrupted, or failed, goes on where it was.
It ends with what is left, and with the share of the package's lines and branches that the tests ran.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import coverage

from tests.grids import ROOT, commit
from tests.mutants.__main__ import outcomes
from tests.mutants.mutant import all_mutants
from tests.rings.notes import COLLECTED, COVERAGE, DONE_BEFORE, FOLDER, PASSED, lines_of, note

NIGHTLY = ROOT / ".nightly"
KILLED = "killed"
"""The file with the names of mutants that died."""


def main() -> int:
    """0 where nothing is left to pass."""
    changed = subprocess.check_output(["git", "status", "--porcelain", "--untracked-files=no"], cwd=ROOT, text=True)
    if changed:
        print(f"run/nightly.sh notes what passed at which commit. Commit these changes first:\n{changed}")
        return 2
    folder = NIGHTLY / commit()
    folder.mkdir(parents=True, exist_ok=True)
    run_tests(folder)
    run_mutants(folder)
    return report(folder)


def run_tests(folder: Path) -> None:
    """Run the tests that are not known to pass."""
    done = lines_of(folder / PASSED)
    (folder / DONE_BEFORE).unlink(missing_ok=True)
    note(folder / DONE_BEFORE, sorted(done))
    print(f"tests: {len(done)} passed before at commit {commit()[:7]}", flush=True)
    options = ["-m", "", "-n", "auto", "--dist", "worksteal", "--seconds"]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.rings.notes", *options],
        cwd=ROOT, env=os.environ | {FOLDER: str(folder), "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip


def run_mutants(folder: Path) -> None:
    """Try the mutants that are not known to die."""
    done = lines_of(folder / KILLED)
    left = [mutant for mutant in all_mutants() if mutant.name not in done]
    print(f"mutants: {len(done)} killed before at commit {commit()[:7]}, {len(left)} to be tried", flush=True)
    if not left:
        return
    for number, (mutant, found) in enumerate(outcomes(left), start=1):
        print(f"[{number}/{len(left)}] {found.result:8} {mutant.name} ({found.seconds:.0f} s)", flush=True)
        if found.said:
            print(found.said)
        if found.result == "killed":
            note(folder / KILLED, [mutant.name])


def report(folder: Path) -> int:
    """Print what is left at this commit, and the coverage of what ran. 0 where nothing is left."""
    measured = coverage.Coverage(data_file=str(folder / COVERAGE), config_file=str(ROOT / "pyproject.toml"))
    measured.combine([str(folder)], keep=True)
    share = measured.report(skip_covered=True)
    tests_left = sorted(lines_of(folder / COLLECTED) - lines_of(folder / PASSED))
    mutants_left = sorted({mutant.name for mutant in all_mutants()} - lines_of(folder / KILLED))
    for kind, left in (("test", tests_left), ("mutant", mutants_left)):
        for name in left:
            print(f"left: {kind} {name}")
    print(
        f"commit {commit()[:7]}: {len(lines_of(folder / PASSED))} tests passed, {len(tests_left)} left; "
        f"{len(lines_of(folder / KILLED))} mutants killed, {len(mutants_left)} left; "
        f"coverage of the package's lines and branches: {share:.1f} %"
    )
    return int(bool(tests_left or mutants_left or share < measured.get_option("report:fail_under")))


if __name__ == "__main__":
    sys.exit(main())
