from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedml_dapper.config import Settings
from fedml_dapper.errors import DataError
from fedml_dapper.federation import RoundRecord, Scores, SharedSettings, build_experiment
from fedml_dapper.federation.run_folder.checkpoint import (
    Checkpoint,
    accuracy_of,
    load_checkpoint,
    save_checkpoint,
)
from fedml_dapper.federation.run_folder.records import RoundSeconds
from fedml_dapper.federation.scoring.after_round import Best
from fedml_dapper.methods import Memory

from .interruptions import assert_same_memory, assert_same_tensors

SettingsFactory = Callable[..., Settings]
SharedFactory = Callable[..., SharedSettings]
PLAIN = SharedSettings(version="0.1.0", method="fedavg", values={"dapper_args.method": "fedavg"}, chosen=())
CPU = torch.device("cpu")
TEXT = st.text(st.characters(codec="utf-8"))
NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(2**70), 2**70)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


@pytest.fixture
def shared(tiny_settings: SettingsFactory) -> SharedFactory:
    """``shared(*overrides)``: what everyone in a tiny run has to agree on."""
    return lambda *overrides: SharedSettings.of_experiment(build_experiment(tiny_settings(*overrides)))


def record(round_: int = 3, accuracy: float | None = 50.0, validation: float | None = None) -> RoundRecord:
    return RoundRecord(
        round=round_, scores=scores(accuracy), validation_scores=scores(validation), clients=(),
        seconds=RoundSeconds(total=1.5, evaluation=0.25),
    )  # fmt: skip


def scores(accuracy: float | None) -> Scores | None:
    if accuracy is None:
        return None
    return Scores(
        global_accuracy=accuracy, domain_accuracy={}, domain_loss={}, best_global_accuracy=accuracy,
        best_domain_accuracy={},
    )  # fmt: skip


def checkpoint(**changes: Any) -> Checkpoint:
    numbers = torch.arange(12.0).view(3, 4)
    plain = Checkpoint(
        weights={"z.weight": numbers, "a.weight": numbers.T, "seen": torch.tensor(7)},
        memory=Memory({"z/sum": numbers[1], "a/sum": numbers[1]}, {"votes": [[1, 2], [0, 3]]}),
        memories={3: Memory({"personal/b": torch.tensor([float("nan"), -0.0])}, {"loss": 0.1}), 0: Memory()},
        best=Best(60.5, {"photos": 70.25, "art": 1 / 3}),
        best_validation=Best(float("inf"), {"photos": 2.0}),
        last_record=record(),
    )
    return replace(plain, **changes)


def assert_same(first: Checkpoint, second: Checkpoint) -> None:
    assert_same_tensors(first.weights, second.weights)
    assert_same_memory(first.memory, second.memory)
    assert list(first.memories) == list(second.memories)
    for client_id, memory in first.memories.items():
        assert_same_memory(memory, second.memories[client_id])
    assert (first.best, first.best_validation) == (second.best, second.best_validation)
    assert first.last_record == second.last_record


