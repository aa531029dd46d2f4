"""Try all mutants, or those that are named: ``python -m tests.mutants [NAME ...]``."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.mutant import Mutant, all_mutants
from tests.mutants.trial import Outcome, ScratchError, check_unbroken, outcome, scratch_clone

AT_A_TIME = 2


def main() -> int:
    """0 where all are killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a patch's name, without .patch; by default all")
    names = parser.parse_args().names
    mutants = [mutant for mutant in all_mutants() if not names or mutant.name in names]
    if unknown := set(names) - {mutant.name for mutant in mutants}:
        parser.error(f"there is no mutant called {', '.join(sorted(unknown))}")
    counts = Counter[str]()
    try:
        for number, (mutant, found) in enumerate(outcomes(mutants), start=1):
            counts[found.result] += 1
            print(f"[{number}/{len(mutants)}] {found.result:8} {mutant.name}: {mutant.what} ({found.seconds:.0f} s)")
            if found.said:
                print(found.said)
            sys.stdout.flush()  # also where that is a file, for who watches
    except ScratchError as error:
        print(error)
        return 1
    print(f"{len(mutants)} mutants: {', '.join(f'{count} {result}' for result, count in sorted(counts.items()))}")
    return int(counts["killed"] < len(mutants))


def outcomes(mutants: Sequence[Mutant]) -> Iterator[tuple[Mutant, Outcome]]:
    """What becomes of each of ``mutants``, as it is known, after their tests have passed without any."""
    scratches: SimpleQueue[Path] = SimpleQueue()
    with ExitStack() as stack, ThreadPoolExecutor(AT_A_TIME) as pool:
        for _ in range(AT_A_TIME):
            scratches.put(stack.enter_context(scratch_clone()))

        def unbroken(tests: Iterable[str]) -> None:
            scratch = scratches.get()
            try:
                check_unbroken(list(tests), scratch)
            finally:
                scratches.put(scratch)

        def tried(mutant: Mutant) -> tuple[Mutant, Outcome]:
            scratch = scratches.get()
            try:
                return mutant, outcome(mutant, scratch)
            finally:
                scratches.put(scratch)

        started = time.monotonic()
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        list(pool.map(unbroken, filter(None, [tests[::2], tests[1::2]])))
        print(f"without a mutant all {len(tests)} tests pass ({time.monotonic() - started:.0f} s)", flush=True)
        for future in as_completed([pool.submit(tried, mutant) for mutant in mutants]):
            yield future.result()


if __name__ == "__main__":
    sys.exit(main())
