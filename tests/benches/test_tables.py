import csv
import json

import pytest

from fedml_dapper.benches.bench_report import write_bench_report
from fedml_dapper.benches.grid import Published, Variant
from fedml_dapper.benches.results import load_results
from fedml_dapper.benches.tables import Tables, build_tables, cost_base, write_csv


def test_best_takes_every_column_in_its_own_round_and_honest_all_in_the_validated_one(store):
    folder = store.bench(["Ours"], seeds=(1, 2))
    store.cell("Ours", 1, [50, 60, 55], validation=[50, 52, 58])
    store.cell("Ours", 2, [50, 70, 57], validation=[50, 52, 58])

    tables = build_tables(load_results(folder))

    best, honest = tables.best.row("Ours").entries, tables.honest.row("Ours").entries
    assert tables.columns == ("global", "mnist", "usps")
    assert best["global"].values == {1: 60, 2: 70}
    assert honest["global"].values == {1: 55, 2: 57}
    assert honest["mnist"].estimate.mean == 58
    assert tables.honest.rule == "round chosen on validation images"


def test_without_validation_images_nothing_is_chosen(store):
    folder = store.bench(["Ours"], seeds=(1,), rounds=6)
    store.cell("Ours", 1, [90, 10, 20, 30, 40, 50])

    tables = build_tables(load_results(folder))

    assert tables.honest.row("Ours").entries["global"].values == {1: 30}
    assert tables.honest.rule == "mean of the last five tested rounds"


def test_unfinished_cells_enter_no_table(store):
    folder = store.bench(["Ours", "FedAvg"], seeds=(1, 2))
    for seed in (1, 2):
        store.cell("Ours", seed, [50, 60, 55])
    store.cell("FedAvg", 1, [50, 60, 55])
    store.cell("FedAvg", 2, [99, 99], planned=3)

    tables = build_tables(load_results(folder))

    assert tables.best.row("FedAvg").entries["global"].values == {1: 60}
    assert tables.best.row("FedAvg").planned_seeds == 2
    assert [(cell.variant, cell.seed) for cell in tables.missing] == [("FedAvg", 2)]
    assert tables.honest.row("FedAvg").entries["global"].difference.n == 1


def test_personal_columns_come_from_the_clients_own_models(store):
    folder = store.bench(["Ours"], seeds=(1,), statistic="personal")
    store.cell("Ours", 1, [1, 1, 1], personal=[50, 70, 60], validation=[10, 20, 30])

    tables = build_tables(load_results(folder))

    assert tables.headline == "average"
    best, honest = tables.best.row("Ours").entries, tables.honest.row("Ours").entries
    assert {key: entry.estimate.mean for key, entry in best.items()} == {"average": 70, "overall": 71, "worst": 65}
    assert {key: entry.estimate.mean for key, entry in honest.items()} == {"average": 60, "overall": 61, "worst": 55}


def test_unseen_columns(store):
    folder = store.bench(["Ours"], seeds=(1,), statistic="unseen")
    store.cell("Ours", 1, [50, 60, 70], unseen=[40, 30, 20], validation=[10, 30, 20], unseen_domain="svhn")

    tables = build_tables(load_results(folder))

    assert tables.best.row("Ours").entries["unseen"].values == {1: 40}
    assert tables.honest.row("Ours").entries["unseen"].values == {1: 30}
    assert tables.honest.row("Ours").entries["global"].values == {1: 60}


def test_what_was_not_measured_is_absent(store):
    folder = store.bench(["Ours"], seeds=(1,), statistic="personal")
    store.cell("Ours", 1, [50, 60, 70])

    assert build_tables(load_results(folder)).best.row("Ours").entries == {}


def test_published_numbers_stand_beside_their_column(store):
    published = {"global": Published(mean=64.5, std=1.1), "usps": Published(mean=70.0)}
    folder = store.bench([Variant(label="Ours", method="ours", published=published)], seeds=(1,))
    store.cell("Ours", 1, [50, 60, 70])

    entries = build_tables(load_results(folder)).best.row("Ours").entries

    assert entries["global"].published.mean == 64.5
    assert entries["usps"].published.std is None
    assert entries["mnist"].published is None


def test_costs_are_means_over_clients_and_the_ends_of_the_levels(store):
    folder = store.bench(["Ours", "FedAvg"], seeds=(1,))
    store.cell("Ours", 1, [50, 60, 70])
    store.cell("FedAvg", 1, [50, 60, 70])
    results = load_results(folder)
    tables = build_tables(results)

    ours = tables.cost[0]
    assert (ours.bytes_up, ours.bytes_down, ours.seconds) == (10_000_000, 16_000_000, 1.5)
    assert (ours.weakest.params, ours.strongest.params) == (1_000_000, 4_000_000)
    assert cost_base(tables, results).label == "FedAvg"


