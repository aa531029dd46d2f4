from __future__ import annotations

import json

from click.testing import CliRunner

from benchmarks.step import main


def test_step_prints_one_json_object_with_paired_ratios() -> None:
    result = CliRunner().invoke(main, ["--model", "resnet10", "--input", "8", "--batch", "4", "--runs", "1", "--json"])
    document = json.loads(result.stdout)
    assert document["runs"] == 1
    assert document["machine"]
    assert [level["ratio"] for level in document["levels"]] == [0.0, 0.2, 0.4, 0.6, 0.8]
    assert document["levels"][0]["ratio_to_dense"] == 1.0
    assert all(abs(level["params_share"] - (1 - level["ratio"])) < 0.01 for level in document["levels"])
