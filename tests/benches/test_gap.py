from __future__ import annotations

import pytest
from pydantic import ValidationError

from fedml_dapper.benches.bench_report import write_bench_report
from fedml_dapper.benches.claims import claims
from fedml_dapper.benches.gap import gap_rows
from fedml_dapper.benches.grid import Gap
from fedml_dapper.benches.results import load_results
from fedml_dapper.benches.tables import build_tables

GAP = {"floor": "Small", "ceiling": "FedAvg"}


def test_shares_by_hand_over_the_seeds_of_all_three():
    values = {"Small": {1: 40.0, 2: 42.0}, "FedAvg": {1: 46.0, 2: 46.0}, "Ours": {1: 43.0, 2: 46.0, 3: 99.0}}
    ceiling, ours = gap_rows(Gap(**GAP), values)
    assert (ceiling.label, ceiling.gain.mean, ceiling.share) == ("FedAvg", 5.0, None)
    assert (ours.gain.mean, ours.gain.n) == (3.5, 2)
    assert ours.share.mean == pytest.approx(3.5 / 5)


def test_where_size_does_not_pay_nothing_is_divided():
    values = {"Small": {1: 46.0}, "FedAvg": {1: 44.0}, "Ours": {1: 47.0}}
    assert [row.share for row in gap_rows(Gap(**GAP), values)] == [None, None]
    assert gap_rows(Gap(**GAP), {"Ours": {1: 47.0}}) == ()


def test_a_gap_that_may_be_none_is_not_shared_out(store):
    folder = store.bench(["FedAvg", "Small", "Ours"], seeds=(1, 2), gap=GAP)
    for seed, fedavg in ((1, 48), (2, 41)):
        for label, top in (("FedAvg", fedavg), ("Small", 44), ("Ours", 47)):
            store.cell(label, seed, [10, 20, top], validation=[1, 2, 3])
    results = load_results(folder)
    said = " ".join(claims(results, build_tables(results)))
    assert "Size is not shown to pay here: FedAvg minus Small is 0.5 points (-44.0 to 45.0)" in said
    assert "as a share" not in said


@pytest.mark.parametrize(
    ("by_seed", "says"),
    [
        (((1, 42), (2, 45)), "Size is not shown to pay here: FedAvg minus Small is -0.5 points (-19.6 to 18.6)"),
        (((1, 41), (2, 41)), "Size does not pay here: FedAvg is 3.0 points behind Small."),
        (((1, 41),), "Size does not pay here: FedAvg is 3.0 points behind Small, by one seed alone."),
        (((1, 46),), "Size is worth 2.0 points here (FedAvg minus Small, by one seed alone)."),
    ],
)
def test_chance_is_told_from_what_seeds_show(store, by_seed, says):
    folder = store.bench(["FedAvg", "Small", "Ours"], seeds=[seed for seed, _ in by_seed], gap=GAP)
    for seed, fedavg in by_seed:
        for label, top in (("FedAvg", fedavg), ("Small", 44), ("Ours", 47)):
            store.cell(label, seed, [10, 20, top], validation=[1, 2, 3])
    results = load_results(folder)
    assert says in " ".join(claims(results, build_tables(results)))


@pytest.mark.nightly
def test_page_and_claims_say_what_is_recovered(store):
    folder = store.bench(["FedAvg", "Small", "Ours", "Worse"], seeds=(1, 2), gap=GAP)
    for seed in (1, 2):
        for label, top in (("FedAvg", 46), ("Small", 40), ("Ours", 43), ("Worse", 37)):
            store.cell(label, seed, [10, 20, top + seed], validation=[1, 2, 3])
    results = load_results(folder)
    said = " ".join(claims(results, build_tables(results)))
    assert "Size is worth 6.0 points here (FedAvg minus Small)." in said
    assert "Ours 0.50; Worse -0.50" in said
    page = write_bench_report(folder).read_text(encoding="utf-8")
    assert "share of the gap recovered" in page
    assert "0.50" in page


def test_who_has_fewer_seeds_is_told_apart_and_never_the_best(store):
    folder = store.bench(["FedAvg", "Small", "Ours"], seeds=(1, 2), gap=GAP)
    for seed in (1, 2):
        store.cell("FedAvg", seed, [46], validation=[1])
        store.cell("Small", seed, [40], validation=[1])
    store.cell("Ours", 1, [47], validation=[1])
    tables = build_tables(load_results(folder))
    assert any("Ours 1.17 (1 of 2 seeds)." in line for line in claims(load_results(folder), tables))
    assert tables.best.highest("global", None) == 46


def test_a_gap_between_variants_that_are_not_there_is_refused(store):
    with pytest.raises(ValidationError, match=r"gap\.floor `Smal` is none of the variants; did you mean `Small`"):
        store.bench(["FedAvg", "Small"], gap={"floor": "Smal", "ceiling": "FedAvg"})
