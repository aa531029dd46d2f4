"""FIARSE's extraction and gradient, by hand and by autograd; what it shares is in test_sub_models.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedml_dapper.config import Importance, ModelArgs, Norm, PruningArgs, Settings, TrainArgs
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import ClientSide, Server, build_experiment
from fedml_dapper.methods import ClientProfile, Problem, ServerState
from fedml_dapper.methods.catalogue.fiarse import FIARSE, FIARSEParams, ImportanceGradient, importance
from fedml_dapper.models import Backbone, build_backbone, example_image
from fedml_dapper.pruning import Axis, ChannelGroup, ChannelLayout, TensorSpec, plan_by_importance, trace_layout
from fedml_dapper.pruning.layout import Scope

SettingsFactory = Callable[..., Settings]
FEW = ("method=fiarse", "client_num_in_total=4", "client_num_per_round=4", "client_share=0.05", "epochs=1")
LEVELS = ("ratios=[0.0, 0.3, 0.5, 0.7]", "assignment=index_mod")
GROUP, IMAGE = "stages.0.0.conv1", example_image(16)


class Chain(Backbone):
    """V (U x + b), with three channels in between."""

    def __init__(self, filters: list[list[float]], biases: list[float]) -> None:
        super().__init__()
        self.up, self.predictor = nn.Linear(len(filters[0]), 3), nn.Linear(3, 1, bias=False)
        with torch.no_grad():
            self.up.weight.copy_(torch.tensor(filters))
            self.up.bias.copy_(torch.tensor(biases))
            self.predictor.weight.fill_(1)

    def encode(self, inputs: Tensor) -> Tensor:
        return self.up(inputs)  # type: ignore[no-any-return]


def gradients(model: Chain, inputs: Tensor) -> Tensor:
    """The filters' gradients of the output, with what importance adds."""
    layout = trace_layout(model, inputs, "grouped")
    before_step = ImportanceGradient(model, layout, layout.groups)
    model(inputs).sum().backward()
    before_step()
    assert model.up.weight.grad is not None
    return model.up.weight.grad


def test_of_single_weights_it_is_the_paper_s() -> None:
    found = gradients(Chain([[2.0], [-3.0], [6.0]], [0.0, 0.0, 0.0]), torch.tensor([[1.0]]))
    factors = [1 + 2 * 2 * x / (x + 2) ** 2 for x in (2, 3, 6)]  # theta is 2, g is 1
    assert factors[0] == 1.5
    assert found.flatten().tolist() == pytest.approx(factors)


def test_of_filters_by_hand() -> None:
    model = Chain([[3.0, 4.0], [6.0, 8.0], [0.0, 20.0]], [0.0, 7.0, 0.0])
    found = gradients(model, torch.tensor([[1.0, 2.0]]))
    theta = 5.0  # I = 5, 10, 20; dL/dM = 3 + 8, 6 + 16 + 7, 40
    added = [
        [11 * 10 / 10**2 * each / 5 for each in (3, 4)],
        [29 * 10 / 15**2 * each / 10 for each in (6, 8)],
        [0.0, 40 * 10 / 25**2 * 1],
    ]
    assert theta == float(importance(trace_layout(model, torch.ones(1, 2), "grouped"), "up", state(model)).min())
    torch.testing.assert_close(found, torch.tensor([[1.0, 2.0]] * 3) + torch.tensor(added))
    assert model.up.bias.grad is not None
    assert model.up.bias.grad.tolist() == [1, 1, 1]  # what the importance does not depend on


def state(model: nn.Module) -> dict[str, Tensor]:
    return {"up.weight": model.state_dict()["up.weight"]}


def test_what_falls_below_the_threshold_learns_no_importance_until_the_next_round() -> None:
    model, inputs = Chain([[2.0], [-3.0], [6.0]], [0.0, 0.0, 0.0]), torch.tensor([[1.0]])
    layout = trace_layout(model, inputs, "grouped")
    before_step = ImportanceGradient(model, layout, layout.groups)
    with torch.no_grad():
        model.up.weight[0] = 1.9
    model(inputs).sum().backward()
    before_step()
    assert model.up.weight.grad is not None
    assert model.up.weight.grad.flatten().tolist() == pytest.approx([1, 1 + 2 * 2 * 3 / 5**2, 1 + 2 * 2 * 6 / 8**2])


def test_filters_of_zeros_add_nothing() -> None:
    found = gradients(Chain([[0.0], [1.0], [2.0]], [0.0, 0.0, 0.0]), torch.tensor([[1.0]]))
    assert found.flatten().tolist() == [1, 1, 1]  # nor do the others: theta is 0


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def masked(model: nn.Module, layout: ChannelLayout, inputs: Tensor) -> Tensor:
    """The outputs where a mask that grows with importance, by the paper's slope at its threshold, multiplies filters,
    gains, biases, scales and shifts."""
    tensors = dict(model.named_parameters())
    for group in layout.groups:
        own = importance_of(layout, group, dict(model.named_parameters()))
        theta = own.detach().min()
        slope = 2 * theta / (own.detach() + theta) ** 2
        mask = 1 + slope * (own - own.detach())
        for name, tensor in tensors.items():
            for axis in layout.tensors[name].axes:
                if axis.group == group and axis.dim == 0:
                    each = mask.repeat_interleave(axis.repeat)
                    tensors[name] = tensor * each.view(-1, *[1] * (tensor.dim() - 1))
    return functional_call(model, tensors, (inputs,))  # type: ignore[no-any-return]


