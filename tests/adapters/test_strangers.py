"""Adapters in BERT, GPT-2 and ViT as strangers bring them: what is cut is exact, and every method trains them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.config import AdapterArgs, LevelBudget, PruningArgs, Settings, load_settings
from fedml_dapper.federation import build_experiment, simulate
from fedml_dapper.federation.run_folder.model_file import load_model
from fedml_dapper.inputs import Inputs
from fedml_dapper.models import Backbone, adopt
from fedml_dapper.models.adapters import AdaptedLinear, add_adapters, merged
from fedml_dapper.pruning import ChannelLayout, PruningPlan, plan_by_importance, slim_model, trace_layout
from fedml_dapper.pruning.budgets import budgeted_levels
from fedml_dapper.pruning.slim import KeptIndices

from ..grids import sampled
from . import strangers

FILE = Path(strangers.__file__)
IDS = torch.randint(1, strangers.TOKENS, (3, strangers.LENGTH), generator=torch.Generator().manual_seed(1))
MASK = (torch.arange(strangers.LENGTH) < torch.tensor([[6], [4], [3]])).long()
TEXT = {"input_ids": IDS * MASK, "attention_mask": MASK}
PICTURES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "bert": (lambda: strangers.Bert(2), {**TEXT, "token_type_ids": MASK.flip(1)}),
    "gpt2": (strangers.GPT2, TEXT),
    "vit": (lambda: strangers.ViT(2), PICTURES),
}
BUDGETS = {"rank": LevelBudget(rank=2), "base": LevelBudget(base=0.2), "both": LevelBudget(rank=1, base=0.3)}
METHODS = ("dapperfl", "dapperfl_slim", "hetlora", "flexlora", "flora", "raflora", "fedavg", "fedavg_small")


class Logits(nn.Module):
    """The wrapper that a network of Hugging Face needs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Any) -> Tensor:
        given = inputs if isinstance(inputs, dict) else {"pixel_values": inputs}
        return self.network(**given).logits  # type: ignore[no-any-return]


def first(inputs: Inputs) -> Inputs:
    """A batch of one of ``inputs``."""
    return {name: part[:1] for name, part in inputs.items()} if isinstance(inputs, dict) else inputs[:1]


def adapted(network: nn.Module, inputs: Inputs) -> tuple[Backbone, ChannelLayout]:
    """The network with adapters that do something, and its channels."""
    backbone = adopt(network, first(inputs))
    add_adapters(backbone, AdapterArgs(rank=4, alpha=8), first(inputs), "the network")
    for layer in backbone.modules():
        if isinstance(layer, AdaptedLinear):
            nn.init.normal_(layer.lora_b, std=0.2)
    return backbone.eval(), trace_layout(backbone, first(inputs), "internal")


def silenced(backbone: Backbone, layout: ChannelLayout, plan: PruningPlan) -> Backbone:
    """The dense network with zeros for all that the plan drops."""
    quiet = copy.deepcopy(backbone)
    kept = KeptIndices(plan)
    for name, tensor in quiet.named_parameters():
        for dim, entries in kept.of(layout.tensors[name]).items():
            dropped = torch.ones(tensor.shape[dim], dtype=torch.bool)
            dropped[entries] = False
            tensor.data.index_fill_(dim, dropped.nonzero().flatten(), 0)
    return quiet


def check_cuts(network: nn.Module, inputs: Inputs, *heads: str) -> None:
    """Check that networks of lower rank and smaller base are the dense one with what they lack silenced.

    ``heads`` are endings of the layer after which heads of attention are called.
    """
    backbone, layout = adapted(network, inputs)
    base = {name for name, group in layout.groups.items() if group.partner is None}
    assert [name for name in base if name.endswith(heads)]
    assert layout.notes == ()
    for kind, budget in BUDGETS.items():
        [level] = budgeted_levels(layout, [budget], PruningArgs())
        plan = plan_by_importance(layout, backbone.state_dict(), level.widths)
        cut = {name in base for name in plan.kept}
        assert cut == {"rank": {False}, "base": {True}, "both": {False, True}}[kind]
        slim = slim_model(backbone, layout, plan)
        with torch.no_grad():
            outputs = slim(inputs)
            torch.testing.assert_close(outputs, silenced(backbone, layout, plan)(inputs), rtol=1e-5, atol=1e-5)
            assert not torch.allclose(outputs, backbone(inputs), rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(merged(slim)(inputs), outputs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "heads"), [("bert", ".query"), ("gpt2", ".c_attn"), ("vit", ".query")])
