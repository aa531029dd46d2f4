import lzma

import pytest

from fedml_dapper.benches.cell import is_finished
from fedml_dapper.benches.diagnosis import DIAGNOSIS_NAME
from fedml_dapper.benches.grid import Variant
from fedml_dapper.benches.results import load_results
from fedml_dapper.errors import DataError

from .conftest import run_record


def test_finished_cells_are_read_with_their_summaries(store):
    folder = store.bench(["Ours", "FedAvg"], rounds=3)
    store.cell("Ours", 2, [10, 40, 30], diagnosed=True)

    results = load_results(folder)

    cell = results["Ours"].cells[2]
    assert (cell.run.suite, len(cell.rounds), cell.summary.global_accuracy.best) == ("digits", 3, 40)
    assert len(cell.diagnosis.levels) == 3
    assert [variant.label for variant in results.finished] == ["Ours"]


def test_missing_cut_short_and_damaged_cells_are_open_and_say_why(store):
    folder = store.bench(["Ours", "FedAvg"], seeds=(1, 2))
    store.cell("Ours", 1, [10, 20], planned=3)
    ledger = store.cell("FedAvg", 1, [10, 20, 30]) / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"record":"round"', '"record":"raund"'))
    store.cell("FedAvg", 2, [10, 20, 30])

    results = load_results(folder)

    problems = {(cell.variant, cell.seed): cell.problem for cell in results.open}
    assert problems.pop(("FedAvg", 1)).endswith("line 2 is not the record of a round; was the file edited?")
    assert problems == {("Ours", 1): "2 of 3 rounds", ("Ours", 2): "not started"}
    assert [len(variant.cells) for variant in results.variants] == [0, 1]


def test_cells_without_a_usable_diagnosis_count_as_finished(store):
    folder = store.bench(["Ours"], seeds=(1, 2, 3))
    store.cell("Ours", 1, [10, 20, 30], diagnosed=True)
    store.cell("Ours", 2, [10, 20, 30])
    (store.cell("Ours", 3, [10, 20, 30]) / DIAGNOSIS_NAME).write_text("{}")

    results = load_results(folder)

    assert set(results["Ours"].cells) == {1, 2, 3}
    assert [seed for seed, cell in results["Ours"].cells.items() if cell.diagnosis] == [1]
    assert [cell.seed for cell in results.undiagnosed] == [2, 3]


def test_a_kept_cell_is_read_where_its_files_lie_compressed(store):
    folder = store.bench(["Ours"], seeds=(1,))
    cell = store.cell("Ours", 1, [10, 20, 30], diagnosed=True)
    for name in ("ledger.jsonl", DIAGNOSIS_NAME):
        (cell / f"{name}.xz").write_bytes(lzma.compress((cell / name).read_bytes()))
        (cell / name).unlink()
    assert is_finished(cell)
    [kept] = load_results(folder)["Ours"].cells.values()
    assert kept.summary.global_accuracy.best == 30
    assert kept.diagnosis is not None


def test_no_bench_is_said_so(tmp_path):
    with pytest.raises(DataError, match=r"no bench in .*cannot read bench\.json"):
        load_results(tmp_path)


@pytest.mark.parametrize("suite", ["digits", "digits (subset)"])
@pytest.mark.parametrize("profile", ["small", "paper"])
@pytest.mark.parametrize("overrides", [{}, {"train_args": {"comm_round": 2}}])
def test_only_the_papers_settings_on_the_papers_data_are_the_papers(store, suite, profile, overrides):
    folder = store.bench(["Ours"], profiles={profile: {"seeds": (1,), "note": "as it is"}}, overrides=overrides)
    store.cell("Ours", 1, [10, 20, 30], suite=suite)

    assert load_results(folder).is_papers == ((suite, profile, overrides) == ("digits", "paper", {}))


def point(series: str, x: float | None, panel: str = "rho") -> Variant:
    return Variant(label=f"{series} {panel} {x}", method="fedavg", panel=panel, series=series, x=x)


def counterparts(store, variants: list[Variant]) -> dict[str, str | None]:
    results = load_results(store.bench(variants))
    return {variant.label: results.counterpart(variant) for variant in variants}


def test_methods_and_settings_of_one_method_are_compared_with_the_reference(store):
    assert counterparts(store, [Variant(label="A", method="a"), Variant(label="B", method="b")]) == {
        "A": None,
        "B": "A",
    }
    sweep = [point("Ours", 0.2), point("Ours", 0.4), point("Ours", 1.0, "gamma")]
    assert counterparts(store, sweep) == {
        "Ours rho 0.2": None, "Ours rho 0.4": "Ours rho 0.2", "Ours gamma 1.0": "Ours rho 0.2"
    }  # fmt: skip


def test_several_series_are_compared_at_the_same_place(store):
    found = counterparts(store, [point("Ours", 0.2), point("FedMP", 0.2), point("Ours", 0.4), point("FedMP", 0.4)])
    assert found == {
        "Ours rho 0.2": None, "FedMP rho 0.2": "Ours rho 0.2", "Ours rho 0.4": None, "FedMP rho 0.4": "Ours rho 0.4"
    }  # fmt: skip
    panels = [point(name, None, panel) for name in ("Ours", "FedBN") for panel in ("dslr", "webcam")]
    assert counterparts(store, panels) == {
        "Ours dslr None": None, "Ours webcam None": None,
        "FedBN dslr None": "Ours dslr None", "FedBN webcam None": "Ours webcam None",
    }  # fmt: skip


def test_runs_on_other_data_than_the_reference_of_their_seed_are_open_and_say_why(store):
    folder = store.bench(["Ours", "FedAvg", "Other"], seeds=(1, 2), reference="FedAvg")
    few = [client.model_copy(update={"num_samples": 20}) for client in run_record("Ours", 1, 3).clients]
    for seed in (1, 2):
        store.cell("Ours", seed, [10, 20, 30], clients=few if seed == 1 else run_record("Ours", 1, 3).clients)
        store.cell("FedAvg", seed, [10, 20, 30])
        store.cell("Other", seed, [10, 20, 30], suite="digits (subset)" if seed == 2 else "digits")

    results = load_results(folder)

    assert {variant.label: [*variant.cells] for variant in results.variants} == {
        "Ours": [2], "FedAvg": [1, 2], "Other": [1]
    }  # fmt: skip
    ours, other = (cell.problem for cell in results.open)
    assert ours == (
        "trained on other data than FedAvg with this seed: digits (60 samples), there digits (180 samples);"
        " delete its cell and run the bench once more"
    )
    assert "FedAvg with this seed: digits (subset) (180 samples), there" in other


def test_data_that_settings_tell_apart_may_differ(store):
    folder = store.bench(["FedAvg", "Few"], seeds=(1,))
    store.cell("FedAvg", 1, [10, 20, 30])
    record = run_record("Few", 1, 3)
    settings = {**record.settings, "data_args": {**record.settings["data_args"], "client_share": 0.1}}
    store.cell("Few", 1, [10, 20, 30], settings=settings, suite="digits, few")
    assert not load_results(folder).open