def importance_of(layout: ChannelLayout, group: str, parameters: dict[str, Tensor]) -> Tensor:
    squares = []
    for producer in layout.groups[group].producers:
        name = producer.replace(".weight", ".gain") if layout.importance == "gains" else producer
        [axis] = [axis for axis in layout.tensors[name].axes if axis.group == group]
        each = parameters[name].square().view(len(parameters[name]), -1).sum(1)
        squares.append(each.view(-1, axis.repeat).sum(1))
    return torch.stack(squares).sum(0).sqrt()


def by_hand_and_by_autograd(
    norm: Norm, scope: Scope, importance: Importance
) -> tuple[Backbone, ChannelLayout, dict[str, Tensor], dict[str, Tensor]]:
    """A model, its layout, and its gradients without and with what importance adds, which is the chain rule's."""
    args = ModelArgs(model="resnet10", width=8, norm=norm)
    model = build_backbone(args, 10, seed=1).double().train()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    images, labels = torch.randn(6, 3, 16, 16, generator=generator).double(), torch.arange(6)
    layout = replace(trace_layout(build_backbone(args, 10, 1), IMAGE, scope), importance=importance)
    before_step = ImportanceGradient(model, layout, layout.groups)
    F.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
    plain = gradients_of(model)
    before_step()
    found = gradients_of(model)
    model.zero_grad()
    F.cross_entropy(masked(model, layout, images), labels).backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-6, rtol=1e-5)
    return model, layout, plain, found


@pytest.mark.parametrize("norm", ["batch", "group", "standardised"])
@pytest.mark.parametrize("scope", ["internal", "grouped"])
def test_it_is_the_chain_rule_through_the_mask(norm: Norm, scope: Scope) -> None:
    model, layout, plain, found = by_hand_and_by_autograd(norm, scope, "filters")
    name, [axis] = f"{GROUP}.weight", [each for each in layout.tensors[f"{GROUP}.weight"].axes if each.dim == 0]
    products = [(each[name] * model.get_parameter(name)).view(-1, axis.repeat * 72).sum(1) for each in (plain, found)]
    stretching = [float(each.detach().abs().max()) for each in products]
    assert stretching[0] < 1e-4 < stretching[1]  # norms hide the length of filters from the loss


@pytest.mark.parametrize("scope", ["internal", "grouped"])
def test_gains_learn_in_place_of_filters_where_they_are_the_importance(scope: Scope) -> None:
    _, layout, plain, found = by_hand_and_by_autograd("standardised", scope, "gains")
    changed = {name for name in plain if not torch.equal(plain[name], found[name])}
    assert changed == {
        producer.replace(".weight", ".gain") for group in layout.groups.values() for producer in group.producers
    }


def test_by_gains_the_largest_gains_are_kept_and_by_their_product_nothing_is(tiny_settings: SettingsFactory) -> None:
    by = "dapper_args.pruning.importance={}"
    experiment = build_experiment(tiny_settings(*FEW, *LEVELS, "norm=standardised", by.format("gains")))
    server = Server(experiment)
    with torch.no_grad():
        server.state.weights[f"{GROUP}.gain"][:6] = 0
    assert experiment.method.plan(server.state, 3).kept[GROUP].tolist() == [6, 7]
    with pytest.raises(ConfigError, match="choose filters or gains"):
        build_experiment(tiny_settings(*FEW, "norm=standardised", by.format("scaled_filters")))


def test_the_largest_l2_norms_are_kept() -> None:
    weights = {"a.weight": torch.tensor([[3.0, 0.0], [2.0, 2.0], [1.0, 1.5]])}  # 3, 2.83, 1.80; sums 3, 4, 2.5
    spec = TensorSpec((3, 2), torch.float32, True, 0, (Axis(0, "a"),))
    layout = ChannelLayout({"a": ChannelGroup("a", 3, ("a.weight",))}, {"a.weight": spec})
    assert importance(layout, "a", weights).tolist() == pytest.approx([3, 8**0.5, 3.25**0.5])
    assert plan_by_importance(layout, weights, {"a": 1}).kept["a"].tolist() == [1]  # FedMP's choice
    backbone = Chain([[3.0, 0.0], [2.0, 2.0], [1.0, 1.5]], [0.0] * 3)
    pruning = PruningArgs(scope="grouped", ratio_of="channels")
    problem = Problem(backbone, torch.ones(1, 2), TrainArgs(), pruning, uniform_weights=False, seed=0, ratios=(0.67,))
    server = ServerState(0, backbone.state_dict(), (ClientProfile(0, "d", 1, 0.67, 1),))
    assert FIARSE(FIARSEParams(), problem).plan(server, 0).kept["up"].tolist() == [0]


def uploads(settings: Settings) -> list[dict[str, Tensor]]:
    experiment = build_experiment(settings)
    server, clients = Server(experiment), ClientSide(experiment)
    sent = [server.downlink(client_id) for client_id in server.round_clients()]
    return [dict(clients.update(each, experiment.clients[each.client_id]).weights) for each in sent]


def test_what_is_held_whole_trains_by_plain_gradients(tiny_settings: SettingsFactory) -> None:
    off = "dapper_args.params.fiarse={importance_gradient: false}"
    learnt, plain = uploads(tiny_settings(*FEW, *LEVELS)), uploads(tiny_settings(*FEW, *LEVELS, off))
    same = [
        torch.equal(one[f"{GROUP}.weight"], other[f"{GROUP}.weight"]) for one, other in zip(learnt, plain, strict=True)
    ]
    assert same == [True, False, False, False]
    one_step = (*FEW, "ratios=[0.05]", "ratio_of=channels", "batch_size=999")  # cuts 1 of 16 channels, but none of 8
    learnt, plain = uploads(tiny_settings(*one_step)), uploads(tiny_settings(*one_step, off))
    for name, expected in ((GROUP, True), ("stages.1.0.conv1", False)):
        assert torch.equal(learnt[0][f"{name}.weight"], plain[0][f"{name}.weight"]) == expected
