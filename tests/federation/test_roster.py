"""Levels as the settings state them, and a rule of a user's own that changes them from round to round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import build_experiment, simulate

from .interruptions import FEW, Ended, assert_same_end, resumed, run_until

SettingsFactory = Callable[..., Settings]
FOUR = ("client_num_in_total=4", "client_num_per_round=4", "epochs=2")
RULE = """
def alternate(fleet):
    weakest = len(fleet.footprints)
    assert fleet.footprints[0].parameters > fleet.footprints[-1].parameters
    return [1 if (device.client_id + fleet.round) % 2 else weakest for device in fleet.devices]
"""


def test_levels_as_a_list(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings(*FOUR, "assignment=[5, 1, 3, 3]"))
    assert [profile.level for profile in experiment.profiles] == [5, 1, 3, 3]


@pytest.mark.parametrize("method", ["dapperfl", "heterofl"])
def test_an_own_rule_gives_other_levels_in_the_next_round(
    tiny_settings: SettingsFactory, tmp_path: Path, method: str
) -> None:
    (tmp_path / "rule.py").write_text(RULE)
    own = f"assignment={tmp_path}/rule.py:alternate"
    experiment = build_experiment(tiny_settings(*FOUR, f"method={method}", own))
    _, rounds = simulate(experiment)
    assert [[client.level for client in record.clients] for record in rounds] == [[1, 5, 1, 5], [5, 1, 5, 1]]
    dense, slim = (max(c.params for c in rounds[0].clients), min(c.params for c in rounds[0].clients))
    for record in rounds:
        assert [client.params for client in record.clients] == [dense if c.level == 1 else slim for c in record.clients]
    assert experiment.record().sources["dapper_args.levels.assignment"].startswith("rule.py:alternate (source ")


def test_who_trains_in_a_round_is_decided_by_that_round_s_levels(
    tiny_settings: SettingsFactory, tmp_path: Path
) -> None:
    of_any_method = [line for line in RULE.splitlines() if "assert" not in line]
    (tmp_path / "rule.py").write_text("\n".join(of_any_method))
    own = f"assignment={tmp_path}/rule.py:alternate"
    _, rounds = simulate(build_experiment(tiny_settings(*FOUR, "method=fedavg_strong", own)))
    assert [[(client.client, client.level) for client in record.clients] for record in rounds] == [
        [(0, 1), (2, 1)],
        [(1, 1), (3, 1)],
    ]


@pytest.mark.nightly
def test_a_run_with_an_own_rule_resumes_bit_for_bit(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    (tmp_path / "rule.py").write_text(RULE)
    settings = tiny_settings(*FEW, f"assignment={tmp_path}/rule.py:alternate")
    whole, _ = simulate(build_experiment(settings), run_dir=tmp_path / "whole")
    run_until(2, settings, tmp_path / "cut")
    again, _ = resumed(settings, tmp_path / "cut")
    assert_same_end(Ended(whole.checkpoint(), tmp_path / "whole"), again, tmp_path / "cut")


def test_the_page_s_rule(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()
    for name in ("my_rule.py", "levels.yaml"):
        (tmp_path / name).write_text("#" + page.split(f"# {name}")[1].split("```")[0])
    plain = tiny_settings(*FOUR, "dataset=digits_offline")
    (tmp_path / "plain.yaml").write_text(plain.as_yaml())
    settings = load_settings([tmp_path / "plain.yaml", tmp_path / "levels.yaml"])
    _, rounds = simulate(build_experiment(settings))
    many = [client.num_samples > 100 for client in rounds[0].clients]
    assert [client.level for client in rounds[0].clients] == [1] * 4
    assert [client.level for client in rounds[1].clients] == [3 if more else 1 for more in many]


def test_a_misspelt_rule(tiny_settings: SettingsFactory) -> None:
    with pytest.raises(ConfigError, match="unknown level rule `balnced`; did you mean `balanced`"):
        build_experiment(tiny_settings(*FOUR, "assignment=balnced"))
