from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fedml_dapper.benches.cell import is_finished
from fedml_dapper.benches.grid import Cell, Manifest, bench_names, cells, folder_name, load_bench, with_entrants
from fedml_dapper.benches.results import read_manifest
from fedml_dapper.config import SHIPPED, Settings, load_settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.methods import METHODS

WriteBench = Callable[..., str]


@pytest.fixture
def write_bench(tmp_path: Path) -> WriteBench:
    def write(**changes: Any) -> str:
        values = {
            "title": "a bench",
            "source": "nowhere",
            "experiment": "digits_offline.yaml",
            "profiles": {
                "small": {"seeds": [1, 2], "note": "two rounds", "settings": {"train_args": {"comm_round": 2}}}
            },
            "reference": "FedAvg",
            "variants": [{"label": "FedAvg", "method": "fedavg"}, {"label": "DapperFL", "method": "dapperfl"}],
        }
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump(values | changes))
        return str(path)

    return write


def only(chosen: list[Cell], label: str, seed: int) -> Cell:
    [cell] = [cell for cell in chosen if (cell.variant.label, cell.seed) == (label, seed)]
    return cell


@pytest.mark.parametrize("name", bench_names())
def test_every_shipped_bench_has_valid_cells_in_every_profile(name: str) -> None:
    bench = load_bench(name)
    assert bench.profiles.keys() == {"paper", "small"}
    for profile in bench.profiles:
        for cell in cells(bench, profile):
            assert cell.variant.method in METHODS
            METHODS[cell.variant.method].check_params(cell.settings.dapper_args.params.get(cell.variant.method, {}))


def test_every_table_and_figure_has_a_bench() -> None:
    wanted = {"table1", "table2", "table3", "table5", "table6", "fig3", "fig4", "fig5", "fig6", "appendix_e"}
    assert wanted | {f"fdse_table{n}" for n in (1, 2)} | {f"fedcmd_table{n}" for n in (6, 7, 8, 9)} <= set(
        bench_names()
    )


@pytest.mark.parametrize(
    ("bench", "label", "params", "rate"),
    [
        ("fdse_table1", "Ditto", {"mu": 0.01}, 0.1),
        ("fdse_table1", "FedHEAL", {"tau": 0.2}, 0.1),
        ("fdse_table1", "FDSE", {"lambda_": 0.05, "tau": 0.5, "beta": 0.05}, 0.1),
        ("fdse_table2", "FDSE, not adapted, dslr unseen", {"beta": 0.05, "adapt_epochs": 0}, 0.1),
        ("fdse_table2", "FDSE, dslr unseen", {"beta": 0.05}, 0.1),
        ("fdse_table3", "w/o B", {"lambda_": 0.05, "beta": 0.05, "similarity": False}, 0.1),
        ("fdse_table1_pacs", "FedAvg", {}, 0.1),
        ("fdse_table1_pacs", "FedBN", {}, 0.1),
        ("fdse_table1_pacs", "FedHEAL", {"tau": 0.1}, 0.1),
        ("fdse_table1_pacs", "Ditto", {"mu": 0.0001}, 0.05),
        ("fdse_table1_pacs", "FDSE", {"lambda_": 0.5, "tau": 0.5, "beta": 0.001}, 0.05),
    ],
)
def test_fdse_s_tables_have_the_published_settings(bench: str, label: str, params: dict[str, Any], rate: float) -> None:
    cell = only(cells(load_bench(bench), "paper", seeds=[1]), label, 1)
    method = cell.variant.method
    own = METHODS[method].check_params(cell.settings.dapper_args.params.get(method, {})).model_dump()
    assert {name: own[name] for name in params} == params
    assert cell.settings.train_args.learning_rate == rate


def test_a_method_s_own_clipping_and_weights_stand_in_its_file_and_comparisons_have_one_rule_for_all() -> None:
    experiment = SHIPPED / "office_caltech.yaml"
    for method, clipped, weights in (("heterofl", 1, "uniform"), ("fedrolex", 1, "samples"), ("nefl", None, "uniform")):
        alone = load_settings([experiment, SHIPPED / "methods" / f"{method}.yaml"])
        assert (alone.train_args.max_grad_norm, alone.dapper_args.aggregation_weights) == (clipped, weights)
    for name in ("table1", "table2", "table2_drawn", "fig3", "fig3_digits", "slim", "capacity"):
        rows = [cell.settings for cell in cells(load_bench(name), "paper", seeds=[1])]
        assert len({row.train_args.max_grad_norm for row in rows}) == 1
        assert {row.dapper_args.aggregation_weights for row in rows} == {"samples"}