def test_sliced_equals_silenced_for_rank_and_base(name: str, heads: str) -> None:
    build, inputs = NETWORKS[name]
    check_cuts(build(), inputs, heads)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    """Settings of a round of four clients in two levels."""
    levels = "{assignment: [1, 2, 1, 2], budgets: [{rank: 4}, {rank: 2, base: 0.2}]}"
    (tmp_path / "levels.yaml").write_text(f"dapper_args: {{levels: {levels}}}\n")
    of_network = {
        "bert": (f"dataset={FILE}:sentences", f"model={FILE}:Bert"),
        "gpt2": (f"dataset={FILE}:texts", f"model={FILE}:GPT2", "task=language_modelling"),
        "vit": (f"dataset={FILE}:pictures", f"model={FILE}:ViT"),
    }
    few = (
        "client_num_in_total=4", "client_num_per_round=4", "comm_round=1", "epochs=1", "batch_size=8", "workers=1",
        "client_optimizer=adamw", "learning_rate=0.01", "image_size=null", f"output_dir={tmp_path}",
        "model_args.adapter={rank: 4, alpha: 8}", "dapper_args.params.dapperfl={gamma: 0}",
        "dapper_args.params.dapperfl_slim={distillation: 0}",
    )  # fmt: skip

    def build(network: str, *overrides: str) -> Settings:
        return load_settings([tmp_path / "levels.yaml"], [*of_network[network], *few, *overrides])

    return build


@pytest.mark.parametrize(
    ("case", "network", "method"),
    sampled(
        ((f"{network} {method}", network, method) for network in NETWORKS for method in METHODS),
        always=("bert dapperfl_slim", "gpt2 dapperfl", "gpt2 flora", "vit hetlora"),
    ),
)
def test_a_round_of_every_method(
    settings: Callable[..., Settings], tmp_path: Path, case: str, network: str, method: str
) -> None:
    experiment = build_experiment(settings(network, f"method={method}"))
    layout = experiment.method.problem.layout
    before = experiment.method.problem.backbone.state_dict()
    server, [record] = simulate(experiment, run_dir=tmp_path / "run")
    after = server.whole_model()
    sizes = {client.bytes_up for client in record.clients}
    assert len(sizes) == (1 if method in ("fedavg", "fedavg_small") else 2)
    assert all(torch.isfinite(tensor).all() for tensor in after.values())
    products = [name for name in after if name.endswith("lora_b")]
    assert len(after[products[0]].t()) == (2 if method == "fedavg_small" else 4)
    if method == "flora":  # whose products go into the base
        bases = [name.replace("lora_b", "weight") for name in products]
        assert any(not after[name].equal(before[name]) for name in bases)
    else:
        assert any(after[name].abs().max() > 0 for name in products)
        assert all(after[name].equal(before[name]) for name, spec in layout.tensors.items() if spec.frozen)
    inputs = NETWORKS[network][1]
    read = load_model(tmp_path / "run" / "global_model.safetensors")
    torch.testing.assert_close(read(inputs), experiment.method.global_model(server.state).eval()(inputs))


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
"""Sizes of the networks of libraries, as BERT and ViT name them."""


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_networks_of_hugging_face(attention: str) -> None:
    transformers = pytest.importorskip("transformers")
    bert = transformers.BertConfig(**SIZES, vocab_size=strangers.TOKENS, attn_implementation=attention, num_labels=2)
    check_cuts(Logits(transformers.BertForSequenceClassification(bert)), NETWORKS["bert"][1], ".query")
    gpt2 = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=strangers.TOKENS, attn_implementation=attention
    )
    check_cuts(Logits(transformers.GPT2LMHeadModel(gpt2)), TEXT, ".c_attn")
    vit = transformers.ViTConfig(**SIZES, image_size=16, patch_size=8, attn_implementation=attention, num_labels=2)
    check_cuts(Logits(transformers.ViTForImageClassification(vit)), PICTURES, ".query", ".q_proj")


def test_a_network_of_timm() -> None:
    vision_transformer = pytest.importorskip("timm.models.vision_transformer")
    network = vision_transformer.VisionTransformer(
        img_size=16, patch_size=8, embed_dim=32, depth=2, num_heads=4, num_classes=2
    )
    check_cuts(network, PICTURES, ".qkv")
