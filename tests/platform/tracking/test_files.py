"""TensorBoard and wandb, switched on together in one run and read back with their own readers."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedml_dapper.federation import metrics_of

tracking = pytest.importorskip("fedml_dapper.platform.tracking", reason="fedml is not installed")
event_files = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
wandb_sink = importlib.import_module("fedml_dapper.platform.tracking.wandb")
wandb_files = pytest.importorskip("wandb.sdk.internal.datastore")
wandb_messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = event_files.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def wandb_records(file: Path) -> Iterator[Any]:
    store = wandb_files.DataStore()
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        record = wandb_messages.Record()
        record.ParseFromString(data)
        yield record


@pytest.mark.long
def test_both_hold_the_ledgers_metrics_and_nothing_is_sent(tracked_run: Callable[..., Any]) -> None:
    run = tracked_run("enable_tensorboard=true", "enable_wandb=true", "wandb_project=trial", "run_name=first")
    assert run.network_attempts == ""
    assert "failed" not in run.output
    assert not re.search(r"^wandb:", run.output, re.MULTILINE)
    expected = [metrics_of(record) for record in run.rounds]
    assert len(expected) == 2

    found = scalars(run.folder / "tensorboard")
    assert found.keys() == expected[0].keys()
    for name, points in found.items():
        assert points == [
            (round_, pytest.approx(metrics[name], rel=1e-6)) for round_, metrics in enumerate(expected, start=1)
        ]

    [file] = run.folder.parent.rglob("*.wandb")  # one run, ours: fedml.init started none
    assert file.parent.parent == run.folder / "wandb"
    records = list(wandb_records(file))
    [described] = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (described.project, described.display_name) == ("trial", "first")
    history = [
        {item.key: json.loads(item.value_json) for item in record.history.item if not item.key.startswith("_")}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    assert history == expected


def test_missing_tensorboard_says_what_to_install(
    run_record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    tiny_settings: Callable[..., Any],
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    [sink] = tracking.sinks_for(tiny_settings("enable_tensorboard=true"), tmp_path)
    sink.run_started(run_record)
    assert "pip install 'fedml-dapper[tracking]'" in caplog.text


def test_nothing_is_switched_on_by_default(tiny_settings: Callable[..., Any], tmp_path: Path) -> None:
    assert tracking.sinks_for(tiny_settings(), tmp_path) == []


@pytest.mark.nightly
def test_an_upload_that_fails_is_reported_and_leaves_the_offline_run(
    run_record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    tiny_settings: Callable[..., Any],
) -> None:  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr(wandb_sink, "UPLOAD_TIMEOUT_S", 5.0)
    [sink] = tracking.sinks_for(tiny_settings("enable_wandb=true"), tmp_path)
    sink.run_started(run_record)
    assert caplog.messages == []
    sink.run_finished()
    [file] = tmp_path.rglob("*.wandb")
    [warning] = caplog.messages
    assert f"wandb sync {file.parent}" in warning
