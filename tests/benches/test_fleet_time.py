"""Variants on a fleet's virtual clock: equal time, time to so many percent."""

from __future__ import annotations

import pytest

from fedml_dapper.benches.bench_report import FIGURES_NAME, write_bench_report
from fedml_dapper.benches.results import load_results
from fedml_dapper.benches.tables import build_tables


@pytest.fixture
def folder(store):
    """FedAvg waits for a slow device, Quick does not: in the time of its three rounds FedAvg does one."""
    folder = store.bench(["FedAvg", "Quick"], seeds=(1, 2), rounds=3)
    for seed in (1, 2):
        store.cell("FedAvg", seed, [52 + seed, 64, 76], round_s=100.0)
        store.cell("Quick", seed, [40, 48 + seed, 58 + 2 * seed], round_s=40.0)
    return folder


def test_variants_are_compared_in_the_time_of_the_shortest_run(folder) -> None:
    tables = build_tables(load_results(folder))
    fedavg, quick = tables.times
    assert tables.equal_s == 120
    assert (fedavg.at_equal_time["global"].mean, quick.at_equal_time["global"].mean) == (53.5, 61)
    assert fedavg.at_equal_time["mnist"].mean == 55.5
    assert (fedavg.elapsed_s.mean, quick.elapsed_s.mean) == (300, 120)
    assert fedavg.joules is not None
    assert fedavg.joules.mean == 300
    assert fedavg.waiting.mean == 0.5


@pytest.mark.nightly
def test_a_seed_that_was_not_tested_in_equal_time_is_missed(store) -> None:
    folder = store.bench(["FedAvg", "Quick"], seeds=(1, 2), rounds=3)
    for seed, slow in ((1, 100.0), (2, 200.0)):
        store.cell("FedAvg", seed, [52, 64, 76], round_s=slow)
        store.cell("Quick", seed, [40, 48, 58], round_s=40.0)
    assert build_tables(load_results(folder)).times[0].at_equal_time["global"].n == 1
    page = write_bench_report(folder).read_text(encoding="utf-8")
    assert page.count("<small>1 of 2 seeds</small>") == 3


def test_time_to_an_accuracy_is_that_of_the_seeds_that_got_there(folder) -> None:
    fedavg, quick = build_tables(load_results(folder)).times
    assert {target: found.mean for target, found in fedavg.reached.items()} == {50: 100, 60: 200, 70: 300}
    assert {target: (found.mean, found.n) for target, found in quick.reached.items()} == {50: (100, 2), 60: (120, 2)}


@pytest.mark.nightly
def test_page_and_figure_show_it(folder) -> None:
    page = write_bench_report(folder).read_text(encoding="utf-8")
    assert "On the fleet's clock" in page
    assert "time to 70 %" in page
    assert "never" in page
    assert (folder / FIGURES_NAME / "over_time.png").is_file()


@pytest.mark.nightly
def test_without_a_clock_in_every_run_there_is_nothing_to_compare(store) -> None:
    folder = store.bench(["FedAvg", "Quick"], seeds=(1,))
    store.cell("FedAvg", 1, [52, 64, 76])
    store.cell("Quick", 1, [40, 49, 60], round_s=40.0)
    tables = build_tables(load_results(folder))
    assert tables.times == ()
    assert "On the fleet's clock" not in write_bench_report(folder).read_text(encoding="utf-8")
