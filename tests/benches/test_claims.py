import json
import re

import pytest

from fedml_dapper.benches.bench_report import write_bench_report
from fedml_dapper.benches.bench_terminal import terminal_table
from fedml_dapper.benches.claims import claims
from fedml_dapper.benches.grid import Published, Variant
from fedml_dapper.benches.results import load_results
from fedml_dapper.benches.tables import build_tables


def said(folder) -> tuple[str, ...]:
    results = load_results(folder)
    return claims(results, build_tables(results))


def test_ahead_of_all(three_methods):
    first, second, *_ = said(three_methods([60, 70, 80], [55, 65, 75], [50, 61, 71]))

    assert first == "Ours is ahead of all 2 others on the mean over seeds."
    assert second == (
        "The paired 95 % interval of the difference excludes 0 for 2 of 2. Behind Ours: FedAvg; Other."
        " Corrected for all 2 comparisons, p is below 0.05 for all of these."
    )


def test_behind_comes_first_and_names_the_best(three_methods):
    first, second, *_ = said(three_methods([60, 70, 80], [61, 71, 81.1], [63.5, 73.4, 83.6]))

    assert (
        first == "Ours is not ahead: on the mean over seeds it is behind all 2 others, most behind Other (3.5 points)."
    )
    assert "for 2 of 2. Ahead of Ours: FedAvg; Other. Corrected" in second


def test_ahead_of_some(three_methods):
    first, second, *_ = said(three_methods([60, 70, 80], [55, 65.1, 75], [62, 72.1, 82]))

    assert first == (
        "Ours is not ahead of all others: on the mean over seeds it is behind 1 of 2 others, Other"
        " (2.0 points), and ahead of 1."
    )
    assert "for 2 of 2. Ahead of Ours: Other. Behind Ours: FedAvg. Corrected" in second


def test_differences_within_noise_are_called_so(three_methods):
    first, second, *_ = said(three_methods([60, 70, 80], [55, 75, 75], [62, 60, 80]))

    assert first.startswith("Ours is ahead of all")
    assert second == "No difference's paired 95 % interval excludes 0: all are within what seeds do by chance."


def test_some_clear_some_not(three_methods):
    _, second, *_ = said(three_methods([60, 70, 80], [55, 65.1, 75], [62, 60, 80]))

    assert second.endswith(
        "for 1 of 2. Behind Ours: FedAvg. Corrected for all 2 comparisons, p is below 0.05 for this one; for the others"
        " the seeds do not settle it."
    )


def test_what_is_clear_alone_may_not_be_among_many(three_methods):
    _, second, *_ = said(three_methods([60, 70, 80], [55, 62, 69], [62, 60, 80]))  # p is 0.044, and 0.088 of two

    assert second.endswith(
        "for 1 of 2. Behind Ours: FedAvg. Corrected for all 2 comparisons, p is below 0.05 for none of them."
    )


def test_level_with_the_only_other(store):
    folder = store.bench(["Ours", "FedAvg"], seeds=(1,))
    for label in ("Ours", "FedAvg"):
        store.cell(label, 1, [50, 60, 60])
    assert said(folder)[0] == "Ours is level with the only other on the mean over seeds."


def test_a_run_that_diverged_is_said_before_all_else(store):
    folder = store.bench(["FedAvg", "Ours"], seeds=(1, 2, 3))
    for seed in (1, 2, 3):
        store.cell("FedAvg", seed, [50, 60 + seed, 60])
        cell = store.cell("Ours", seed, [50, 70, 5])
        if seed > 1:
            lines = (cell / "ledger.jsonl").read_text().splitlines()
            last = json.loads(lines[3]) | {"model_is_finite": False, "not_finite": [0]}
            (cell / "ledger.jsonl").write_text("\n".join([*lines[:3], json.dumps(last), *lines[4:]]) + "\n")
    first, second, *_ = said(folder)
    assert first == "NOT FINITE at some time, and compared all the same by the rounds that were: Ours (seeds 2, 3)."
    assert second.startswith("FedAvg is")
    assert "Ours, seed 2: In round 3, client 0 sent values" in write_bench_report(folder).read_text()
    assert "NOT FINITE" in str(terminal_table(load_results(folder)).caption)


