"""Benches of texts: cells that start from a base, and final models whose targets are no classes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedml_dapper.benches.bench_report import write_bench_report
from fedml_dapper.benches.diagnosis import DIAGNOSIS_NAME, Diagnosis, diagnose
from fedml_dapper.benches.grid import cells, check_weights, load_bench
from fedml_dapper.cli import main
from fedml_dapper.config import SHIPPED, load_settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import build_experiment, simulate

from .conftest import Store

FEW = (
    "data_args.arguments={samples: 40}",
    "width=32",
    "client_num_in_total=4",
    "client_num_per_round=4",
    "comm_round=1",
)


def test_weights_that_are_not_there_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["bench", "adapters", "--seeds", "11"])
    assert result.exit_code == 2
    [line] = result.stderr.strip().splitlines()
    assert "no weights at" in line
    assert line.endswith("make it first: fedml-dapper run -c text_base.yaml --output runs/text_base")
    assert not list(tmp_path.iterdir())


def test_cells_are_known_by_the_content_of_their_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bench = load_bench("adapters")
    base = tmp_path / "runs" / "text_base" / "global_model.safetensors"
    base.parent.mkdir(parents=True)
    folders = []
    for content in (b"one", b"another"):
        base.write_bytes(content)
        chosen = cells(bench, "small", seeds=[11])
        check_weights(bench, chosen)
        folders.append({cell.folder for cell in chosen})
    assert not folders[0] & folders[1]
    base.unlink()
    with pytest.raises(ConfigError, match="bench adapters, FedAvg: no weights at"):
        check_weights(bench, chosen)


def test_a_final_model_of_texts_is_diagnosed_by_level_alone() -> None:
    experiment = build_experiment(load_settings([SHIPPED / "text_offline.yaml"], FEW))
    server, _ = simulate(experiment)
    found = diagnose(experiment, server)
    assert (found.confusion, found.embedding) == ({}, None)
    assert len(found.levels) == 4
    assert found.needs is not None


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_a_report_goes_without_pictures_of_classes(store: Store, three_methods: Callable[..., Path]) -> None:
    folder = three_methods([60, 61, 62], [63, 64, 65], [60, 61, 62])
    store.cell("Ours", 1, [50, 60], diagnosed=True)
    file = store.root / "cells" / store.folder("Ours", 1) / DIAGNOSIS_NAME
    values = json.loads(file.read_text()) | {"confusion": {}, "embedding": None}
    file.write_text(Diagnosis.model_validate(values).model_dump_json())
    write_bench_report(folder)
    names = {path.stem for path in (folder / "figures").iterdir()}
    assert "levels" in names
    assert not names & {"confusion", "representations"}
