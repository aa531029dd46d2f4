"""What each device gets, on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fedml_dapper.evaluation import device_table, summarise, write_report
from fedml_dapper.federation import RoundRecord, RunRecord
from fedml_dapper.federation.run_folder.records import DeviceFigures, DeviceScores, LevelFigures


def figures(strong: float, weak: float | None) -> DeviceFigures:
    """Of two levels and three clients, of which the last two are weak."""
    levels = tuple(
        LevelFigures(
            level=level, accuracy=value, domain_accuracy={"mnist": value - 1, "usps": value + 1} if value else {}
        )
        for level, value in ((1, strong), (2, weak))
    )
    if weak is None:
        return DeviceFigures(levels=levels, clients=(strong - 1, None, None), accuracy=None, worst=None)
    own = (strong - 1, weak + 1, weak + 1)
    return DeviceFigures(levels=levels, clients=own, accuracy=sum(own) / 3, worst=min(own))


@pytest.fixture
def rounds(make_round: Callable[..., RoundRecord]) -> Callable[..., list[RoundRecord]]:
    def make(*devices: DeviceScores) -> list[RoundRecord]:
        return [
            make_round(number, 80.0, 60.0).model_copy(update={"devices": scores})
            for number, scores in enumerate(devices, start=1)
        ]

    return make


def shown(run: RunRecord, rounds: list[RoundRecord], folder: Path) -> tuple[str, str]:
    console = Console(file=StringIO(), width=160, record=True)
    devices = summarise(run, rounds).devices
    assert devices is not None
    console.print(device_table(devices, run))
    write_report(folder / "report.html", run, rounds, None)
    return console.export_text(), (folder / "report.html").read_text()


def test_levels_and_devices_as_sent_and_with_their_own_statistics(
    make_run: Callable[..., RunRecord], rounds: Callable[..., list[RoundRecord]], tmp_path: Path
) -> None:
    first = DeviceScores(sent=figures(91, 70), own_statistics=figures(92, 80))
    last = DeviceScores(sent=figures(90, 20.5), own_statistics=figures(91, 84.5))
    run, records = make_run(), rounds(first, last)
    summary = summarise(run, records).devices
    assert summary is not None
    assert summary.accuracy is not None
    assert (summary.accuracy.best_round, summary.last_round) == (1, 2)
    assert summary.accuracy.last == pytest.approx((89 + 21.5 + 21.5) / 3)
    table, page = shown(run, records, tmp_path)
    assert "in round 2" in table
    rows = [line.split() for line in table.splitlines()]
    assert ["│", "2", "│", "0.5", "│", "20.5", "│", "84.5", "│"] in rows
    assert ["│", "devices", "│", "│", "44.0", "│", "87.0", "│"] in rows
    assert "<h2>What each device gets</h2>" in page
    assert "44.0 %</strong>devices (round 2)" in page
    assert "<small>84.5</small>" in page


def test_a_level_without_a_model_is_said(
    make_run: Callable[..., RunRecord], rounds: Callable[..., list[RoundRecord]], tmp_path: Path
) -> None:
    table, page = shown(make_run(), rounds(DeviceScores(sent=figures(90, None), own_statistics=None)), tmp_path)
    assert table.count("no model") == 3
    assert "no model: the method cuts none for this level" in page
    assert "There is no figure for all devices" in page
    assert "devices (round" not in page


def test_a_level_has_no_figure_where_it_has_no_client(
    make_run: Callable[..., RunRecord], rounds: Callable[..., list[RoundRecord]], tmp_path: Path
) -> None:
    """As where norms stay at home."""
    there, nowhere = LevelFigures(level=1, accuracy=89, domain_accuracy={"mnist": 89}), figures(90, None).levels[1]
    found = DeviceFigures(levels=(there, nowhere), clients=(89, 89, 89), accuracy=89, worst=89)
    home = make_run(settings={**make_run().settings, "dapper_args": {"personal_layers": "norms"}})
    _, page = shown(home, rounds(DeviceScores(sent=found, own_statistics=None)), tmp_path)
    assert '<td class="n">89.0</td><td class="n">-</td>' in page
    assert "no model: no client of this level" in page
    assert "each with the norms that it keeps at home" in page


def test_a_run_without_them_says_how_to_have_them(
    make_run: Callable[..., RunRecord], make_round: Callable[..., RoundRecord], tmp_path: Path
) -> None:
    write_report(tmp_path / "report.html", make_run(), [make_round(1, 80.0, 60.0)], None)
    page = (tmp_path / "report.html").read_text()
    assert "It was not measured" in page
    assert "--set devices=true" in page