def test_where_sub_models_are_compared_with_one_small_network_all_are_cut_alike() -> None:
    scopes = {
        cell.variant.label: cell.settings.dapper_args.pruning.scope
        for cell in cells(load_bench("capacity"), "small", seeds=[1])
    }
    others = {label for label, scope in scopes.items() if scope != "internal"}
    assert others == {f"{method}, streams too" for method in ("HeteroFL", "FedRolex", "NeFL")}


def test_cells_come_seed_by_seed(write_bench: WriteBench) -> None:
    chosen = cells(load_bench(write_bench()), "small")
    order = [("FedAvg", 1), ("DapperFL", 1), ("FedAvg", 2), ("DapperFL", 2)]
    assert [(cell.variant.label, cell.seed) for cell in chosen] == order
    assert all(cell.settings.common_args.random_seed == cell.seed for cell in chosen)
    assert all(cell.settings.train_args.comm_round == 2 for cell in chosen)


def test_later_layers_lie_over_earlier_ones(write_bench: WriteBench) -> None:
    variant = {
        "label": "FedAvg",
        "method": "fedavg",
        "settings": {"train_args": {"comm_round": 5, "epochs": 3}},
        "profiles": {"small": {"train_args": {"epochs": 4}}},
    }
    [cell] = cells(
        load_bench(write_bench(variants=[variant])), "small", seeds=[7], overrides={"model_args": {"width": 4}}
    )
    assert (cell.settings.train_args.comm_round, cell.settings.train_args.epochs) == (5, 4)
    assert (cell.settings.model_args.width, cell.seed) == (4, 7)


def test_a_layer_over_budgets_keeps_them(write_bench: WriteBench) -> None:
    variant = {
        "label": "FedAvg",
        "method": "fedavg",
        "settings": {"model_args": {"adapter": {"rank": 8}}, "dapper_args": {"levels": [{"rank": 8}, {"rank": 2}]}},
        "profiles": {"small": {"dapper_args": {"levels": {"assignment": "index_mod"}}}},
    }
    [cell] = cells(load_bench(write_bench(variants=[variant])), "small", seeds=[7])
    levels = cell.settings.dapper_args.levels
    assert (levels.assignment, len(levels.budgets or ())) == ("index_mod", 2)


def test_the_same_run_has_the_same_folder_whatever_bench_asks_for_it(write_bench: WriteBench) -> None:
    plain = only(cells(load_bench(write_bench()), "small"), "DapperFL", 1)
    renamed = {
        "label": "other",
        "method": "dapperfl",
        "settings": {"dapper_args": {"params": {"nefl": {"mode": "depth"}}}},
    }
    spelt_out = {**renamed, "settings": {"dapper_args": {"params": {"dapperfl": {"gamma": 0.02}}}}}
    bench = load_bench(write_bench(variants=[renamed, {**spelt_out, "label": "gamma"}], reference="other"))
    assert only(cells(bench, "small", threads=2), "other", 1).folder == plain.folder
    assert only(cells(bench, "small"), "gamma", 1).folder != plain.folder
    for changed in (
        only(cells(bench, "small"), "other", 2),
        only(cells(bench, "small", precision="bf16"), "other", 1),
        only(cells(bench, "small", overrides={"train_args": {"comm_round": 3}}), "other", 1),
    ):
        assert changed.folder != plain.folder


def test_cells_that_benches_share() -> None:
    nine = {cell.folder for cell in cells(load_bench("table2"), "small")}
    assert {cell.folder for cell in cells(load_bench("fig6"), "small")} == nine
    assert len({cell.folder for cell in cells(load_bench("official"), "small")} & nine) == 6  # all but the public code
    drawn = {cell.folder for cell in cells(load_bench("table2_drawn"), "small")}
    assert not drawn & nine
    assert len({cell.folder for cell in cells(load_bench("table3"), "small")} & drawn) == 3  # DapperFL, three seeds


