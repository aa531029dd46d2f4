"""Mutants fit the code and the tests that are there, and what becomes of them is told apart."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

import pytest

from .mutants.mutant import ROOT, Mutant, all_mutants, read_mutant
from .mutants.trial import ScratchError, check_unbroken, outcome, scratch_clone

MUTANTS = all_mutants()
BROKEN = "fedml_dapper/methods/parts/fusion.py"
NOTICES = "tests/methods/test_fusion.py::test_fusion_by_hand"


@cache
def functions_of(file: str) -> frozenset[str]:
    """Names of all functions in a file, methods included."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_there_are_mutants_of_every_kind() -> None:
    assert len(MUTANTS) >= 40
    assert {"dar_sign", "shamir_threshold", "upload_speed", "noise_of_sum"} <= {mutant.name for mutant in MUTANTS}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_says_what_it_breaks_fits_the_code_and_names_tests_that_there_are(mutant: Mutant) -> None:
    assert mutant.what.endswith(".")
    command = ["git", "apply", "--check", str(mutant.patch)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in functions_of(file), test


@pytest.mark.parametrize(
    "text", ["", "What is broken.\n", "What is broken.\nTests:\n", "\nTests: tests/randomness/test_chacha20.py\n"]
)
def test_a_patch_that_says_too_little_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.patch").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"a\.patch: expected a line of what is broken"):
        read_mutant(tmp_path / "a.patch")


def made_up(folder: Path, tests: str, line: str, before: str | None = None) -> Mutant:
    """One that puts ``line`` after the first one of a module, which is said to be ``before``."""
    first = (ROOT / BROKEN).read_text(encoding="utf-8").partition("\n")[0]
    patch = folder / "made_up.patch"
    change = f"--- a/{BROKEN}\n+++ b/{BROKEN}\n@@ -1,2 +1,3 @@\n {before or first}\n+{line}\n \n"
    patch.write_text(f"Made up.\nTests: {tests}\n\n{change}", encoding="utf-8")
    return read_mutant(patch)


@pytest.mark.nightly
def test_what_dies_what_survives_and_what_says_nothing_are_told_apart(tmp_path: Path) -> None:
    [broken] = (mutant for mutant in MUTANTS if mutant.name == "fusion_weight")
    with scratch_clone() as scratch:
        assert outcome(broken, scratch).result == "killed"
        survivor = outcome(made_up(tmp_path, NOTICES, "# harmless"), scratch)
        assert survivor.result == "survived"
        assert "1 passed" in survivor.said
        does_not_fit = outcome(made_up(tmp_path, NOTICES, "# harmless", before="# not there"), scratch)
        assert (does_not_fit.result, "does not apply" in does_not_fit.said) == ("error", True)
        no_such_test = outcome(made_up(tmp_path, f"{NOTICES}_or_not", "# harmless"), scratch)
        assert (no_such_test.result, "pytest ended with 4" in no_such_test.said) == ("error", True)
        changed = subprocess.run(["git", "status", "--short"], cwd=scratch, capture_output=True, text=True, check=True)
        assert changed.stdout == ""
        with pytest.raises(ScratchError, match="without any mutant, tests do not pass"):
            check_unbroken([f"{NOTICES}_or_not"], scratch)
    assert not scratch.exists()
