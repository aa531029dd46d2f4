"""Who was trained on: attacks on a client whose images are learned by heart, and a grid of tiny runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import membership
from benchmarks.membership import QUICKSTART, Cell
from fedml_dapper.config import load_settings
from fedml_dapper.datasets import ClientSamples, images_of
from fedml_dapper.federation import ClientSide, Server, build_experiment

TINY = ("width=4", "epochs=1", "comm_round=1", "client_share=0.05", "dapper_args.evaluation.devices=false")


@pytest.mark.nightly
def test_what_was_learned_by_heart_is_told_from_the_upload() -> None:
    settings = Cell("dapperfl_slim", None, 1, (*TINY, "epochs=25", "batch_size=4", "learning_rate=0.02")).settings
    experiment = build_experiment(load_settings([QUICKSTART], settings))
    server = Server(experiment)
    server.round_clients()
    client = experiment.profiles[0].client_id
    data = experiment.clients[client]
    assert isinstance(data, ClientSamples)
    (images,) = images_of([data.samples])
    data = replace(data, samples=replace(images, preprocessing=replace(images.preprocessing, crop_padding=0)))
    downlink = server.downlink(client)
    upload = ClientSide(experiment, server.memories).update(downlink, data)
    before, after = (membership._loaded(experiment, message) for message in (downlink, upload))
    learned, unlearned = (membership._areas(experiment, client, before, model) for model in (after, before))
    assert min(learned.values()) > 0.75
    assert unlearned["gain"] == 0.5  # nothing changed
    assert unlearned["loss"] < min(learned.values())


def test_others_are_of_the_clients_domain_and_classes() -> None:
    experiment = build_experiment(load_settings([QUICKSTART], Cell("fedavg", None, 1, TINY).settings))
    members, others = membership._members(experiment, 3)
    assert 0 < len(others) <= len(members)
    assert set(others.labels.tolist()) <= set(members.labels.tolist())
    pictures = {image.numpy().tobytes() for image in members.images}
    assert not pictures & {image.numpy().tobytes() for image in others.images}


@pytest.mark.nightly
def test_a_grid_is_resumed_and_shown(tmp_path: Path) -> None:
    words = [
        "--seeds",
        "1,2",
        "--methods",
        "dapperfl_slim",
        "--noises",
        "0.1",
        "--output",
        str(tmp_path / "found.jsonl"),
    ]
    words += [word for setting in TINY for word in ("--set", setting)]
    first = CliRunner().invoke(membership.main, [*words[:1], "1", *words[2:]], catch_exceptions=False)
    assert first.output.count("| `dapperfl_slim`, ") == 8
    kept = (tmp_path / "found.jsonl").read_text()
    second = CliRunner().invoke(membership.main, words, catch_exceptions=False)
    after = (tmp_path / "found.jsonl").read_text()
    assert after.startswith(kept)
    assert [json.loads(line)["seed"] for line in after.splitlines()] == [1, 1, 2, 2]
    assert "2 of 2 runs" in second.output
    areas = json.loads(kept.splitlines()[0])["areas"]
    assert list(areas) == ["1", "2", "3", "4", "5"]
    assert all(0 <= area <= 100 for level in areas.values() for seen in level.values() for area in seen["loss"])
