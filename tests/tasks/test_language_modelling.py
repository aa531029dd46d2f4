"""Causal language modelling: perplexity by hand, padding, and a federation of texts."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log
from pathlib import Path

import pytest
import torch
from torch import nn

from fedml_dapper.config import Settings, TrainArgs, load_settings
from fedml_dapper.datasets import Batch
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.federation import build_experiment, simulate
from fedml_dapper.methods.contract.step import Step
from fedml_dapper.models.adopt import adopt
from fedml_dapper.tasks import LanguageModelling, NextToken

SettingsFactory = Callable[..., Settings]
TEXTS = '''
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

LENGTH = 12


def rows(text, count):
    """Inputs by name, as Hugging Face's networks take them, and the tokens that follow; the last row is padded."""
    tokens = torch.tensor(list(text.encode()))
    starts = range(0, count)
    ids = torch.stack([tokens[start : start + LENGTH] for start in starts])
    following = torch.stack([tokens[start + 1 : start + LENGTH + 1] for start in starts])
    following[:, LENGTH // 2 :: 3] = -100
    return [({"input_ids": a, "attention_mask": torch.ones_like(a)}, b) for a, b in zip(ids, following)]


def load():
    return {
        "fox": (rows("the quick brown fox jumps over the lazy dog. " * 8, 60), rows("the lazy dog, the fox. " * 4, 20)),
        "sea": (rows("she sells sea shells by the sea shore. " * 8, 60), rows("by the sea she sells shells. " * 4, 20)),
    }


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embedding = nn.Embedding(128, width)
        self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 32), nn.Linear(32, width)
        self.head = nn.Linear(width, 128)

    def forward(self, input_ids, attention_mask):
        x = self.embedding(input_ids)
        k, v = self.key(x), self.value(x)
        x = x + self.out(F.scaled_dot_product_attention(k[:, None], k[:, None], v[:, None], is_causal=True)[:, 0])
        return self.head(self.norm(x + self.down(F.gelu(self.up(x)))))
