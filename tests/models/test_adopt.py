"""Anybody's module as a backbone: which layer is the predictor, whose names tensors have, what cannot be used."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.errors import ConfigError
from fedml_dapper.models import ExtendedBackbone, adopt, example_image
from fedml_dapper.pruning import plan_window, slim_model, trace_layout

EXAMPLE = example_image(8)


class Net(nn.Module):
    """A small network; ``behind`` is what it does with its last linear layer's output."""

    def __init__(self, behind: Callable[[Tensor], Tensor] = nn.Identity()) -> None:  # noqa: B008
        super().__init__()
        self.behind = behind
        self.fc = nn.Linear(6, 4)  # registered first, called last
        self.conv = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, images: Tensor) -> Tensor:
        return self.behind(self.fc(F.relu(self.norm(self.conv(images))).mean(dim=(2, 3))))


class Awkward(nn.Module):
    """Gives its layers the names that a backbone has for other things."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten(), nn.LazyLinear(6))
        self.predictor = nn.Sequential(nn.ReLU(), nn.Linear(6, 4))
        self.scale = nn.Parameter(torch.ones(6))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.predictor(self.encode(images) * self.scale)
        return result


class Gated(nn.Module):
    """Its only linear layer is in the middle; what it puts out is a convolution's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.Conv2d(4, 7, 1)

    def forward(self, images: Tensor) -> Tensor:
        features = self.conv(images)
        gates = self.gate(features.mean(dim=(2, 3)))[:, :, None, None]
        return self.head(features * gates).mean(dim=(2, 3))


class Aside(Net):
    """Its last call is of a linear layer that has no part in the output."""

    def __init__(self) -> None:
        super().__init__()
        self.aside = nn.Linear(4, 4)

    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        self.aside(logits)
        return logits


@pytest.mark.parametrize(
    ("module", "name", "representations"),
    [
        (Net(), "fc", True),
        (Net(lambda logits: F.log_softmax(logits, dim=1)), "fc", True),
        (Net(F.relu), "fc", False),
        (Net(lambda logits: logits + 1), "fc", False),
        (Awkward(), "predictor.1", True),
        (Gated(), None, False),
        (Aside(), "fc", True),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), "1", True),
        (nn.Sequential(nn.Flatten(2), nn.Linear(64, 5), nn.Flatten(), nn.AdaptiveAvgPool1d(5)), "1", False),
    ],
)
def test_the_predictor_is_the_last_linear_layer_on_the_way_out(
    module: nn.Module, name: str | None, representations: bool
) -> None:
    backbone = adopt(module, EXAMPLE)
    assert (backbone.predictor_name, backbone.has_representations) == (name, representations)
    images = torch.randn(3, 3, 8, 8)
    assert torch.equal(backbone.eval()(images), module.eval()(images))
    if representations:
        assert torch.equal(backbone.predict(backbone.encode(images)), module(images))
        assert backbone.predictor is module.get_submodule(str(name))


def test_a_head_of_zeros_does_not_hide_what_comes_behind_it() -> None:
    module = Net(F.relu)
    nn.init.zeros_(module.fc.weight)
    nn.init.zeros_(module.fc.bias)
    assert not adopt(module, EXAMPLE).has_representations
    assert not module.fc.weight.any()  # the probing left it as it was


def test_another_layer_can_be_named() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.ReLU(), nn.Linear(6, 4))
    assert not adopt(module, EXAMPLE, "1").has_representations
    assert adopt(module, EXAMPLE, "3").has_representations


@pytest.mark.parametrize("module", [Net(), Awkward()])
def test_names_are_the_module_s_own_and_tensors_are_shared(module: nn.Module) -> None:
    backbone = adopt(module, EXAMPLE)
    assert list(backbone.state_dict()) == list(module.state_dict())
    assert [name for name, _ in backbone.named_parameters()] == [name for name, _ in module.named_parameters()]
    backbone.load_state_dict({name: torch.ones_like(tensor) for name, tensor in backbone.state_dict().items()})
    assert all(bool((tensor == 1).all()) for tensor in module.state_dict().values())
    copied = copy.deepcopy(backbone).train()
    assert (copied.module.training, copied.eval().module.training) == (True, False)
    for parameter in copied.parameters():
        parameter.data.zero_()
    assert all(bool((tensor == 1).all()) for tensor in module.state_dict().values())
    assert not copied(torch.ones(1, 3, 8, 8)).any()  # the copy runs on its own tensors


def test_probing_changes_neither_the_module_nor_torch_s_generator() -> None:
    module = nn.Sequential(Net(), nn.Dropout())
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    adopt(module, EXAMPLE)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert module.training


def test_layers_stand_in_the_order_of_the_forward_pass() -> None:
    assert adopt(Net(F.relu), EXAMPLE).module_order == ["", "conv", "norm", "fc"]