def test_table_2_has_the_domains_that_the_public_code_draws_at_its_default_seed() -> None:
    domains = ["caltech", "amazon", "webcam", "dslr"]
    drawn = np.random.RandomState(1234).choice(domains, 6).tolist()
    for cell in cells(load_bench("table2"), "paper"):
        assert cell.settings.data_args.clients is not None
        assert [client.domain for client in cell.settings.data_args.clients] == drawn + domains


def test_a_bench_cannot_extend_itself(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(ConfigError, match=r"a\.yaml: extends itself by way of a\.yaml; leave one `extends` out"):
        load_bench(str(tmp_path / "a.yaml"))


OWN_METHOD = """
from pydantic import Field

from fedml_dapper.methods import Method, MethodParams


class Params(MethodParams):
    step: float = Field(default=1.0, gt=0)


class Mine(Method[Params]):
    name = "mine"
    Params = Params
"""


@pytest.fixture
def write_method(tmp_path: Path) -> Callable[[str], Path]:
    def write(changes: str = "") -> Path:
        path = tmp_path / "my_method.py"
        path.write_text(OWN_METHOD + changes)
        return path

    return write


def test_a_bench_anywhere_extends_a_shipped_one_by_its_name(tmp_path: Path) -> None:
    for extended in ("budgets_office.yaml", "budgets_office"):
        (tmp_path / "mine.yaml").write_text(f"extends: {extended}\ntitle: mine\n")
        bench = load_bench(str(tmp_path / "mine.yaml"))
        assert (bench.name, bench.title) == ("mine", "mine")
        assert bench.variants == load_bench("budgets_office").variants
    (tmp_path / "budgets_office.yaml").write_text("extends: table2\ntitle: beside\n")
    (tmp_path / "mine.yaml").write_text("extends: budgets_office.yaml\n")
    assert load_bench(str(tmp_path / "mine.yaml")).title == "beside"
    (tmp_path / "mine.yaml").write_text("extends: tabel2.yaml\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml: extends `tabel2\.yaml`: no .*; did you mean `table2`"):
        load_bench(str(tmp_path / "mine.yaml"))


def test_a_variant_s_method_may_be_the_user_s_own_beside_the_bench(
    write_bench: WriteBench, write_method: Callable[[str], Path]
) -> None:
    file = write_method("")
    params = {"dapper_args": {"params": {"mine": {"step": 0.5}}}}
    variants = [
        {"label": "FedAvg", "method": "fedavg"},
        {"label": "Mine", "method": "my_method.py:Mine", "settings": params},
    ]
    [_, cell] = cells(load_bench(write_bench(variants=variants)), "small", seeds=[1])
    assert cell.settings.dapper_args.method == f"{file}:Mine"
    assert cell.settings.dapper_args.params["mine"] == {"step": 0.5}
    folder = cell.folder
    write_method("# another\n")
    [_, changed] = cells(load_bench(write_bench(variants=variants)), "small", seeds=[1])
    assert changed.folder != folder


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ({"method": "fedavgg"}, r"bench mine, A: .*unknown method `fedavgg`; did you mean `fedavg`.*file\.py:Name"),
        ({"method": "mine.py:Mine"}, r"bench mine, A: .*no file mine\.py; looked in "),
        ({"method": "my_method.py:Mein"}, r"bench mine, A: .*my_method\.py has no `Mein`; did you mean `Mine`"),
        (
            {"method": "my_method.py:Mine", "settings": {"dapper_args": {"params": {"mine": {"stp": 1}}}}},
            r"bench mine, A: .*unknown key `stp`.*did you mean `step`",
        ),
        (
            {"method": "dapperfl", "settings": {"dapper_args": {"params": {"dapperfl": {"gama": 1}}}}},
            r"bench mine, A: .*unknown key `gama`.*did you mean `gamma`",
        ),
    ],
)
def test_a_variant_that_cannot_run_is_said_before_anything_runs(
    variant: dict[str, Any], message: str, write_bench: WriteBench, write_method: Callable[[str], Path]
) -> None:
    write_method("")
    with pytest.raises(ConfigError, match=message):
        cells(load_bench(write_bench(variants=[{"label": "A", **variant}], reference="A")), "small", seeds=[1])


