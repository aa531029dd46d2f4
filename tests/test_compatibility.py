"""What goes with what: every row of the table refuses its example, and the page and the command are the table."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from fedml_dapper.cli import main
from fedml_dapper.config import SHIPPED, DataArgs, Settings, merge, read_yaml
from fedml_dapper.config.compatibility import ROWS, TABLE, Ability, Row
from fedml_dapper.config.fedml_keys import translated
from fedml_dapper.config.section import Judged
from fedml_dapper.datasets import divide, load_suite
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.experiment import build_untrained
from fedml_dapper.federation.method_fits import check_method

OF_SETTINGS = [row for row in ROWS if row.is_about_settings]
OF_PARTITIONS = [row for row in TABLE["Data"] if not row.is_about_settings]
OF_METHODS = [row for row in ROWS if not row.is_about_settings and row not in OF_PARTITIONS]
EXPERIMENTS = [*SHIPPED.glob("*.yaml"), *SHIPPED.glob("methods/*.yaml")]
OVER_CROSS_SILO = ("edges.yaml", "fedml_grpc.yaml", "mqtt.yaml")

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"
NETWORKS = """
import torch
from torch import nn


class Whole(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, num_classes, 3)

    def forward(self, x):
        return self.convolution(x).mean((2, 3))


class Counting(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 16 * 16, num_classes)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        return self.linear(x.flatten(1))
"""


def nested(example: Mapping[str, Any]) -> dict[str, Any]:
    """Values by whole keys as an experiment file has them."""
    values: dict[str, Any] = {}
    for key, value in copy.deepcopy(dict(example)).items():
        *sections, last = key.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return values


def name_of(row: Row) -> str:
    return f"{row.this.label} {row.relation} {row.that.label}".replace("dapper_args.", "")


def assert_refuses(row: Row, line: str) -> None:
    """The line says what is wrong, why and what to do, as the row has it."""
    verb = "does not go with" if row.relation == "excludes" else "needs"
    before, _, behind = line.partition(f" {verb} ")
    assert before.startswith(row.this.label)
    assert behind.startswith(row.that.label)
    assert f": {row.why}; " in line
    assert line.endswith(row.remedy) or row.own_remedy is not None
    assert "\n" not in line


@pytest.mark.parametrize("row", OF_SETTINGS, ids=name_of)
def test_a_file_that_breaks_a_row_is_refused_for_that_and_nothing_else(row: Row) -> None:
    [line] = Judged(Settings, nested(row.example)).mistakes
    assert_refuses(row, line)


@pytest.mark.parametrize("row", OF_METHODS, ids=name_of)
def test_a_method_that_cannot_do_what_is_asked_is_refused(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "networks.py").write_text(NETWORKS)
    small = {"model_args.model": "resnet10", "dapper_args.levels.ratios": [0.0, 0.5]}
    width = {} if "model_args.model" in row.example else {"model_args.width": 4}
    judged = Judged(Settings, nested({**small, **width, **row.example}))
    assert judged.mistakes == []
    assert judged.sound is not None
    with pytest.raises(ConfigError) as caught:
        check_method(judged.sound, build_untrained(judged.sound, 10, torch.zeros(1, 3, 16, 16)))
    assert_refuses(row, str(caught.value))


@pytest.mark.parametrize("row", OF_PARTITIONS, ids=name_of)
def test_what_does_not_go_with_a_partition_is_refused_where_the_data_are_dealt_out(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_split.py").write_text("def deal(suite, clients, seed):\n    return []\n")
    judged = Judged(Settings, nested(row.example))
    assert judged.mistakes == []
    assert judged.sound is not None
    with pytest.raises(ConfigError) as caught:
        divide(load_suite(DataArgs(dataset="digits_offline")), judged.sound.data_args, 3, 4, seed=1)
    assert_refuses(row, str(caught.value))


def test_every_row_is_tried_above() -> None:
    assert len(OF_SETTINGS) + len(OF_METHODS) + len(OF_PARTITIONS) == len(ROWS)
    assert len({name_of(row) for row in ROWS}) == len(ROWS)
    assert OF_METHODS
    assert all(isinstance(row.this, Ability) or isinstance(row.that, Ability) for row in OF_METHODS)


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: str(file.relative_to(SHIPPED)))
def test_shipped_files_break_no_row(file: Path) -> None:
    below = read_yaml(SHIPPED / "cross_silo.yaml") if file.name in OVER_CROSS_SILO else {}
    values = translated(merge(below, read_yaml(file))).values
    assert Judged(Settings, values).mistakes == []


def test_all_rows_that_a_file_breaks_are_told_at_once() -> None:
    values = nested(
        {"dapper_args.buffer_size": 30, "dapper_args.privacy.noise_multiplier": 1, "device_args.workers": 2}
    )
    values["device_args"]["using_gpu"] = True
    lines = Judged(Settings, values).mistakes
    assert len(lines) == 6
    assert sum("dapper_args.privacy" in line for line in lines) == 3


def test_all_that_a_method_cannot_do_is_told_at_once() -> None:
    values = nested({
        "model_args.model": "resnet10", "model_args.width": 4, "dapper_args.method": "scaffold",
        "dapper_args.defence.aggregation": "median", "dapper_args.levels.strict": True,
    })  # fmt: skip
    settings = Settings.model_validate(values)
    with pytest.raises(ConfigError, match=r"settings that do not go together: 2 mistakes: \(1\) .* \(2\) ") as caught:
        check_method(settings, build_untrained(settings, 10, torch.zeros(1, 3, 16, 16)))
    assert "levels.strict" in str(caught.value)


def test_a_row_that_reads_a_wrong_value_is_passed_over_and_the_others_are_told() -> None:
    values = nested({"train_args.client_num_in_total": "ten", "dapper_args.buffer_size": 3})
    lines = Judged(Settings, values).mistakes
    assert len(lines) == 2
    assert "dapper_args.buffer_size (3) does not go with common_args.training_type simulation" in lines[1]


def test_the_page_is_what_the_command_prints() -> None:
    result = CliRunner().invoke(main, ["settings", "--compatibility"])
    assert result.exit_code == 0
    assert result.stdout == PAGE.read_text(encoding="utf-8"), (
        "write it again: fedml-dapper settings --compatibility > docs/compatibility.md"
    )
