"""The commands of docs/fleet.md, as a new user types them, and what a fleet may get wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from fedml_dapper.cli import main
from fedml_dapper.config import SHIPPED, Settings
from fedml_dapper.federation import read_ledger

SettingsFactory = Callable[..., Settings]
PAGE = Path(__file__).parents[2] / "docs" / "fleet.md"


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="fedml-dapper")


def block(heading: str) -> str:
    """The YAML block of docs/fleet.md whose first line is ``heading``."""
    found = re.search(rf"```yaml\n({re.escape(heading)}.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def fleet(**values: Any) -> str:
    return f"dapper_args.fleet={json.dumps({'devices': ['board.yaml'], 'round_s': 60, **values})}"


@pytest.fixture
def experiment(tmp_path: Path, tiny_settings: SettingsFactory) -> Path:
    """A tiny experiment, and beside it the two files of the page: ``fleet.yaml`` and ``board.yaml``."""
    file = tmp_path / "tiny.yaml"
    file.write_text(tiny_settings("image_size=16").as_yaml())
    (tmp_path / "fleet.yaml").write_text(block("# fleet.yaml"))
    (tmp_path / "board.yaml").write_text(block("# my_board.yaml"))
    return file


def board(experiment: Path, name: str = "board.yaml", **changes: Any) -> str:
    """A file like ``board.yaml`` with other values; a key is left out by None."""
    values = yaml.safe_load(block("# my_board.yaml"))
    for key, value in changes.items():
        if value is None:
            del values[key]
        else:
            values[key] = values[key] | {"value": value} if isinstance(values[key], dict) else value
    (experiment.parent / name).write_text(yaml.safe_dump(values))
    return name


def planned(*arguments: str | Path) -> dict[str, dict[str, Any]]:
    result = call("plan", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return {row["method"]: row for row in json.loads(result.stdout)}


def test_the_page_s_fleet_is_shipped() -> None:
    assert (SHIPPED / "fleet.yaml").read_text(encoding="utf-8") == block("# fleet.yaml")


def test_the_page_s_plan_names_who_can_run_what_under_four_methods(experiment: Path) -> None:
    result = call("plan", "-c", experiment, "-c", experiment.parent / "fleet.yaml")
    assert result.exit_code == 0, result.output
    for words in ("Who can run what under dapperfl", "under fedavg", "under heterofl", "under dapperfl_slim"):
        assert words in result.stdout


def test_a_domain_of_weak_devices_is_lost_where_all_train_the_full_model(experiment: Path) -> None:
    speed = {"network": "any", "family": "convolutions", "mark": "measured", "source": "trial", "gmacs_per_s": 0.002}
    weak = board(experiment, "weak.yaml", speeds=[speed])
    by_domain = dict.fromkeys(("scans", "blended", "fonts"), "raspberry_pi_5") | {"segments": weak}
    asked = ("--method", "fedavg", "--method", "heterofl")
    found = planned("-c", experiment, "--set", fleet(devices=by_domain, round_s=90), *asked)
    assert list(found) == ["dapperfl", "fedavg", "heterofl"]
    by_weak = {one["client"]: one for one in found["fedavg"]["clients"] if one["domain"] == "segments"}
    assert all(one["training_s"] > 90 for one in by_weak.values())
    assert set(found["fedavg"]["left_out"]) == set(by_weak)
    assert found["fedavg"]["lost_domains"] == ["segments"]
    assert found["heterofl"]["left_out"] == []
    for one in found["heterofl"]["clients"]:
        assert (one["limited_by"], one["level"] > 1) == ((["time"], True) if one["client"] in by_weak else ([], False))
        assert one["training_s"] + one["network_s"] <= 90
        assert one["speed_stretched"] == "to another network"


@pytest.mark.nightly
def test_a_run_leaves_out_who_fits_no_level_and_trains_the_others_as_if_levels_were_listed(experiment: Path) -> None:
    weak = board(experiment, "weak.yaml", memory_mb=0.5)
    devices = [weak if client in (2, 5) else "raspberry_pi_5" for client in range(10)]
    ran, listed = experiment.parent / "ran", experiment.parent / "listed"
    result = call("run", "-c", experiment, "--set", fleet(devices=devices), "--set", "method=heterofl", "--output", ran)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())  # in lines of 80 columns
    assert re.search(r"client 2 \(\w+, weak\) is left out: level 5 of heterofl needs \d+ MB of 0 MB", said)
    record, rounds = read_ledger(ran / "ledger.jsonl")
    assert [[client.client for client in one.clients] for one in rounds] == [[0, 1, 3, 4, 6, 7, 8, 9]] * 2
    assert "dapper_args.fleet.devices" in record.sources

    levels = "assignment=[1, 1, 5, 1, 1, 5, 1, 1, 1, 1]"
    assert call("run", "-c", experiment, "--set", levels, "--set", "method=heterofl", "--output", listed).exit_code == 0
    _, expected = read_ledger(listed / "ledger.jsonl")
    assert rounds[0].clients[0].loss == expected[0].clients[0].loss
    assert rounds[0].clients[-1].loss == expected[0].clients[-1].loss


@pytest.mark.nightly
def test_the_page_s_calibration_is_a_device(experiment: Path) -> None:
    file = experiment.parent / "mine.yaml"
    result = call("calibrate", "-c", experiment, "--set", "threads=1", "-o", file)
    assert result.exit_code == 0, result.output
    [row, *_] = planned("-c", experiment, "--set", fleet(devices=["mine.yaml"], network="flash_p50"))["dapperfl"][
        "clients"
    ]
    assert row["speed_stretched"] == "none"
    assert row["level"] == 1
    assert row["memory_mb"] > 100  # interpreter and libraries are in it
    again = call("calibrate", "-c", experiment, "-o", file)
    assert (again.exit_code, "give a new file" in again.stderr) == (2, True)


def refused(experiment: Path, *settings: str, command: str = "run") -> str:
    out = experiment.parent / "nothing"
    where = ["--output", out] if command == "run" else []
    result = call(command, "-c", experiment, *(word for setting in settings for word in ("--set", setting)), *where)
    assert result.exit_code == 2, result.output
    assert len(result.stderr.strip().splitlines()) == 1
    assert not out.exists()
    return result.stderr


def test_profiles_that_are_not_to_be_had(experiment: Path) -> None:
    assert "did you mean `raspberry_pi_4`?" in refused(experiment, fleet(devices=["raspbery_pi_4"]))
    assert "no file none.yaml" in refused(experiment, fleet(devices=["none.yaml"]))
    board(experiment, speeds=None)
    assert "missing key `speeds`" in refused(experiment, fleet())


def test_a_budget_that_nobody_meets_says_who_comes_nearest_and_by_how_much(experiment: Path) -> None:
    message = refused(experiment, fleet(round_s=0.01))
    assert re.search(r"nearest is client \d \(board\), whose level 5 needs \d+\.\d s.* of 0.01 s", message)


def test_levels_stand_in_one_place(experiment: Path) -> None:
    for assignment in ("[1, 1, 1, 1, 1, 1, 1, 1, 1, 5]", "index_mod"):
        message = refused(experiment, fleet(), f"assignment={assignment}")
        assert "dapper_args.levels.assignment" in message
        assert "dapper_args.fleet" in message


def test_a_plan_needs_a_fleet(experiment: Path) -> None:
    assert "dapper_args.fleet: the experiment names no devices" in refused(experiment, command="plan")


def test_a_plan_of_silos_that_sum_under_masks_says_whom_the_rules_protect(experiment: Path) -> None:
    (experiment.parent / "certs").mkdir()
    grpc = json.dumps({"server_address": "localhost:1", "certificates": "certs"})
    sums = ("aggregation_weights=uniform", "norm=group", "privacy={secure_aggregation: {threshold: 6}}")
    silos = ("training_type=cross_silo", "backend=DAPPER_GRPC", f"comm_args.dapper_grpc={grpc}", "method=fedavg")
    asked = [part for override in (*silos, *sums, fleet()) for part in ("--set", override)]
    result = call("plan", "-c", experiment, *asked, "--method", "fedavg")
    assert result.exit_code == 0, result.output
    told = "Secure aggregation: a sum opens for at least 6 of 10 silos, also if the server lies and 1 of them help it"
    assert told in " ".join(result.stdout.split())