def test_a_slim_model_is_the_module_with_fewer_channels() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(6, 4),
    )  # fmt: skip
    backbone = adopt(module, EXAMPLE).eval()
    layout = trace_layout(backbone, EXAMPLE, "internal")
    slim = slim_model(backbone, layout, plan_window(layout, {"0": 5}, 0))
    assert {name: tuple(tensor.shape) for name, tensor in slim.state_dict().items() if tensor.dim() > 1} == {
        "0.weight": (5, 3, 3, 3), "3.weight": (6, 5, 3, 3), "6.weight": (4, 6)
    }  # fmt: skip
    silenced = copy.deepcopy(backbone)
    silenced.get_submodule("3").weight.data[:, 5:] = 0  # type: ignore[operator, union-attr]
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(slim(images), silenced(images))


class Doubled(ExtendedBackbone):
    def encode(self, inputs: Tensor) -> Tensor:
        return 2 * self.encoder.encode(inputs)


@pytest.mark.parametrize("module", [Net(), Awkward()])
def test_layers_can_be_put_between_encoder_and_predictor(module: nn.Module) -> None:
    backbone = adopt(module, EXAMPLE).eval()
    doubled, images = Doubled(backbone).eval(), torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(doubled(images), backbone.predict(2 * backbone.encode(images)))
    assert sum(tensor.numel() for tensor in doubled.state_dict().values()) == sum(
        tensor.numel() for tensor in backbone.state_dict().values()
    )


class Pair(nn.Module):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images, images


@pytest.mark.parametrize(
    ("module", "predictor", "message"),
    [
        (
            nn.Linear(7, 4),
            None,
            r"cannot be trained on inputs of shape \(B, 3, 8, 8\) float32: RuntimeError: .*mat1 and",
        ),
        (Pair(), None, "returns tuple in training, expected one tensor with a row an input"),
        (nn.Flatten(0), None, r"gives \(768,\) for 4 inputs"),
        (Net(), "fcc", "has no layer `fcc`; did you mean `fc`"),
        (Net(), "conv", "`conv` of the network Net is Conv2d, no nn.Linear"),
        (nn.ModuleDict({"a": nn.Linear(2, 2)}), None, "cannot be trained .*NotImplementedError"),
    ],
)
def test_what_cannot_be_used_is_one_line(module: nn.Module, predictor: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        adopt(module, EXAMPLE, predictor)
    assert "\n" not in str(caught.value)


def test_a_layer_without_part_in_the_forward_pass_is_no_predictor() -> None:
    module = Net()
    module.spare = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="`spare` of the network Net has no part in its forward pass"):
        adopt(module, EXAMPLE, "spare")


def test_inputs_may_be_numbers_of_words() -> None:
    words = nn.Sequential(nn.EmbeddingBag(10, 6), nn.Linear(6, 3))
    assert adopt(words, torch.zeros(1, 5, dtype=torch.int64)).predictor_name == "1"


class Amp(Net):
    """Chooses its own precision, as scripts for a GPU do."""

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(images)


class InBfloat16(Net):
    def __init__(self) -> None:
        super().__init__()
        self.to(torch.bfloat16)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.to(torch.bfloat16)).float()


@pytest.mark.parametrize("module", [Amp(), InBfloat16()], ids=["autocast", "bfloat16"])
def test_a_network_may_choose_its_own_precision(module: nn.Module) -> None:
    """Then nobody knows how it goes on from what is before its last layer."""
    adopted = adopt(module, EXAMPLE)
    assert adopted.predictor_name == "fc"
    assert not adopted.has_representations


class Quiet(Net):
    """Freezes a norm in training, and forgets to return itself."""

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)
        self.norm.eval()


def test_a_train_that_returns_nothing_is_enough() -> None:
    assert adopt(Quiet(), EXAMPLE).predictor_name == "fc"


class Late(Net):
    """Makes a buffer when it first runs."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.persistent = persistent

    def forward(self, images: Tensor) -> Tensor:
        if "mask" not in dict(self.named_buffers()):
            self.register_buffer("mask", torch.ones(6), persistent=self.persistent)
        return super().forward(images)


def test_a_tensor_that_the_forward_pass_makes_is_named() -> None:
    with pytest.raises(ConfigError, match=r"`mask` is made in its forward pass, .* make it in __init__"):
        adopt(Late(persistent=True), EXAMPLE)
    assert adopt(Late(persistent=False), EXAMPLE).predictor_name == "fc"


def test_a_network_of_which_nothing_is_trained_is_refused() -> None:
    with pytest.raises(ConfigError, match="the network Net has no parameter that is trained; give one requires_grad"):
        adopt(Net().requires_grad_(False), EXAMPLE)
