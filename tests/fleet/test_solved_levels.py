"""Ratios of memory and of training's multiply-accumulates, held against what the method then needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal

import pytest
from click.testing import CliRunner

from fedml_dapper.cli import main
from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import build_experiment
from fedml_dapper.fleet import Demand, demands

from ..grids import sampled

SettingsFactory = Callable[..., Settings]
Of = Literal["memory", "training_flops"]
FIVE = ("client_num_in_total=5", "client_num_per_round=5", "client_share=0.05", "epochs=3", "ratios=[0, 0.2, 0.4]")


def cost(demand: Demand, of: Of) -> int:
    return demand.memory_bytes if of == "memory" else demand.round_macs


def shares(settings: SettingsFactory, of: Of, *overrides: str) -> tuple[tuple[float, ...], list[float]]:
    """The ratios of parameters, and each level's share of what FedAvg costs."""
    experiment = build_experiment(settings(*FIVE, "scope=grouped", *overrides, f"ratio_of={of}"))
    full = demands(build_experiment(settings(*FIVE, "method=fedavg")).method)[0]
    found = experiment.settings.dapper_args
    assert found.pruning.ratio_of == experiment.method.problem.pruning.ratio_of == "parameters"
    assert found.levels.ratios == experiment.method.problem.ratios
    return found.levels.ratios, [cost(one, of) / cost(full, of) for one in demands(experiment.method)]


@pytest.mark.parametrize("of", ["memory", "training_flops"])
@pytest.mark.parametrize(
    "method",
    sampled(
        ["heterofl", "dapperfl_slim", "fjord", "fedrolex", "fedecover", "fiarse", "fedmp", "scalefl"],
        always=("heterofl", "dapperfl_slim"), quick=("heterofl",),
    ),
)  # fmt: skip
def test_a_level_costs_no_more_than_its_share_and_hardly_less(
    tiny_settings: SettingsFactory, method: str, of: Of
) -> None:
    """Whatever it trains beside its level's model: teaching, several widths, a pass for statistics."""
    ratios, (_, middle, weak) = shares(tiny_settings, of, f"method={method}")
    assert ratios[0] == 0
    assert 0.57 < weak <= 0.6
    coarse = method == "dapperfl_slim" and of == "training_flops"  # a level that teaches costs more than a level more
    assert (middle == weak) if coarse else (0.77 < middle <= 0.8)


def test_stages_are_as_many_as_fit(tiny_settings: SettingsFactory) -> None:
    ratios, found = shares(tiny_settings, "memory", "method=depthfl")
    assert found[1] <= 0.8
    assert found[2] <= 0.6
    assert ratios == (0.0, 0.665, 0.863)


def test_dapperfl_s_dense_epoch_counts(tiny_settings: SettingsFactory) -> None:
    """DapperFL's first of three epochs is dense, so that a model of a share c costs (1 + 2 c) / 3."""
    _, found = shares(tiny_settings, "training_flops", "method=dapperfl")
    assert found[1:] == pytest.approx([0.77, 0.59], abs=0.03)
    assert all(share <= budget for share, budget in zip(found, (1, 0.8, 0.6), strict=True))


@pytest.mark.long
def test_a_network_made_for_the_weakest_level_is_made_for_its_budget(tiny_settings: SettingsFactory) -> None:
    _, found = shares(tiny_settings, "memory", "method=fedavg_small")
    assert len(set(found)) == 1
    assert 0.55 < found[0] <= 0.6


def test_epochs_are_as_many_as_fit(tiny_settings: SettingsFactory) -> None:
    _, found = shares(tiny_settings, "training_flops", "method=fedprox")
    assert found == pytest.approx([1, 2 / 3, 1 / 3])


@pytest.mark.parametrize("method", ["fedavg", "fedavg_strong", "profl"])
def test_levels_that_no_size_depends_on_stay_as_they_are(tiny_settings: SettingsFactory, method: str) -> None:
    assert shares(tiny_settings, "memory", f"method={method}")[0] == (0.0, 0.2, 0.4)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("method=dapperfl", "ratio_of=memory"),
            r"ratio 0\.4 asks for 60\.0 % of the full model's peak memory of training; `dapperfl` takes 100\.0 % here,"
            r" so no ratio but 0 can be met",
        ),
        (
            ("method=heterofl", "ratio_of=memory", "ratios=[0, 0.99]", "scope=internal"),
            r"ratio 0\.99 asks for 1\.0 % .* `heterofl` takes \d+\.\d to 100\.0 % here, so ratios up to 0\.\d+ can be",
        ),
        (
            ("method=nefl", "ratio_of=training_flops"),
            r"`training_flops` cannot be solved for `nefl`, whose sizes follow from dapper_args\.params\.nefl\.sizes",
        ),
        (
            ("method=profl", "ratio_of=training_flops"),
            r"`training_flops` cannot be solved for `profl`, whose sizes follow from memory; choose parameters",
        ),
    ],
)
def test_what_cannot_be_met_is_one_line_that_says_what_can(
    tiny_settings: SettingsFactory, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_experiment(tiny_settings(*FIVE, *overrides))
    assert "\n" not in str(caught.value)


def test_levels_that_have_budgets_are_of_sizes(tiny_settings: SettingsFactory) -> None:
    budgets = "dapper_args.levels=[{base: 0.0}, {base: 0.3}]"
    with pytest.raises(ConfigError, match=r"`memory` goes with dapper_args\.levels\.ratios; levels that have budgets"):
        build_experiment(tiny_settings("client_share=0.05", "method=heterofl", "ratio_of=memory", budgets))


def test_its_own_result_is_solved_and_a_note_says_what_was_asked(tiny_settings: SettingsFactory) -> None:
    first = build_experiment(tiny_settings(*FIVE, "method=heterofl", "ratio_of=memory", "scope=grouped"))
    ratios = ", ".join(f"{ratio:g}" for ratio in first.settings.dapper_args.levels.ratios)
    line = f"levels: ratios 0, 0.2, 0.4 of memory are ratios {ratios} of parameters"
    assert line in first.notes
    again = build_experiment(first.settings)
    assert again.settings == first.settings
    assert line not in again.notes


def test_the_command_shows_what_levels_of_memory_are() -> None:
    keys = ("method=heterofl", "ratio_of=memory", "ratios=[0, 0.3]", "scope=grouped", "width=8", "image_size=16")
    overrides = [part for key in keys for part in ("--set", key)]
    found = CliRunner().invoke(main, ["footprint", "--config", "quickstart.yaml", "--json", *overrides])
    assert found.exit_code == 0, found.output
    first, second = json.loads(found.stdout)
    assert second["memory_bytes"] <= 0.7 * first["memory_bytes"]