def test_a_level_that_never_trains_costs_nothing(store):
    folder = store.bench(["Ours"], seeds=(1,))
    ledger = store.cell("Ours", 1, [50, 60, 70]) / "ledger.jsonl"
    run, *rounds = (json.loads(line) for line in ledger.read_text().splitlines())
    for record in rounds:
        if "clients" in record:
            record["clients"] = [client for client in record["clients"] if client["level"] < 3]
    ledger.write_text("".join(json.dumps(record) + "\n" for record in (run, *rounds)))

    [ours] = build_tables(load_results(folder)).cost
    assert (ours.weakest.level, ours.strongest.level) == (2, 1)


def test_levels_are_means_over_clients_then_seeds(store):
    folder = store.bench(["Ours"], seeds=(1, 2))
    store.cell("Ours", 1, [50, 60, 70], diagnosed=True)
    store.cell("Ours", 2, [50, 60, 70])

    rows = build_tables(load_results(folder)).levels

    assert [(row.level, row.before.mean, row.after.mean, row.after.n) for row in rows] == [
        (1, 50, 60, 1), (2, 45, 55, 1), (3, 40, 50, 1)
    ]  # fmt: skip


def test_submodels_are_those_of_clients_that_are_sent_slim_models(store):
    folder = store.bench(["Ours", "Slim"], seeds=(1, 2))
    for seed in (1, 2):
        store.cell("Ours", seed, [50, 60, 70], diagnosed=True)
    store.cell("Slim", 1, [50, 60, 70], diagnosed=True, sent_slim=True)
    store.cell("Slim", 2, [50, 60, 70])

    [row] = build_tables(load_results(folder)).submodels

    assert row.label == "Slim"
    assert {level: one.mean for level, one in row.levels.items()} == {1: 30, 2: 20, 3: 30}
    assert row.average.mean == pytest.approx(80 / 3)
    assert (row.worst.mean, row.worst.n) == (20, 1)


@pytest.mark.nightly
def test_what_devices_get_is_read_in_the_chosen_round(store):
    folder = store.bench(["Ours", "Plain"], seeds=(1, 2))
    for seed in (1, 2):
        store.cell("Ours", seed, [50, 60, 70], validation=[40, 90, 60], devices=[30, 40 + seed, 60])
        store.cell("Plain", seed, [50, 60, 70], validation=[40, 90, 60])

    results = load_results(folder)
    tables = build_tables(results)

    assert tables.columns == ("global", "devices, own statistics", "mnist", "usps")
    assert tables.honest.row("Ours").entries["devices, own statistics"].values == {1: 61, 2: 62}
    assert tables.best.row("Ours").entries["devices, own statistics"].values == {1: 80, 2: 80}
    assert "devices, own statistics" not in tables.honest.row("Plain").entries
    [row] = tables.devices
    assert {level: one.mean for level, one in row.sent.items()} == {1: 41.5, 2: 31.5}
    assert {level: one.mean for level, one in row.own_statistics.items()} == {1: 61.5, 2: 51.5, 3: 5}
    page = write_bench_report(folder).read_text()
    assert "<h2>What each device gets</h2>" in page
    assert "<small>61.5" in page


def test_without_a_chosen_round_what_devices_get_is_the_mean_of_the_rounds_that_are_read(store):
    folder = store.bench(["Ours"], seeds=(1, 2), rounds=6)
    for seed in (1, 2):
        store.cell("Ours", seed, [90, 10, 20, 30, 40, 50], devices=[90, 10, 20, 30, 40, 50 + 10 * seed])

    tables = build_tables(load_results(folder))

    assert tables.honest.row("Ours").entries["devices, own statistics"].values == {1: 52, 2: 54}
    [row] = tables.devices
    assert {level: one.mean for level, one in row.sent.items()} == {1: 33, 2: 23}


def test_variants_that_are_the_same_runs_are_recognised(store):
    folder = store.bench(["Ours", "Twin", "Other"], seeds=(1,), same_as={"Twin": "Ours"})
    store.cell("Ours", 1, [50, 60, 70])
    store.cell("Other", 1, [50, 60, 70])

    rows = build_tables(load_results(folder)).best.rows

    assert {row.label: row.same_runs for row in rows} == {"Ours": False, "Twin": True, "Other": False}


def test_tables_can_be_rebuilt_from_their_files(store, tmp_path):
    published = {"global": Published(mean=64.5, std=1.1)}
    folder = store.bench(["Ours", Variant(label="FedAvg", method="fedavg", published=published)], seeds=(1, 2))
    for label, best in (("Ours", 60), ("FedAvg", 61)):
        for seed in (1, 2):
            store.cell(label, seed, [50, best + seed, 55])
    tables = build_tables(load_results(folder))

    assert Tables.model_validate(json.loads(tables.model_dump_json())) == tables
    write_csv(tmp_path / "tables.csv", tables)
    with (tmp_path / "tables.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 3
    [row] = [r for r in rows if (r["table"], r["variant"], r["column"]) == ("best", "FedAvg", "global")]
    assert (row["seeds"], float(row["mean"]), float(row["published_mean"])) == ("2", 62.5, 64.5)
    assert (row["counterpart"], row["pairs"], float(row["difference"])) == ("Ours", "2", 1)
    assert float(row["low"]) == pytest.approx(62.5 - 12.7062 * 0.5, abs=1e-3)
