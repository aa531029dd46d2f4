"""The built-in causal transformer: what it sees, what it takes, and that slim ones are the dense one silenced."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import ModelArgs
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.models import Backbone, build_backbone, example_image
from fedml_dapper.pruning import PruningPlan, slim_model, trace_layout

TEXT = torch.arange(12)[None]


def built(width: int = 32, tokens: int = 20, example: Tensor = TEXT) -> Backbone:
    return build_backbone(ModelArgs(model="transformer_small", width=width), tokens, 1, example).eval()


def test_a_position_does_not_see_what_follows() -> None:
    network = built()
    other = TEXT.clone()
    other[0, 7:] += 1
    before, after = network(TEXT), network(other)
    assert before.shape == (1, 12, 20)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


def test_padding_behind_a_text_needs_no_mask() -> None:
    network = built()
    torch.testing.assert_close(network(TEXT)[:, :5], network(TEXT[:, :5]), rtol=1e-5, atol=1e-6)


def test_a_longer_text_is_refused_in_one_line() -> None:
    with pytest.raises(DataError, match="built for texts of 12 tokens, as the first of the data is, and one has 13"):
        built()(torch.zeros(1, 13, dtype=torch.int64))


def test_its_size() -> None:
    network = build_backbone(ModelArgs(model="transformer_small"), 128, 1, torch.zeros(1, 64, dtype=torch.int64))
    assert sum(parameter.numel() for parameter in network.parameters()) == 170_688


@pytest.mark.parametrize(
    ("width", "tokens", "example", "message"),
    [
        (40, 20, TEXT, "a head for each 16 channels; 40 is no multiple of that"),
        (32, 0, TEXT, "data_args.classes"),
        (32, 20, example_image(32), r"takes tokens, int64 \(T,\), and the data are float32 \(3, 32, 32\)"),
        (32, 20, TEXT.int(), r"the data are int32 \(12,\)"),
    ],
)
def test_what_does_not_fit_is_one_line(width: int, tokens: int, example: Tensor, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        built(width, tokens, example)
    assert "\n" not in str(error.value)


def test_a_network_for_pictures_does_not_take_texts() -> None:
    with pytest.raises(ConfigError, match="takes square colour images"):
        build_backbone(ModelArgs(model="resnet10"), 20, 1, TEXT)


def test_heads_and_inner_widths_are_cut() -> None:
    network = built()
    layout = trace_layout(network, TEXT, "internal")
    assert layout.notes == ()
    assert layout.groups.keys() == {f"blocks.{block}.{layer}" for block in range(3) for layer in ("query", "up")}
    slim = slim_model(
        network, layout, PruningPlan({"blocks.0.query": torch.tensor([1]), "blocks.1.up": torch.arange(9)})
    )
    quiet = copy.deepcopy(network)
    quiet.get_parameter("blocks.0.out.weight").data[:, :16] = 0
    quiet.get_parameter("blocks.1.down.weight").data[:, 9:] = 0
    torch.testing.assert_close(slim(TEXT), quiet(TEXT), rtol=1e-5, atol=1e-5)
