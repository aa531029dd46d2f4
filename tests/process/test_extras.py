"""What is installed for one feature alone is missed by that feature alone, in one line, before it does anything."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import fedml_dapper
from fedml_dapper.errors import ConfigError
from fedml_dapper.process.extras import need

EXTRAS = ("mpi4py", "moto", "onnx", "onnxruntime", "onnxscript", "opacus", "optuna", "tensorboard")
WITHOUT = """
import sys

missing = sys.argv.pop(1).split(",")

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
import fedml_dapper
from fedml_dapper.entry import main
sys.exit(main())
"""
DIGITS = str(Path(__file__).parents[2] / "config" / "digits_offline.yaml")
SMALL = (
    "-c", DIGITS, "--set", "comm_round=1", "--set", "epochs=1", "--set", "width=8", "--set", "client_share=0.02",
    "--set", "workers=1",
)  # fmt: skip
NOISE = (
    "--set", "dapper_args.privacy.noise_multiplier=1.0", "--set", "dapper_args.privacy.delta=1e-5",
    "--set", "aggregation_weights=uniform",
)  # fmt: skip


def without(packages: Sequence[str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """``fedml-dapper WORDS`` where ``packages`` are not installed."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT, ",".join(packages), *words],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("package", "words", "line"),
    [
        (
            "optuna",
            ("search", *SMALL, "--params", "eps", "--output", "out"),
            r"fedml-dapper search needs optuna; pip install 'fedml-dapper\[search\]'",
        ),
        pytest.param(
            "opacus",
            ("run", *SMALL, *NOISE, "--output", "out"),
            r"dapper_args.privacy needs opacus; pip install 'fedml-dapper\[privacy\]'",
            marks=pytest.mark.long,
        ),
        (
            "sklearn",
            ("bench", "table2", "--output", "out"),
            "fedml-dapper bench needs sklearn; pip install 'scikit-learn'",
        ),
        pytest.param(
            "sklearn",
            ("run", *SMALL, "--output", "out"),
            "digits_offline is drawn from .*; pip install scikit-learn",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_feature_says_what_to_install(package: str, words: Sequence[str], line: str, tmp_path: Path) -> None:
    refused = without([package], tmp_path, *words)
    assert refused.returncode == 2, refused.stderr
    assert re.fullmatch(f"fedml-dapper: {line}\n", refused.stderr)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_all_else_goes_without_them(tmp_path: Path) -> None:
    ran = without(EXTRAS, tmp_path, "run", *SMALL, "--output", "run")
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "run" / "report.html").is_file()
    exported = without(EXTRAS, tmp_path, "export", "run", "--format", "torchscript", "-o", "phone")
    assert exported.returncode == 0, exported.stderr
    refused = without(EXTRAS, tmp_path, "export", "run", "-o", "other")
    message = "fedml-dapper: --format onnx needs onnx, onnxscript, onnxruntime; pip install 'fedml-dapper[export]'"
    assert (refused.returncode, refused.stderr.strip()) == (2, message)
    assert not (tmp_path / "other").exists()


def test_only_the_search_loads_one_with_its_modules() -> None:
    loading = set()
    for file in Path(fedml_dapper.__file__).parent.rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            loading |= {(file.parent.name, name.partition(".")[0]) for name in names}
    assert {pair for pair in loading if pair[1] in (*EXTRAS, "sklearn")} == {("search", "optuna")}


def test_what_is_broken_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_another_abi.py").write_text("raise ImportError('undefined symbol: PyFoo')")
    (tmp_path / "half.py").write_text("import its_own_need")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^x needs of_another_abi \(undefined symbol: PyFoo\); pip install 'y'$"):
        need("x", "json", "of_another_abi", install="y")
    with pytest.raises(ConfigError, match=r"^x needs half \(No module named 'its_own_need'\); "):
        need("x", "half", install="y")
