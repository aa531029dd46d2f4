"""Attacks: what hostile clients send, by hand, and a grid of tiny runs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner

from benchmarks import attacks
from benchmarks.attacks import Attackers, Cell
from fedml_dapper.config import load_settings
from fedml_dapper.datasets import ClientSamples, ImageSet
from fedml_dapper.federation import Server, build_experiment
from fedml_dapper.pruning import slim_tensors

TINY = (
    "width=8",
    "epochs=1",
    "client_share=0.03",
    "batch_size=8",
    "frequency_of_the_test=9",
    "dapper_args.evaluation.devices=false",
)
CELL = Cell("digits_offline", 1, 1, "times_-4", 3, 2, "mean", TINY)


def images() -> ImageSet:
    return ImageSet(torch.arange(4 * 3 * 16 * 16).view(4, 3, 16, 16).remainder(200).byte(), torch.tensor([1, 0, 4, 2]))


@pytest.mark.long
def test_hostile_clients_send_so_many_times_their_change_cut_as_they_are() -> None:
    experiment = build_experiment(load_settings([attacks.CONFIGS / "digits_offline.yaml"], CELL.settings))
    server = Server(experiment)
    hostile, honest = (Attackers(experiment, server, cell) for cell in (CELL, replace(CELL, attack="none")))
    assert [experiment.profiles[client].level for client in hostile.hostile] == [3, 3]
    assert honest.hostile == []
    server.round_clients()
    downlink = server.downlink(hostile.hostile[0])
    sent, trained = hostile.update(downlink), honest.update(downlink)
    layout = experiment.method.problem.layout
    before = slim_tensors(downlink.weights, layout, trained.plan, trained.unsliced)
    for name, tensor in trained.weights.items():
        expected = before[name] - 4 * (tensor - before[name]) if tensor.is_floating_point() else tensor
        if name.endswith("running_var"):
            expected = expected.clamp(min=0)
        assert torch.equal(sent.weights[name], expected), name
    server.receive(sent)  # in form: what cannot be told by a look


def test_the_silent_are_as_if_they_were_not_there() -> None:
    experiment = build_experiment(load_settings([attacks.CONFIGS / "digits_offline.yaml"], CELL.settings))
    server = Server(experiment)
    silent = Attackers(experiment, server, replace(CELL, attack="silent"))
    assert len(silent.hostile) == 2
    assert set(server.round_clients()) == set(range(10)) - set(silent.hostile)


def test_labels_are_flipped_and_a_trigger_is_a_white_square_of_class_0() -> None:
    data = ClientSamples(0, "digits", images(), batch_size=2, seed=1)
    flipped = attacks.poisoned(data, "label_flip", classes=5)
    assert flipped.labels is not None
    assert flipped.labels.tolist() == [3, 4, 0, 2]
    backdoor = attacks.poisoned(data, "backdoor", classes=5)
    assert isinstance(backdoor, ClientSamples)
    assert isinstance(backdoor.samples, ImageSet)
    assert backdoor.samples.labels.tolist() == [0, 0, 0, 2]  # every other image
    changed = (backdoor.samples.images != images().images).flatten(1).any(dim=1)
    assert changed.tolist() == [True, False, True, False]
    assert (backdoor.samples.images[0, :, 2:4, 2:4] == 255).all()
    assert torch.equal(backdoor.samples.images[0, :, 4:], images().images[0, :, 4:])
    assert attacks.poisoned(data, "sign_flip", classes=5) is data


@pytest.mark.nightly
def test_a_grid_goes_on_where_it_ended_and_shows_a_table(tmp_path: Path) -> None:
    output = tmp_path / "attacks.jsonl"
    asked = [
        "--networks", "digits_offline", "--rounds", "1", "--seeds", "1", "--attacks", "none,sign_flip", "--places",
        "1x2", "--output", str(output), *(part for setting in TINY for part in ("--set", setting)),
    ]  # fmt: skip
    first = CliRunner().invoke(attacks.main, [*asked, "--defences", "mean"], catch_exceptions=False)
    assert "2 of 2 runs" in first.output
    again = CliRunner().invoke(
        attacks.main, [*asked, "--defences", "mean median:min_holders=1"], catch_exceptions=False
    )
    assert "2 of 2 runs" in again.output
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert [one["defence"] for one in found] == ["mean", "mean", "median:min_holders=1", "median:min_holders=1"]
    assert len(found[1]["hostile"]) == 2
    table = again.stdout.splitlines()
    assert table[0] == "| network | attack | by | mean | median:min_holders=1 |"
    assert [line.split(" | ")[2] for line in table[2:]] == ["nobody", "2 of level 1"]


def test_a_level_without_so_many_clients_is_named() -> None:
    experiment = build_experiment(load_settings([attacks.CONFIGS / "digits_offline.yaml"], CELL.settings))
    with pytest.raises(click.ClickException, match="level 3 has 2 clients, not 3"):
        Attackers(experiment, Server(experiment), replace(CELL, attackers=3))


def test_a_table_has_a_row_for_each_experiment() -> None:
    runs = [CELL, replace(CELL, seed=2), replace(CELL, rounds=12), replace(CELL, overrides=(*TINY, "learning_rate=1"))]
    found = [asdict(cell) | {"accuracy": [10.0 * place], "backdoor": None} for place, cell in enumerate(runs)]
    _, _, *rows = attacks.table(found)
    shown = [row.split(" | ") for row in rows]
    assert [(row[0].split(", ")[1], row[-1]) for row in shown] == [
        ("1 round", "5.0 (0.0 to 10.0, 2 seeds) |"), ("12 rounds", "20.0 (1 seed) |"), ("1 round", "30.0 (1 seed) |")
    ]  # fmt: skip
