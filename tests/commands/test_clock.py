"""The virtual clock of docs/fleet.md, as a user types it, and what one may get wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from safetensors.torch import load_file

from fedml_dapper.cli import main
from fedml_dapper.config import SHIPPED, Settings, load_settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import RoundRecord, build_experiment, read_ledger, simulate
from fedml_dapper.federation.round.virtual_time import VirtualTime
from fedml_dapper.federation.run_folder.records import RoundSeconds
from fedml_dapper.methods import ServerState

SettingsFactory = Callable[..., Settings]
FLEET = {"devices": ["raspberry_pi_5", "phone_low"], "network": "flash_p50", "round_s": 60}
TINY = ("image_size=16", "client_share=0.05", "epochs=1")


def fleet(**clock: Any) -> str:
    return f"dapper_args.fleet={json.dumps(FLEET | {'clock': clock})}"


def run(experiment: Path, output: Path, *overrides: str, resume: bool = False) -> Result:
    settings = [word for override in overrides for word in ("--set", override)]
    arguments = ["run", "-c", str(experiment), *settings, "--output", str(output)]
    arguments += ["--resume"] if resume else []
    return CliRunner().invoke(main, arguments, prog_name="fedml-dapper")


def board(tmp_path: Path, **availability: Any) -> str:
    """A file like the shipped Pi 5, with another availability."""
    values = yaml.safe_load((SHIPPED / "devices" / "raspberry_pi_5.yaml").read_text())
    stated = {"mark": "derived", "how": "invented", "source": next(iter(values["sources"]))}
    file = tmp_path / "board.yaml"
    file.write_text(yaml.safe_dump(values | {"availability": availability | stated}))
    return str(file)


@pytest.fixture
def experiment(tmp_path: Path, tiny_settings: SettingsFactory) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(tiny_settings(*TINY).as_yaml())
    return file


def without_seconds(rounds: list[RoundRecord]) -> list[dict[str, Any]]:
    plain = [record.model_dump(exclude={"seconds"}) for record in rounds]
    return [{**record, "clients": [{**one, "seconds": 0} for one in record["clients"]]} for record in plain]


@pytest.mark.nightly
def test_the_page_s_clock_goes_over_the_shipped_fleet(experiment: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text(encoding="utf-8")
    found = re.search(r"```yaml\n(# clock.yaml.*?)```", page, re.DOTALL)
    assert found is not None
    for line in [line for line in found[1].splitlines() if "clock: {" in line]:
        file = tmp_path / "clock.yaml"
        file.write_text("dapper_args:\n  fleet:\n    " + line.strip().removeprefix("# "))
        above = [str(experiment), str(SHIPPED / "fleet.yaml"), str(file)]
        settings = load_settings(above, ["client_num_per_round=5"])
        assert build_experiment(settings).clock is not None


@pytest.mark.nightly
def test_a_clock_that_waits_changes_nothing_but_the_time(tiny_settings: SettingsFactory) -> None:
    ended = []
    for overrides in ((fleet(jitter=0.2),), (f"dapper_args.fleet={json.dumps(FLEET)}",)):
        server, records = simulate(build_experiment(tiny_settings(*TINY, *overrides)))
        ended.append((server.state.weights, records))
    (weights, records), (plain, without) = ended
    assert all((tensor == plain[name]).all() for name, tensor in weights.items())
    clocks = [record.clock for record in records if record.clock is not None]
    assert len(clocks) == 2
    assert all(record.clock is None for record in without)
    assert clocks[1].elapsed_s == clocks[0].round_s + clocks[1].round_s
    for clock in clocks:
        assert clock.round_s == max(one.download_s + one.training_s + one.upload_s for one in clock.clients)
        assert {one.outcome for one in clock.clients} == {"in time"}
    training = sorted(one.training_s for one in clocks[0].clients)
    assert training[-1] > 10 * training[0]  # a phone and a Pi 5, of which one is 48 times as fast


def test_late_uploads_are_dropped_and_the_others_average_as_if_alone(tiny_settings: SettingsFactory) -> None:
    everyone = simulate(build_experiment(tiny_settings(*TINY, fleet(jitter=0.3), "comm_round=1")))[1][0].clock
    assert everyone is not None
    arrivals = sorted(one.download_s + one.training_s + one.upload_s for one in everyone.clients)
    deadline = (arrivals[5] + arrivals[6]) / 2
    experiment = build_experiment(tiny_settings(*TINY, fleet(jitter=0.3, deadline_s=deadline), "comm_round=1"))
    server, (record,) = simulate(experiment)
    assert record.clock is not None
    assert record.clock.round_s == deadline
    late = [one.client for one in record.clock.clients if one.outcome == "late"]
    assert len(late) == 4
    assert record.absent == tuple(late)
    assert {client.client for client in record.clients} == set(range(10)) - set(late)
    initial = experiment.method.problem.backbone.state_dict()
    assert any((tensor != initial[name]).any() for name, tensor in server.state.weights.items())


def test_the_first_to_arrive_count_where_more_are_chosen(tiny_settings: SettingsFactory) -> None:
    chosen = fleet(jitter=0.3, over_selection=1.5)
    _, records = simulate(build_experiment(tiny_settings(*TINY, chosen, "client_num_per_round=4")))
    for record in records:
        assert record.clock is not None
        assert len(record.clock.clients) == 6
        arrivals = {one.client: one.download_s + one.training_s + one.upload_s for one in record.clock.clients}
        first = sorted(arrivals, key=arrivals.__getitem__)[:4]
        assert {client.client for client in record.clients} == set(first)
        assert record.clock.round_s == arrivals[first[-1]]


@pytest.mark.nightly
@pytest.mark.parametrize("late", ["dropped", "kept"])
def test_runs_repeat_and_resumed_ones_too_virtual_time_included(experiment: Path, tmp_path: Path, late: str) -> None:
    clock = fleet(jitter=0.4, over_selection=1.3 if late == "dropped" else 2.0, late=late)
    overrides = (clock, "client_num_per_round=5", "checkpoint_every=1", "comm_round=3")
    for name in ("once", "twice"):
        assert run(experiment, tmp_path / name, *overrides).exit_code == 0
    ledgers = [read_ledger(tmp_path / name / "ledger.jsonl")[1] for name in ("once", "twice")]
    assert without_seconds(ledgers[0]) == without_seconds(ledgers[1])
    report = (tmp_path / "once" / "report.html").read_text(encoding="utf-8")
    assert "On the fleet's clock" in report
    lines = (tmp_path / "twice" / "ledger.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "twice" / "ledger.jsonl").write_text("".join(lines[:-1]))
    (tmp_path / "twice" / "checkpoints" / "round_00003.safetensors").unlink()
    assert run(experiment, tmp_path / "twice", *overrides, resume=True).exit_code == 0
    resumed = read_ledger(tmp_path / "twice" / "ledger.jsonl")[1]
    assert without_seconds(resumed) == without_seconds(ledgers[0])
    models = [load_file(tmp_path / name / "global_model.safetensors") for name in ("once", "twice")]
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())
    clocks = [record.clock for record in ledgers[0] if record.clock is not None]
    assert any(clock.arrived for clock in clocks[2:]) == (late == "kept")  # those that the checkpoint held


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((fleet(deadline_s=1e-6),), "nobody is done within 1e-06 s; fastest is client"),
        ((fleet(deadline_s=90),), "clock.deadline_s (90) needs to be no later than dapper_args.fleet.round_s (60)"),
        ((fleet(over_selection=0.5),), "greater than or equal to 1"),
        ((fleet(over_selection=1.5),), "all 10 clients that can take part are wanted already"),
        ((fleet(deadlines=3),), "unknown key `deadlines`"),
        ((fleet(late="kept"),), "set deadline_s or over_selection as well"),
        (
            (fleet(late="kept", deadline_s=9), "method=scaffold"),
            "needs a method that takes late uploads (`scaffold` is none)",
        ),
    ],
)
def test_bad_clocks_end_before_anything_is_written(
    experiment: Path, tmp_path: Path, overrides: tuple[str, ...], message: str
) -> None:
    result = run(experiment, tmp_path / "out", *overrides)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_silos_have_real_clocks(tiny_settings: SettingsFactory) -> None:
    across = (
        "training_type=cross_silo",
        "backend=GRPC",
        "allow_pickle=true",
        "grpc_ipconfig_path=config/grpc_ipconfig.csv",
    )
    with pytest.raises(ConfigError, match="a virtual clock is for simulations; silos' rounds take real time"):
        tiny_settings(*TINY, *across, fleet())


def test_a_round_that_too_few_finish_says_who_was_nearest(tiny_settings: SettingsFactory) -> None:
    settings = tiny_settings(*TINY, fleet(jitter=3, deadline_s=0.2), "min_clients_per_round=10")
    with pytest.raises(
        ConfigError, match=r"done in time and with their device on, dapper_args.min_clients_per_round is 10; client"
    ):
        simulate(build_experiment(settings))


def test_clients_that_quarantine_keeps_away_are_not_the_clock_s_matter(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings(*TINY, fleet(), "min_clients_per_round=5"))
    assert experiment.clock is not None
    virtual = VirtualTime(experiment, experiment.clock, ServerState(0, {}, experiment.profiles))
    record = RoundRecord(round=1, scores=None, clients=(), seconds=RoundSeconds(total=0, evaluation=0))
    virtual.opening([3, 4])  # all of them are in time
    found = virtual.closed(record.model_copy(update={"refused": {4: "it does not fit"}})).clock
    assert found is not None
    assert [(one.client, one.outcome) for one in found.clients] == [(3, "in time"), (4, "refused")]
    virtual.opening([])
    nobody = virtual.closed(record).clock
    assert nobody is not None
    assert nobody.round_s == 0


def test_devices_that_are_off_do_not_take_part(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    devices = [board(tmp_path, share=0.5)]
    chance = f"dapper_args.fleet={json.dumps(FLEET | {'devices': devices, 'clock': {}})}"
    _, records = simulate(build_experiment(tiny_settings(*TINY, chance)))
    for record in records:
        assert record.clock is not None
        assert record.clock.offline
        there = {client.client for client in record.clock.clients}
        assert there | set(record.clock.offline) == set(range(10))
        assert there == {client.client for client in record.clients}
        assert not record.absent
    assert records[0].clock != records[1].clock


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("beside", "message"),
    [
        (["phone_low"], "5 of 10 clients' devices are on where round 3 begins, 1 s into the run; "),
        ([], "0 of 10 clients are done in time and with their device on"),
    ],
)
def test_a_trace_that_leaves_a_round_without_clients_ends_the_run(
    tiny_settings: SettingsFactory, tmp_path: Path, beside: list[str], message: str
) -> None:
    devices = [board(tmp_path, period_s=1000, on_s=[[0, 0.9]]), *beside]
    trace = f"dapper_args.fleet={json.dumps(FLEET | {'devices': devices, 'clock': {}})}"
    fewest = f"min_clients_per_round={10 if beside else 1}"
    settings = tiny_settings(*TINY, trace, fewest, "comm_round=20", "frequency_of_the_test=20")
    with pytest.raises(ConfigError) as caught:
        simulate(build_experiment(settings))
    assert message in str(caught.value)
