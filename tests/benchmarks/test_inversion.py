"""Drawing what a client trained on: a step on two pictures is turned back, and a grid of tiny attacks is resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks import inversion
from benchmarks.inversion import QUICKSTART, Cell
from fedml_dapper.config import load_settings
from fedml_dapper.federation import Server, build_experiment

TINY = ("width=4", "client_share=0.05", "dapper_args.evaluation.devices=false")


@pytest.mark.parametrize(("method", "levels"), [("fedavg", [1, 1]), ("dapperfl_slim", [1, 3])])
def test_the_true_pictures_have_the_gradient_that_is_seen(method: str, levels: list[int]) -> None:
    """Else the attack would look for the wrong thing; in full shapes, and summed over clients of unequal levels."""
    cell = Cell(method, "sum", None, None, 1, overrides=TINY)
    experiment = build_experiment(load_settings([QUICKSTART], cell.settings))
    server = Server(experiment)
    clients = {experiment.profiles[client].level: client for client in sorted(server.round_clients())}
    seen = [inversion.observed(experiment, server, clients[level]) for level in levels]
    start = {name: tensor.clone() for name, tensor in server.state.weights.items()}
    inputs = torch.cat([one.pictures.preprocessing.evaluate(one.pictures.images) for one in seen])
    labels = torch.cat([one.pictures.labels for one in seen])
    moved = inversion._moved(experiment, start, seen)
    gradients = inversion._gradients(experiment, start, seen, inputs, labels)
    assert inversion._cosine(gradients, moved).item() > 0.999
    assert inversion._cosine(inversion._gradients(experiment, start, seen, -inputs, labels), moved).item() < 0.9


@pytest.mark.nightly
def test_a_step_on_two_pictures_can_be_turned_back() -> None:
    cell = Cell("dapperfl_slim", "upload", 1, None, 7, steps=200, overrides=(*TINY, "width=16"))
    near = inversion.run(cell, None)
    hidden = inversion.run(replace(cell, noise=1.0), None)
    assert near["area"] > hidden["area"] + 15
    assert near["psnr"] > hidden["psnr"]


@pytest.mark.nightly
def test_a_grid_is_resumed_and_shown(tmp_path: Path) -> None:
    output = tmp_path / "found.jsonl"
    words = ["--seeds", "1", "--noises", "0.1", "--steps", "2", "--output", str(output)]
    words += [word for setting in TINY for word in ("--set", setting)]
    first = CliRunner().invoke(inversion.main, words, catch_exceptions=False)
    assert [json.loads(line)["seen"] for line in output.read_text().splitlines()] == ["upload"] * 6 + ["sum"] * 2
    kept = output.read_bytes()
    again = CliRunner().invoke(inversion.main, words, catch_exceptions=False)
    assert output.read_bytes() == kept
    [slim] = [line for line in again.output.splitlines() if "`dapperfl_slim`" in line and "level 5 | 2 | 0.1" in line]
    assert slim in first.output
