"""A slim model is the masked dense model, only smaller."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from fedml_dapper.config import ModelArgs
from fedml_dapper.models import Backbone, build_backbone, example_image
from fedml_dapper.pruning import (
    ChannelLayout,
    PruningPlan,
    carry_optimizer_state,
    footprint,
    plan_by_importance,
    slim_model,
    slim_tensors,
    solve_widths,
    trace_layout,
)
from fedml_dapper.pruning.layout import Scope

LABELS = torch.arange(6)
SIZES = {
    "resnet18": (4, 16),
    "alexnet": (4, 72),
    "lenet5": (3, 20),
    "lenet5_one_fc": (3, 20),
    "lenet5_three_fc": (3, 20),
}
"""Backbone -> a narrow width, and a small side of its images."""


def images_for(name: str) -> torch.Tensor:
    size = SIZES[name][1]
    return torch.randn(6, 3, size, size, generator=torch.Generator().manual_seed(3))


def prepared(scope: Scope, name: str = "resnet18") -> tuple[Backbone, ChannelLayout, PruningPlan]:
    (width, size), images = SIZES[name], images_for(name)
    model = build_backbone(ModelArgs(model=name, width=width), 10, 1, example_image(size))
    model.train()
    for _ in range(2):  # statistics, affine weights and biases away from their initial values
        F.cross_entropy(model(images), LABELS).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.1)
    layout = trace_layout(model, example_image(size), scope)
    return model, layout, plan_by_importance(layout, model.state_dict(), solve_widths(layout, 0.5, "channels"))


def masked(model: Backbone, layout: ChannelLayout, plan: PruningPlan) -> tuple[Backbone, dict[str, torch.Tensor]]:
    """The dense model with every dropped coordinate at zero, BatchNorm biases too, and the 0/1 mask of each tensor."""
    dense = copy.deepcopy(model)
    masks = {}
    for name, tensor in dense.state_dict().items():
        mask = torch.ones_like(tensor)
        for axis in layout.tensors[name].axes:
            dropped = torch.ones(layout.groups[axis.group].channels, dtype=torch.bool)
            dropped[plan.kept[axis.group]] = False
            mask.index_fill_(axis.dim, dropped.repeat_interleave(axis.repeat).nonzero().flatten(), 0)
        masks[name] = mask
        if "running" not in name:
            tensor.mul_(mask)
    return dense, masks


@pytest.mark.parametrize("scope", ["internal", "grouped"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", SIZES)
def test_slim_equals_masked_in_logits_loss_and_gradients(name: str, scope: Scope, training: bool) -> None:
    model, layout, plan = prepared(scope, name)
    images = images_for(name)
    assert set(plan.kept) == set(layout.groups)
    slim, (dense, _) = slim_model(model, layout, plan), masked(model, layout, plan)
    outputs = []
    for network in (slim, dense):
        network.train(training)
        network.zero_grad()
        logits = network(images)
        F.cross_entropy(logits, LABELS).backward()  # type: ignore[no-untyped-call]
        outputs.append(logits)
    torch.testing.assert_close(outputs[0], outputs[1], atol=1e-5, rtol=1e-5)
    gradients = {name: parameter.grad for name, parameter in dense.named_parameters() if parameter.grad is not None}
    for tensor_name, kept in slim_tensors(gradients, layout, plan).items():
        gradient = slim.get_parameter(tensor_name).grad
        assert gradient is not None
        torch.testing.assert_close(gradient, kept, atol=1e-5, rtol=1e-4)
    statistics = slim_tensors(dense.state_dict(), layout, plan)
    for tensor_name, tensor in slim.state_dict().items():
        torch.testing.assert_close(tensor, statistics[tensor_name], atol=1e-5, rtol=1e-5)


def test_state_holds_only_kept_weights_and_layers_say_their_true_size() -> None:
    model, layout, plan = prepared("internal")
    slim = slim_model(model, layout, plan)
    cost = footprint(layout, plan.widths)
    assert sum(parameter.numel() for parameter in slim.parameters()) == cost.parameters
    assert cost.parameters < 0.6 * sum(parameter.numel() for parameter in model.parameters())
    convolution = slim.get_submodule("stages.0.0.conv1")
    assert convolution.out_channels == 2
    assert convolution.weight.untyped_storage().nbytes() == convolution.weight.nbytes  # no view into the dense tensor


def test_slimming_leaves_the_dense_model_alone() -> None:
    model, layout, plan = prepared("grouped")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    slim = slim_model(model, layout, plan)
    with torch.no_grad():
        for parameter in slim.parameters():
            parameter.fill_(7.0)
    slim.train()(images_for("resnet18"))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_momentum_follows_the_kept_channels() -> None:
    model, layout, plan = prepared("internal")
    dense_optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    dense_optimizer.step()
    slim = slim_model(model, layout, plan)
    slim_optimizer = torch.optim.SGD(slim.parameters(), 0.1, momentum=0.9)
    carry_optimizer_state(dense_optimizer, model, slim_optimizer, slim, layout, plan)
    name = "stages.0.0.conv1.weight"
    buffer = dense_optimizer.state[model.get_parameter(name)]["momentum_buffer"]
    carried = slim_optimizer.state[slim.get_parameter(name)]["momentum_buffer"]
    assert torch.equal(carried, buffer[plan.kept["stages.0.0.conv1"]])


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_training_goes_on_after_slimming_as_it_would_on_the_masked_model(kind: type[torch.optim.Optimizer]) -> None:
    model, layout, plan = prepared("grouped", "lenet5")
    model, images = model.double(), images_for("lenet5").double()
    settings = {"lr": 0.01, "weight_decay": 0.1} | ({"momentum": 0.9} if kind is torch.optim.SGD else {})

    def step(network: Backbone, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(images), LABELS).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    dense_optimizer = kind(model.parameters(), **settings)  # type: ignore[call-arg]
    for _ in range(3):
        step(model, dense_optimizer)
    slim = slim_model(model, layout, plan)
    slim_optimizer = kind(slim.parameters(), **settings)  # type: ignore[call-arg]
    carry_optimizer_state(dense_optimizer, model, slim_optimizer, slim, layout, plan)
    masks = masked(model, layout, plan)[1]
    for _ in range(3):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.mul_(masks[name])
        step(model, dense_optimizer)
        step(slim, slim_optimizer)
    for name, tensor in slim_tensors(dict(model.named_parameters()), layout, plan).items():
        torch.testing.assert_close(slim.get_parameter(name), tensor, atol=1e-9, rtol=1e-9)
