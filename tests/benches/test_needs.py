"""What a round costs clients, and what a bench's page says of it."""

from __future__ import annotations

from typing import Any

import pytest

from fedml_dapper.benches.bench_report import write_bench_report
from fedml_dapper.benches.diagnosis import DIAGNOSIS_NAME
from fedml_dapper.benches.grid import bench_names, cells, load_bench
from fedml_dapper.benches.needs import LevelNeed, Needs
from fedml_dapper.benches.results import load_results
from fedml_dapper.benches.tables import build_tables
from fedml_dapper.federation import LevelFootprint, build_experiment
from fedml_dapper.fleet import Demand, demands, find_device
from fedml_dapper.fleet.demand import Work

from .conftest import FOOTPRINTS, made_up_diagnosis
from .test_queue import tiny_cells

NEEDS = Needs(
    network="any",
    family="convolutions",
    levels=tuple(
        LevelNeed(
            demand=Demand(level, ratio, memory, (Work(2, (1_000_000, 500_000)),), 10, 10), num_samples=100
        )
        for level, ratio, memory in ((1, 0.0, 30_000_000), (2, 0.4, 20_000_000))
    ),
)  # fmt: skip


def needing(store: Any, label: str, seed: int) -> None:
    folder = store.cell(label, seed, [50 + seed, 60, 55], validation=[1, 2, 3])
    made_up_diagnosis(False).model_copy(update={"needs": NEEDS}).save(folder / DIAGNOSIS_NAME)


def test_they_are_those_of_the_method_and_of_the_clients_samples() -> None:
    [cell] = tiny_cells(rounds=1, methods=("heterofl",))
    experiment = build_experiment(cell.settings)
    found = Needs.of(experiment)
    assert tuple(one.demand for one in found.levels) == demands(experiment.method)
    of_level = [profile.num_samples for profile in experiment.profiles if profile.level == 2]
    assert found.levels[1].num_samples == sum(of_level) / len(of_level)
    assert found.macs_on(7)[2] == found.levels[1].demand.round_macs * 7
    assert Needs.model_validate_json(found.model_dump_json()) == found


def test_seconds_are_those_of_every_network_of_a_step() -> None:
    device = find_device("raspberry_pi_4")
    speed, _ = device.speed_for("any", "convolutions")
    assert NEEDS.seconds_on(device, 70)[1] == pytest.approx(
        70 * 2 * (speed.seconds(1_000_000) + speed.seconds(500_000))
    )


def test_a_bench_says_what_each_level_needs_and_how_long_it_takes_where(store: Any) -> None:
    folder = store.bench(["FedAvg", "Ours"], seeds=(1, 2), device="raspberry_pi_4")
    for seed in (1, 2):
        needing(store, "Ours", seed)
        store.cell("FedAvg", seed, [50, 60, 55], validation=[1, 2, 3], diagnosed=True)  # of an earlier version
    tables = build_tables(load_results(folder))
    [row] = tables.needs
    assert (row.label, row.memory_bytes) == ("Ours", {1: 30_000_000, 2: 20_000_000})
    assert tables.needs_samples == 60  # of every client, whatever those of a level have in the first seed
    assert row.macs == pytest.approx({1: 60 * 3e6, 2: 60 * 3e6})
    assert row.seconds == NEEDS.seconds_on(find_device("raspberry_pi_4"), 60)
    page = write_bench_report(folder).read_text()
    assert "<h2>What a client of each level needs</h2>" in page
    assert "<strong>raspberry_pi_4</strong>" in page
    assert "Each on 60 samples, the mean of all clients." in page


def test_a_level_has_a_ratio_where_all_variants_have_the_same(store: Any) -> None:
    """Ratios that were solved for differ from method to method, and levels stand there whoever was diagnosed."""
    folder = store.bench(["FedAvg", "Ours"], seeds=(1,))
    store.cell("FedAvg", 1, [50, 60, 55], validation=[1, 2, 3], devices=[30, 40, 50])
    store.cell(
        "Ours", 1, [50, 60, 55], validation=[1, 2, 3], footprints=(FOOTPRINTS[0], solved(FOOTPRINTS[1]), FOOTPRINTS[2])
    )
    page = write_bench_report(folder).read_text()
    assert "level 1<small>ratio 0</small>" in page
    assert "level 2</th>" in page
    assert "level 3<small>ratio 0.8</small>" in page


def solved(footprint: LevelFootprint) -> LevelFootprint:
    return footprint.model_copy(update={"ratio": 0.31})


def test_differences_have_p_values_for_all_comparisons(store: Any) -> None:
    folder = store.bench(["FedAvg", "Ours", "Other"], seeds=(1, 2, 3))
    for seed, ours, other in ((1, 51, 52), (2, 62, 58), (3, 73, 71)):
        base = 40 + 10 * seed
        for label, value in (("FedAvg", base), ("Ours", ours), ("Other", other)):
            store.cell(label, seed, [value, value], validation=[value, value], planned=2)
    tables = build_tables(load_results(folder))
    found = {row.label: row.adjusted_p for row in tables.honest.rows}
    assert found["FedAvg"] is None
    assert found["Ours"] == pytest.approx(2 * 0.0741799, rel=1e-4)  # the smaller of two counts twice
    assert found["Other"] == pytest.approx(0.80755, rel=1e-4)  # differences 2, -2 and 1: t = 0.27735
    assert "<small>p 0.15</small>" in write_bench_report(folder).read_text()


def test_the_budgets_of_all_suites_are_the_same_grid() -> None:
    names = [name for name in bench_names() if name.startswith("budgets")]
    assert names == ["budgets", "budgets_cifar", "budgets_digits", "budgets_office"]
    first = load_bench("budgets")
    for name in names:
        bench = load_bench(name)
        assert bench.variants == first.variants
        assert [profile.seeds for profile in bench.profiles.values()] == [(11, 12, 13, 14, 15)] * 2
        for profile in bench.profiles:
            chosen = cells(bench, profile, seeds=[11])
            assert {cell.settings.model_args.norm for cell in chosen} == {"standardised"}
            assert all(cell.settings.dapper_args.evaluation.devices for cell in chosen)
