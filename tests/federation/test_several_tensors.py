"""Token ids with masks, from files as an outsider writes them: trained, slimmed, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedml_dapper.config import load_settings
from fedml_dapper.datasets import load_suite
from fedml_dapper.errors import ConfigError, DapperError
from fedml_dapper.federation import build_experiment, simulate

DATA = """
import torch
from torch.utils.data import Dataset

class Sentences(Dataset):
    def __init__(self, count, seed, form):
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(1, 20, (count, 6), generator=generator)
        self.mask = torch.ones_like(self.ids)
        self.mask[:, 4:] = 0
        self.labels, self.form = self.ids[:, 0] % 3, form
    def __len__(self): return len(self.labels)
    def __getitem__(self, i):
        ids, mask = self.ids[i], self.mask[i]
        inputs = {"input_ids": ids, "attention_mask": mask} if self.form == "dict" else (ids, mask)
        return inputs, int(self.labels[i])

def load(form="dict"):
    return {"mail": (Sentences(40, 0, form), Sentences(12, 1, form)),
            "chat": (Sentences(40, 2, form), Sentences(12, 3, form))}
"""
NETS = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.words, self.inner = nn.Embedding(20, 12), nn.Linear(12, 16)
        self.out = nn.Linear(16, 12)
        self.fc = nn.Linear(12, num_classes)
    def of(self, ids, mask):
        x = self.words(ids)
        x = x + self.out(torch.relu(self.inner(x)))
        shares = mask / mask.sum(1, keepdim=True)
        return self.fc((shares[..., None] * x).sum(1))

class Named(Words):
    def forward(self, input_ids, attention_mask): return self.of(input_ids, attention_mask)

class InOrder(Words):
    def forward(self, ids, mask): return self.of(ids, mask)

class AsOne(Words):
    def forward(self, x): return self.of(x["input_ids"], x["attention_mask"])
"""
EXPERIMENT = """
common_args: {random_seed: 1}
data_args: {dataset: "data.py:load"}
model_args: {model: "nets.py:Named"}
train_args: {client_num_in_total: 3, client_num_per_round: 3, comm_round: 2, epochs: 1, batch_size: 8,
             learning_rate: 0.1}
device_args: {threads: 1, using_gpu: false}
dapper_args:
  method: dapperfl_slim
  levels: {ratios: [0.0, 0.2, 0.4]}
"""


def write(folder: Path) -> Path:
    (folder / "data.py").write_text(DATA)
    (folder / "nets.py").write_text(NETS)
    (folder / "experiment.yaml").write_text(EXPERIMENT)
    return folder / "experiment.yaml"


def outcome(file: Path, *overrides: str) -> tuple[Any, list[float]]:
    """The experiment, and its rounds' losses."""
    experiment = build_experiment(load_settings([file], [f"output_dir={file.parent / 'runs'}", *overrides]))
    _, rounds = simulate(experiment)
    return experiment, [client.loss for each in rounds for client in each.clients]


def test_whichever_way_they_are_handed_over_the_run_is_the_same(tmp_path: Path) -> None:
    file = write(tmp_path)
    experiment, losses = outcome(file)
    layout = experiment.method.problem.layout
    assert list(layout.groups) == ["inner"]
    assert losses == outcome(file, "model=nets.py:AsOne")[1]
    in_order = outcome(file, "model=nets.py:InOrder", "data_args.arguments={form: tuple}")
    assert losses == in_order[1]
    assert all(torch.isfinite(torch.tensor(losses)))


@pytest.mark.parametrize(
    "overrides",
    [
        ("dapper_args.params.dapperfl.gamma=0.1", "method=dapperfl"),
        ("micro_batch_size=3",),
        ("evaluation.personal=trained", "method=fedavg"),
        pytest.param(("method=moon",), marks=pytest.mark.long),
        pytest.param(("method=fedsr",), marks=pytest.mark.long),
        pytest.param(("method=fedfomo",), marks=pytest.mark.long),
        pytest.param(("method=heterofl",), marks=pytest.mark.long),
        pytest.param(("method=fjord",), marks=pytest.mark.long),
        pytest.param(("workers=2",), marks=pytest.mark.long),
    ],
)
def test_methods_and_settings_that_look_at_inputs(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    _, losses = outcome(write(tmp_path), *overrides)
    assert losses
    assert all(torch.isfinite(torch.tensor(losses)))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("model=lenet5",),
            r"`lenet5` takes one tensor, square colour images, and the data are {attention_mask: \(6,\)",
        ),
        (("method=fedcmd",), "fedcmd compares what layers give with what the network is given, one tensor"),
        (
            ("model=nets.py:InOrder",),
            r"takes neither the inputs' entries \(attention_mask, input_ids\) nor all of them",
        ),
    ],
)
def test_what_takes_one_tensor_says_so(tmp_path: Path, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_experiment(load_settings([write(tmp_path)], list(overrides)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("{'input_ids': ids, 'label': 1}", r"its items are {input_ids: Tensor int64 \(6,\), label: int}; .* take the"),
        ("(ids, mask, 1)", r"put inputs of several tensors together: \(\(first, second\), target\)"),
        ("({'inputs': ids[: 1 + i] / 2}, 1)", r"item \d is \({inputs: Tensor float32 \(\d,\)}, int\), and item \d+ is"),
        ("({'a': ids} if i else {'a': ids, 'b': mask}, 1)", r"item \d+ is \({a: .*, and item \d+"),
        ("({'a': ids, 'b': mask} if i else {'a': ids}, 1)", r"item \d+ is \({a: .*, and item \d+"),
        ("({'words': 'so it goes'}, 1)", r"its items are \({words: str}, int\); an item has to be"),
        ("([0.5, 1.5], 1)", r"its items are \(\(float, float\), int\); an item has to be"),
    ],
)
def test_items_that_do_not_fit_are_named(tmp_path: Path, item: str, message: str) -> None:
    file = write(tmp_path)
    (tmp_path / "data.py").write_text(DATA.replace("return inputs, int(self.labels[i])", f"return {item}"))
    with pytest.raises(DapperError, match=message) as caught:
        list(load_suite(load_settings([file]).data_args).domains[0].train.batches(8))
    assert "\n" not in str(caught.value)


def test_a_dict_that_is_not_finite_is_named_by_item(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path)
    broken = DATA.replace("ids, mask = self.ids[i], self.mask[i]", "ids, mask = self.ids[i], self.mask[i] / (i != 5)")
    (tmp_path / "data.py").write_text(broken)
    outcome(file, "comm_round=1", "method=fedavg", "workers=1")
    assert "domain mail, train: item 5 is not finite" in caplog.text
