"""Levels as fine as a fleet needs: hundredths of a ratio, each the smallest that its device can run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from fedml_dapper.cli import main
from fedml_dapper.config import Settings
from fedml_dapper.federation import build_experiment, read_ledger, simulate
from fedml_dapper.fleet.continuous import smallest_ratio
from fedml_dapper.fleet.demand import DemandCounter
from fedml_dapper.fleet.fitting import Budget, use_of
from fedml_dapper.fleet.planning import equip
from fedml_dapper.pruning import Device

SettingsFactory = Callable[..., Settings]


@pytest.mark.parametrize("wanted", [0.0, 0.01, 0.37, 0.4, 0.79, 0.8])
def test_the_smallest_ratio_that_fits(wanted: float) -> None:
    assert smallest_ratio(lambda ratio: ratio >= wanted, 0.0, 0.8) == wanted


def test_the_ends_need_not_be_hundredths() -> None:
    assert smallest_ratio(lambda ratio: ratio > 0.2, 0.125, 0.875) == 0.21
    assert smallest_ratio(lambda ratio: ratio > 0.125, 0.125, 0.875) == 0.13
    assert smallest_ratio(lambda ratio: ratio > 0.872, 0.125, 0.875) == 0.875
    assert smallest_ratio(lambda _: False, 0.125, 0.875) == 0.875


@pytest.fixture
def boards(tmp_path: Path) -> list[str]:
    """Five devices, each a little slower than the one before."""
    names = []
    for place, speed in enumerate((1.0, 0.05, 0.035, 0.03, 0.025)):
        profile = {
            "description": f"board {place}",
            "sources": {"trial": {"title": "a guess", "address": "here"}},
            "memory_mb": {"value": 2000, "mark": "measured", "source": "trial"},
            "speeds": [
                {
                    "network": "any",
                    "family": "convolutions",
                    "mark": "measured",
                    "source": "trial",
                    "gmacs_per_s": speed,
                }
            ],
        }
        file = tmp_path / f"board_{place}.yaml"
        file.write_text(yaml.safe_dump(profile))
        names.append(str(file))
    return names


def fleet(boards: list[str], **values: object) -> str:
    return f"dapper_args.fleet={json.dumps({'devices': boards, 'network': 'flash_p50', 'round_s': 6, **values})}"


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["heterofl", pytest.param("dapperfl_slim", marks=pytest.mark.nightly)])
def test_every_client_gets_the_largest_model_that_its_device_can_run(
    tiny_settings: SettingsFactory, boards: list[str], method: str
) -> None:
    overrides = ("image_size=16", f"method={method}", "client_num_in_total=5", "client_num_per_round=5", "comm_round=1")
    settings = tiny_settings(*overrides, fleet(boards, continuous=True))
    experiment = build_experiment(settings)
    ratios = [profile.ratio for profile in experiment.profiles]
    levels = experiment.settings.dapper_args.levels.ratios
    assert (levels[0], levels[-1]) == (0.0, 0.8)
    assert ratios[0] == 0.0
    assert ratios == sorted(ratios)
    assert len({*ratios, *levels} - {0.0, 0.2, 0.4, 0.6, 0.8}) >= 2  # between the levels that are set
    counter, args = DemandCounter(experiment.method), experiment.settings.dapper_args.fleet
    assert args is not None
    devices = [Device(client.client_id, client.domain, client.num_samples) for client in experiment.clients]
    for one, ratio in zip(equip(args, experiment.method, settings.model_args, devices), ratios, strict=True):
        budget = Budget(args.round_s, args.memory_share)
        assert not use_of(counter.demand(1 if ratio == 0 else 2, ratio), one.means, budget).limits
        if ratio > 0 and method == "heterofl":  # whose needs do not depend on the other levels
            assert use_of(counter.demand(2, round(ratio - 0.01, 2)), one.means, budget).limits
    again = build_experiment(experiment.settings)
    assert again.settings == experiment.settings
    _, [record] = simulate(experiment)
    assert [client.ratio for client in record.clients] == ratios
    assert len({client.params for client in record.clients}) == len(set(ratios))


def test_without_it_the_levels_stay_those_that_are_set(tiny_settings: SettingsFactory, boards: list[str]) -> None:
    few = ("image_size=16", "method=heterofl", "client_num_in_total=5", "client_num_per_round=5")
    experiment = build_experiment(tiny_settings(*few, fleet(boards)))
    assert experiment.settings.dapper_args.levels.ratios == (0.0, 0.2, 0.4, 0.6, 0.8)


@pytest.mark.nightly
def test_plan_and_run_on_the_command_line(tiny_settings: SettingsFactory, boards: list[str], tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    few = ("image_size=16", "method=heterofl", "client_num_in_total=5", "client_num_per_round=5", "comm_round=1")
    file.write_text(tiny_settings(*few).as_yaml())
    asked = ["-c", str(file), "--set", fleet(boards, continuous=True)]
    planned = CliRunner().invoke(main, ["plan", *asked, "--json", "--method", "fedavg"])
    assert planned.exit_code == 0, planned.output
    rows = {row["method"]: row for row in json.loads(planned.stdout)}
    assert len({one["level"] for one in rows["heterofl"]["clients"]}) > 3
    assert {one["level"] for one in rows["fedavg"]["clients"]} <= {1, None}
    for _ in range(2):  # the second time there is nothing left to do, and the settings agree
        ran = CliRunner().invoke(main, ["run", *asked, "--output", str(tmp_path / "ran"), "--resume"])
        assert ran.exit_code == 0, ran.output
    run, [record] = read_ledger(tmp_path / "ran" / "ledger.jsonl")
    assert [one.level for one in record.clients] == [one["level"] for one in rows["heterofl"]["clients"]]
    assert [one.ratio for one in run.footprints] == run.settings["dapper_args"]["levels"]["ratios"]
