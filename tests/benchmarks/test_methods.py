from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("fedml")

from benchmarks.methods import main

SMALL = ("width=8", "client_share=0.05", "epochs=1", "client_num_in_total=4", "client_num_per_round=4")


@pytest.mark.nightly
def test_compares_methods_and_does_not_run_finished_ones_again(tmp_path: Path) -> None:
    command = ["--methods", "fedavg,dapperfl", "--rounds", "1", "--output", str(tmp_path)]
    command += [part for override in SMALL for part in ("--set", override)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "methods.json").read_text())
    fedavg, dapperfl = document["methods"]
    assert [row["method"] for row in document["methods"]] == ["fedavg", "dapperfl"]
    assert dapperfl["bytes_up"] < fedavg["bytes_up"] == fedavg["bytes_down"] == dapperfl["bytes_down"]
    other = CliRunner().invoke(main, [*command, "--set", "learning_rate=7"])
    assert other.exit_code == 1
    assert "train_args.learning_rate is" in other.output
    made = (tmp_path / "fedavg" / "ledger.jsonl").stat().st_mtime_ns
    again = CliRunner().invoke(main, command)
    assert again.exit_code == 0, again.output
    assert (tmp_path / "fedavg" / "ledger.jsonl").stat().st_mtime_ns == made