def test_an_experiment_may_be_the_user_s_own_beside_the_bench(write_bench: WriteBench, tmp_path: Path) -> None:
    (tmp_path / "faces").mkdir()
    (tmp_path / "experiment.yaml").write_text(
        (SHIPPED / "digits_offline.yaml").read_text().replace("data_args:", "data_args:\n  data_cache_dir: faces", 1)
    )
    [cell] = cells(load_bench(write_bench(experiment="experiment.yaml")), "small", seeds=[1])[:1]
    assert cell.settings.data_args.data_cache_dir == tmp_path / "faces"
    with pytest.raises(ConfigError, match=r"mine\.yaml: experiment `digit\.yaml`: no .*; did you mean `digits\.yaml`"):
        load_bench(write_bench(experiment="digit.yaml"))


def test_a_bench_adds_variants_to_those_that_it_extends(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: table3\nmore_variants:\n  - {label: Mine, method: fedprox}\n")
    labels = [variant.label for variant in load_bench(str(tmp_path / "mine.yaml")).variants]
    assert labels == [*(variant.label for variant in load_bench("table3").variants), "Mine"]


def test_a_method_is_added_to_a_bench_beside_the_same_cells(write_method: Callable[[str], Path]) -> None:
    mine = f"{write_method('')}:Mine"
    bench = load_bench("budgets_office")
    before = cells(bench, "small", seeds=[11])
    [*others, own] = cells(with_entrants(bench, [mine]), "small", seeds=[11])
    assert [cell.folder for cell in others] == [cell.folder for cell in before]
    assert own.variant.label == "mine"
    assert own.settings.dapper_args.pruning.ratio_of == "training_flops"
    with pytest.raises(ConfigError, match="bench budgets_office: two variants have the same label"):
        with_entrants(bench, [mine, mine])
    with pytest.raises(ConfigError, match=r"no file .*nowhere\.py"):
        with_entrants(bench, ["nowhere.py:Mine"])
    with pytest.raises(ConfigError, match="unknown method `fedavgg`; did you mean `fedavg`"):
        with_entrants(bench, ["fedavgg"])


_SMALL = Path(__file__).parents[2] / "results" / "small"


@pytest.mark.parametrize("name", sorted(path.parent.name for path in _SMALL.glob("*/bench.json")))
def test_committed_runs_are_those_that_the_bench_asks_for(name: str) -> None:
    """So a run of the bench beside them finds them finished, and runs none of them again."""
    begun = read_manifest(_SMALL / name)
    seeds = sorted({cell.seed for cell in begun.cells})
    chosen = cells(load_bench(name), begun.profile, seeds=seeds, precision=begun.precision, overrides=begun.overrides)
    if any(cell.settings.model_args.weights is not None for cell in chosen):
        pytest.skip("its cells' names hold a digest of weights that are not in git")
    asked = {(cell.variant.label, cell.seed): cell.folder for cell in chosen}
    assert {(cell.variant, cell.seed): cell.folder for cell in begun.cells}.items() <= asked.items()


def test_committed_runs_are_finished() -> None:
    assert all(is_finished(_SMALL / "cells" / cell.folder) for cell in cells(load_bench("table2_drawn"), "small"))


def test_all_variants_of_a_seed_have_the_same_data_and_model() -> None:
    chosen = cells(load_bench("table2"), "small", seeds=[1])
    assert len({cell.settings.data_args.model_dump_json() for cell in chosen}) == 1
    assert len({cell.settings.model_args.model_dump_json() for cell in chosen}) == 1
    assert len({cell.settings.train_args.model_dump_json() for cell in chosen}) == 1


def test_settings_of_a_cell_survive_their_file(write_bench: WriteBench, tmp_path: Path) -> None:
    [first, *_] = cells(load_bench(write_bench()), "small")
    (tmp_path / "settings.yaml").write_text(first.settings.as_yaml())
    assert load_settings([tmp_path / "settings.yaml"]) == first.settings


def test_manifest_survives_its_file(write_bench: WriteBench) -> None:
    bench = load_bench(write_bench())
    manifest = Manifest.of(bench, "small", cells(bench, "small"))
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest
    assert manifest.bench.variants == bench.variants
    assert manifest.bench.folders == (), "they are of one machine"
    assert manifest.rounds == 2


def test_mistakes(write_bench: WriteBench) -> None:
    with pytest.raises(ConfigError, match=r"no bench `tabel2`.*did you mean `table2`"):
        load_bench("tabel2")
    with pytest.raises(ConfigError, match=r"reference `FedAvgg` is none of the variants; did you mean `FedAvg`"):
        load_bench(write_bench(reference="FedAvgg"))
    with pytest.raises(ConfigError, match="two variants have the same label"):
        load_bench(write_bench(variants=[{"label": "FedAvg", "method": "fedavg"}] * 2))
    with pytest.raises(ConfigError, match="seeds: one is there twice"):
        load_bench(write_bench(profiles={"small": {"seeds": [1, 1], "note": "twice"}}))
    with pytest.raises(ConfigError, match="no profile `paper`"):
        cells(load_bench(write_bench()), "paper")
    with pytest.raises(ConfigError, match=r"bench mine, FedAvg: unknown key `comm_rounds` in train_args"):
        cells(load_bench(write_bench()), "small", overrides={"train_args": {"comm_rounds": 3}})
    with pytest.raises(
        ConfigError, match=r"mine, FedAvg: benches compare Top-1 accuracy \(%\), and its task goes for mean"
    ):
        cells(load_bench(write_bench()), "small", overrides={"train_args": {"task": "segmentation"}})
    for statistic, key in (("personal", "personal"), ("unseen", "unseen_domain")):
        with pytest.raises(ConfigError, match=rf"statistic `{statistic}` wants dapper_args\.evaluation\.{key}"):
            cells(load_bench(write_bench(statistic=statistic)), "small")
    with pytest.raises(ConfigError, match=r"bench mine, device: no profile `raspbery_pi_4`; did you mean"):
        cells(load_bench(write_bench(device="raspbery_pi_4")), "small")
    assert SHIPPED.is_dir()


def test_a_device_may_be_a_file_beside_the_bench(write_bench: WriteBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Path(write_bench(device="board.yaml"))
    shutil.copy(SHIPPED / "devices" / "raspberry_pi_4.yaml", bench.parent / "board.yaml")
    found = load_bench(str(bench))
    monkeypatch.chdir("/")
    assert cells(found, "small")


def test_other_pictures_are_other_cells(write_bench: WriteBench, tmp_path: Path) -> None:
    """Wherever a folder lies; a suite's data are the same anywhere."""
    names = []
    for place, pictures in (("v1", 1), ("v2", 2), ("v3", 1)):
        folder = tmp_path / place / "pictures"
        folder.mkdir(parents=True)
        for number in range(pictures):
            (folder / f"{number}.png").write_bytes(b"x" * (1 + number))
        data = {"dataset": "folder", "data_cache_dir": str(folder)}
        [cell, *_] = cells(load_bench(write_bench()), "small", overrides={"data_args": data})
        names.append(cell.folder)
    assert names[0] == names[2] != names[1]
    of_suite = [
        cells(load_bench(write_bench()), "small", overrides={"data_args": {"data_cache_dir": str(tmp_path / place)}})
        for place in ("v1", "v2")
    ]
    assert of_suite[0][0].folder == of_suite[1][0].folder


def test_a_cell_whose_levels_have_budgets_keeps_its_name_once_it_has_begun(write_bench: WriteBench) -> None:
    """A run writes down the ratios that its budgets come to."""
    levels = {"levels": [{"base": 0}, {"base": 0.3}]}
    cell = cells(load_bench(write_bench(settings={"dapper_args": levels})), "small", seeds=[1])[0]
    values = cell.settings.model_dump(mode="json")
    assert values["dapper_args"]["levels"]["ratios"] == [0.0, 0.0]
    values["dapper_args"]["levels"]["ratios"] = [0.0, 0.31]
    assert folder_name(Settings.model_validate(values)) == cell.folder