'''


UNEQUAL = """

def item(words, mask):
    tokens = torch.tensor(list(words.encode()))
    inputs = {"input_ids": tokens[:-1], "attention_mask": torch.ones_like(tokens[:-1])}
    return (inputs if mask else {"input_ids": tokens[:-1]}), tokens[1:]


def unequal(mask=True):
    fox = ["the quick brown fox", "jumps over", "the lazy dog", "and over the fence"] * 10
    sea = ["she sells", "sea shells", "by the shore of the sea", "in the sun"] * 10
    return {name: ([item(one, mask) for one in said], [item(one, mask) for one in said[:8]])
            for name, said in (("fox", fox), ("sea", sea))}
"""


def test_perplexity_by_hand() -> None:
    task = LanguageModelling()
    shares = torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]])
    targets = torch.tensor([[0, 2, -100]])  # probabilities 0.5 and 0.1; the third does not count
    mean = -(log(0.5) + log(0.1)) / 2
    assert float(task.loss(shares.log(), targets)) == pytest.approx(mean)
    sums = task.sums(shares.log(), targets)
    assert task.figures(sums) == {
        "perplexity": pytest.approx(exp(mean)),
        "next-token accuracy": 50.0,
    }
    twice = {name: 2 * value for name, value in sums.items()}  # batches add up
    assert task.figures(twice) == pytest.approx(task.figures(sums))
    assert NextToken().figures(sums) == {"Top-1 accuracy": 50.0, "perplexity": pytest.approx(exp(mean))}


def test_a_prediction_is_one_of_a_position() -> None:
    outputs = torch.arange(24.0).view(2, 3, 4)
    assert torch.equal(LanguageModelling().logits(outputs)[4], outputs[1, 1])


def test_a_batch_of_padding_alone_teaches_nothing() -> None:
    task = LanguageModelling(ignore_index=0)
    outputs = torch.zeros(1, 2, 3, requires_grad=True)
    task.loss(outputs, torch.zeros(1, 2, dtype=torch.int64)).backward()
    assert outputs.grad is not None
    assert not outputs.grad.any()
    with pytest.raises(DataError, match="no token that counts"):
        task.figures(task.sums(outputs, torch.zeros(1, 2, dtype=torch.int64)))


def test_what_does_not_fit_is_said() -> None:
    task = LanguageModelling()
    assert "(B, T, V) is expected" in task.misfit(torch.zeros(2, 5), 5)
    assert task.misfit(torch.zeros(2, 3, 5), 1) == ""
    assert "the token that follows each position" in task.misfit_of_targets(torch.zeros(2, dtype=torch.int64), 1)
    assert "tokens.long()" in task.misfit_of_targets(torch.zeros(2, 3), 1)
    assert "tokens with the number -1" in task.misfit_of_targets(torch.tensor([[-1, 2]]), 1)
    with pytest.raises(DataError, match="one is needed for each position"):
        task.loss(torch.zeros(2, 3, 5), torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(DataError, match="one is needed for each position"):
        task.sums(torch.zeros(2, 3, 5), torch.zeros(2, 4, dtype=torch.int64))


@pytest.fixture
def texts(tmp_path: Path) -> Callable[..., Settings]:
    """Four clients of two texts."""
    (tmp_path / "texts.py").write_text(TEXTS)

    def build(*overrides: str) -> Settings:

        named = (
            f"dataset={tmp_path / 'texts.py'}:load",
            f"model={tmp_path / 'texts.py'}:Net",
            f"output_dir={tmp_path}",
        )
        few = (
            "client_num_in_total=4",
            "client_num_per_round=4",
            "epochs=2",
            "batch_size=8",
            "comm_round=6",
            "workers=1",
        )
        rates = ("learning_rate=0.01", "client_optimizer=adamw", "image_size=null", "method=fedavg")
        return load_settings([], ["task=language_modelling", *named, *few, *rates, *overrides])

    return build


@pytest.mark.parametrize(
    ("adapter", "levels"),
    [("null", "[{base: 0.0}, {base: 0.2}]"), ("{rank: 4, alpha: 8}", "[{rank: 4}, {rank: 2}]")],
)
def test_perplexity_falls_in_a_federation_of_texts(texts: Callable[..., Settings], adapter: str, levels: str) -> None:
    asked = ("method=dapperfl", "params.dapperfl.gamma=0", f"dapper_args.levels={levels}")
    experiment = build_experiment(texts(*asked, f"model_args.adapter={adapter}"))
    _, rounds = simulate(experiment)
    scores = [record.scores for record in (rounds[0], rounds[-1])]
    first, last = (score.global_accuracy for score in scores if score is not None)
    assert last < 0.8 * first
    assert first < 128  # fewer than there are letters


@pytest.mark.parametrize("method", ["fedavg", "dapperfl_slim"])
def test_texts_of_unequal_length_are_padded_by_batch(
    texts: Callable[..., Settings], tmp_path: Path, method: str
) -> None:
    """As an outsider's file gives them: tokens of Hugging Face's kind, without padding."""
    (tmp_path / "texts.py").write_text(TEXTS + UNEQUAL)
    asked = (f"method={method}", "dapper_args.levels=[{base: 0.0}, {base: 0.2}]")
    experiment = build_experiment(texts(*asked, f"dataset={tmp_path / 'texts.py'}:unequal", "comm_round=3"))
    [*_, batch] = experiment.clients[0].batches(1, 0)
    assert isinstance(batch.inputs, dict)
    mask = batch.inputs["attention_mask"]
    assert len(set(mask.sum(1).tolist())) > 1
    assert torch.equal(mask == 0, batch.targets == -100)
    _, rounds = simulate(experiment)
    first, last = (record.scores for record in (rounds[0], rounds[-1]))
    assert first is not None
    assert last is not None
    assert last.global_accuracy < first.global_accuracy < 128


def test_a_mask_that_is_wanted_and_not_given_is_one_line(texts: Callable[..., Settings], tmp_path: Path) -> None:
    (tmp_path / "texts.py").write_text(TEXTS + UNEQUAL)
    with pytest.raises(ConfigError, match=r"takes neither the inputs' entries \(input_ids\) nor all of them"):
        build_experiment(texts(f"dataset={tmp_path / 'texts.py'}:unequal", "data_args.arguments={mask: false}"))


def test_a_method_that_goes_by_classes_is_refused(texts: Callable[..., Settings]) -> None:
    with pytest.raises(ConfigError, match="one class a sample"):
        build_experiment(texts("method=fpl"))


def test_pieces_of_a_batch_count_by_their_tokens() -> None:
    """One text has six tokens that count, the other one; each piece is a text."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(2, 6, 4, generator=generator)
    targets = torch.tensor([[0, 1, 2, 3, 4, 0], [1, -100, -100, -100, -100, -100]])
    task = LanguageModelling()
    found = []
    for pieces in (None, 1):
        torch.manual_seed(1)
        model = adopt(nn.Linear(4, 5), inputs)
        args = TrainArgs(client_optimizer="sgd", learning_rate=0.5, momentum=0.0, micro_batch_size=pieces)
        total = torch.zeros((), dtype=torch.float64)

        def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
            return task.loss(model(batch.inputs), batch.targets)

        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        Step(model, optimizer, total, loss, args, "fp32", None, None, None, task.weight)(Batch(inputs, targets))
        found.append((total, *(parameter.detach().clone() for parameter in model.parameters())))
    for whole, by_pieces in zip(*found, strict=True):
        torch.testing.assert_close(by_pieces, whole)


def test_networks_in_half_precision_have_sums_in_full() -> None:
    outputs = torch.randn(1, 4096, 7, generator=torch.Generator().manual_seed(3)).mul(20)
    targets = torch.zeros(1, 4096, dtype=torch.int64)
    task = LanguageModelling()
    full = task.sums(outputs.half().float(), targets)["loss"]
    assert full > torch.finfo(torch.float16).max
    torch.testing.assert_close(task.sums(outputs.half(), targets)["loss"], full)