def test_everything_comes_back(shared: SharedFactory, tmp_path: Path) -> None:
    path, experiment = tmp_path / "file", shared()
    save_checkpoint(checkpoint(), experiment, path)
    loaded = load_checkpoint(path, experiment, CPU)
    assert loaded.round == 3
    assert_same(checkpoint(), loaded)
    path.unlink()
    loaded.weights["z.weight"].add_(1)  # the file is not needed any more
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.dictionaries(TEXT, VALUES), seed=st.integers(0, 2**20))
def test_any_memory_comes_back(tmp_path: Path, values: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for dtype in DTYPES:
        shape = torch.randint(0, 4, (int(torch.randint(0, 4, (), generator=generator)),), generator=generator).tolist()
        raw = torch.randint(0, 256, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
        tensors[f"some/{dtype} é"] = (raw % 2 if dtype == torch.bool else raw).view(dtype).reshape(shape)
    made = checkpoint(memory=Memory(tensors, values), memories={7: Memory(tensors, values)})
    save_checkpoint(made, PLAIN, tmp_path / "file")
    assert_same(made, load_checkpoint(tmp_path / "file", PLAIN, CPU))


def test_a_file_cut_anywhere_is_refused_by_name(shared: SharedFactory, tmp_path: Path) -> None:
    whole, path, experiment = tmp_path / "whole", tmp_path / "cut", shared()
    save_checkpoint(checkpoint(), experiment, whole)
    content = whole.read_bytes()
    for length in [0, 1, 7, 8, 9, *range(10, len(content), 97), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=rf"^checkpoint {path} is damaged: [^\n]*$"):
            load_checkpoint(path, experiment, CPU)
    path.write_bytes(content + b"\0")
    with pytest.raises(DataError, match="damaged"):
        load_checkpoint(path, experiment, CPU)


@pytest.mark.long
def test_a_bit_flipped_anywhere_is_noticed(shared: SharedFactory, tmp_path: Path) -> None:
    path, experiment = tmp_path / "file", shared()
    save_checkpoint(checkpoint(), experiment, path)
    content = path.read_bytes()
    header = int.from_bytes(content[:8], "little")
    data = content[8 + header :]
    assert len(data) < 400
    for place in [*range(40), *range(40, 8 + header, 7), *range(8 + header, len(content))]:
        for bit in (0, 3, 7):
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            path.write_bytes(flipped)
            with pytest.raises(DataError, match=rf"^checkpoint {path} is [^\n]*$"):
                load_checkpoint(path, experiment, CPU)


@pytest.mark.parametrize(
    ("override", "difference"),
    [
        ("random_seed=2", "common_args.random_seed is 1 there and 2 here"),
        ("learning_rate=0.02", "train_args.learning_rate is 0.01 there and 0.02 here"),
    ],
)
def test_other_settings_are_named(shared: SharedFactory, tmp_path: Path, override: str, difference: str) -> None:
    save_checkpoint(checkpoint(), shared(), tmp_path / "file")
    with pytest.raises(DataError) as caught:
        load_checkpoint(tmp_path / "file", shared(override), CPU)
    assert str(caught.value) == f"checkpoint {tmp_path / 'file'} is of another experiment: {difference}"


def test_settings_of_the_machine_may_differ(shared: SharedFactory, tmp_path: Path) -> None:
    save_checkpoint(checkpoint(), shared(), tmp_path / "file")
    other = ("checkpoint_every=3", "checkpoints_kept=9", "output_dir=elsewhere", "threads=2", "workers=3")
    load_checkpoint(tmp_path / "file", shared(*other), CPU)


def test_what_an_earlier_version_had_no_setting_for_has_to_be_at_its_default(
    shared: SharedFactory, tmp_path: Path
) -> None:
    ours = shared()
    lacking = "dapper_args.defence."
    before = ours.model_copy(
        update={
            "values": {key: value for key, value in ours.values.items() if not key.startswith(lacking)},
            "version": "0.0.9",
        }
    )
    save_checkpoint(checkpoint(), before, tmp_path / "file")
    assert_same(load_checkpoint(tmp_path / "file", ours, CPU), checkpoint())
    with pytest.raises(DataError, match=r"dapper_args\.defence\.aggregation is median here, and version 0\.0\.9 there"):
        load_checkpoint(tmp_path / "file", shared("dapper_args.defence.aggregation=median"), CPU)


def test_another_schema_and_what_is_no_checkpoint_are_refused(shared: SharedFactory, tmp_path: Path) -> None:
    path, experiment = tmp_path / "file", shared()
    save_checkpoint(checkpoint(), experiment, path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    save_file(load_file(path), path, metadata | {"schema": "3"})
    with pytest.raises(DataError, match=r"is of schema 3, and version \S+ reads 1 and 2"):
        load_checkpoint(path, experiment, CPU)
    save_file({"weight": torch.zeros(2)}, path, {"round": "3"})
    with pytest.raises(DataError, match="is damaged: it says nothing of itself"):
        load_checkpoint(path, experiment, CPU)
    for missing, said in (
        (tmp_path, "is damaged: it is no file"),
        (tmp_path / "nothing", "cannot be read: No such file"),
    ):
        with pytest.raises(DataError, match=f"checkpoint {missing} {said}"):
            load_checkpoint(missing, experiment, CPU)


def test_rounds_are_compared_on_validation_samples_where_there_are_any(shared: SharedFactory, tmp_path: Path) -> None:
    for last, accuracy in [(record(), 50.0), (record(validation=40.0), 40.0), (record(accuracy=None), None)]:
        save_checkpoint(checkpoint(last_record=last), shared(), tmp_path / "file")
        assert accuracy_of(tmp_path / "file") == accuracy
    assert accuracy_of(tmp_path) is None
