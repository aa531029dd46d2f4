"""What a run says of itself before it starts."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO

import pytest
from rich.console import Console

from fedml_dapper.config import Settings
from fedml_dapper.evaluation import experiment_tables
from fedml_dapper.federation import build_experiment


def lines_of(settings: Settings, width: int = 80) -> list[str]:
    text = StringIO()
    Console(file=text, width=width).print(experiment_tables(build_experiment(settings)))
    return text.getvalue().splitlines()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│ ").split("│")]


@pytest.mark.parametrize("width", [80, 120])
def test_every_client_domain_and_level_has_its_row_and_no_cell_is_cut(
    tiny_settings: Callable[..., Settings], width: int
) -> None:
    settings = tiny_settings("client_num_per_round=6")
    lines, experiment = lines_of(settings, width), build_experiment(settings)
    text = "\n".join(lines)
    for profile in experiment.profiles:
        row = f"│ {profile.client_id:6} │ {profile.domain:8} │ {profile.level:5} │ {profile.ratio:5g} │"
        assert f"{row} {profile.num_samples:7} │" in text
    assert "6 of them train in each round" in text
    assert sum(len(re.findall(r"│ fonts    │ +\d+ │ +\d+ │ +200 │", line)) for line in lines) == 1
    assert "…" not in text
    assert max(map(len, lines)) <= width
    assert len(lines) < (40 if width == 80 else 30)


def test_many_clients_share_rows_and_nobody_is_lost(tiny_settings: Callable[..., Settings]) -> None:
    overrides = ("client_num_in_total=40", "client_num_per_round=40", "validation_share=0.1", "unseen_domain=fonts")
    lines = lines_of(tiny_settings(*overrides))
    start = next(place for place, line in enumerate(lines) if "Domains of" in line)
    rows = [cells(line) for line in lines[:start] if line.startswith("│")]
    assert sum(int(row[0]) for row in rows) == 40
    assert len(rows) <= 15
    [unseen] = [cells(line) for line in lines if "unseen" in line]
    assert unseen == ["fonts (unseen)", "0", "0", "200"]