def test_behind_the_only_other(store):
    folder = store.bench(["Ours", "FedAvg"], seeds=(1,))
    store.cell("Ours", 1, [50, 60, 60])
    store.cell("FedAvg", 1, [50, 60, 75])

    first, *_ = said(folder)

    assert first == "Ours is not ahead: on the mean over seeds it is behind the only other, FedAvg (5.0 points)."


def test_one_seed_supports_no_claim(store):
    folder = store.bench(["Ours", "FedAvg"], seeds=(1,))
    store.cell("Ours", 1, [50, 60, 70])
    store.cell("FedAvg", 1, [50, 60, 60])

    first, second, *_ = said(folder)

    assert first == "Ours is ahead of the only other on the mean over seeds."
    assert second == "With 1 seed there are no intervals: nothing tells these differences from chance."


def test_only_shared_seeds_count(store):
    folder = store.bench(["Ours", "FedAvg"], seeds=(1, 2))
    store.cell("Ours", 1, [60, 60, 60])
    store.cell("FedAvg", 1, [50, 50, 50])
    store.cell("FedAvg", 2, [90, 90, 90])

    assert said(folder)[0].startswith("Ours is ahead of the only other")


def test_the_same_runs_under_another_name_are_no_comparison(store):
    folder = store.bench(["Ours", "Twin", "FedAvg"], seeds=(1,), same_as={"Twin": "Ours"})
    store.cell("Ours", 1, [60, 60, 60])
    store.cell("FedAvg", 1, [50, 50, 50])

    assert said(folder)[0] == "Ours is ahead of the only other on the mean over seeds."


def test_nothing_to_compare(store):
    folder = store.bench(["Ours", "FedAvg"], seeds=(1, 2))
    assert said(folder) == ("No run of Ours is finished, so nothing is compared with it yet.",)
    store.cell("Ours", 1, [60, 60, 60])
    store.cell("FedAvg", 2, [60, 60, 60])
    assert said(folder) == ("No other variant is finished with a seed of Ours's, so nothing is compared yet.",)


def test_published_order_is_counted_and_choosing_is_priced(store):
    def variant(label: str, mean: float) -> Variant:
        return Variant(label=label, method="m", published={"global": Published(mean=mean)})

    folder = store.bench([variant("Ours", 70), variant("A", 65), variant("B", 75)], seeds=(1,))
    for label, last in (("Ours", 58), ("A", 56), ("B", 55)):
        store.cell(label, 1, [50, 60, last], validation=[1, 2, 3])

    sentences = said(folder)

    assert "In the published numbers Ours is ahead in 1 of these 2 comparisons." in sentences
    assert any(re.search(r"raises the means by 2\.0 to 5\.0 points", sentence) for sentence in sentences)


@pytest.mark.parametrize(("theirs", "says"), [(65, "is ahead"), (75, "is not ahead")])
def test_one_published_comparison_is_told_as_one(store, theirs, says):
    ours, other = (
        Variant(label=label, method="m", published={"global": Published(mean=mean)})
        for label, mean in (("Ours", 70), ("A", theirs))
    )
    folder = store.bench([ours, other], seeds=(1,))
    for label in ("Ours", "A"):
        store.cell(label, 1, [50, 60, 60])

    assert f"In the published numbers Ours {says} in this one comparison." in said(folder)


def test_costs_are_relative_to_fedavg(three_methods):
    last = said(three_methods([60, 70, 80], [55, 65, 75], [50, 61, 71]))[-1]

    assert last.startswith("Per round a client of Ours sends 100.0\xa0% and receives 100.0\xa0% of FedAvg's bytes")


def test_series_are_compared_at_the_same_place_only(store):
    def point(series: str, x: float) -> Variant:
        return Variant(label=f"{series} {x}", method="m", panel="rho", series=series, x=x)

    folder = store.bench([point(name, x) for name in ("Ours", "FedMP") for x in (0.2, 0.8)], seeds=(1,))
    for label, accuracy in (("Ours 0.2", 60), ("Ours 0.8", 90), ("FedMP 0.2", 50), ("FedMP 0.8", 70)):
        store.cell(label, 1, [accuracy] * 3)

    assert said(folder)[0] == (
        "Ours is ahead of all 2 results of others under the same conditions on the mean over seeds."
    )
