"""Every group is tried, in evaluation and in training: what goes wrong leaves its channels whole, with a note."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from fedml_dapper.pruning import ChannelLayout, trace_layout
from fedml_dapper.pruning.draws import Draws
from fedml_dapper.pruning.layout import Scope
from fedml_dapper.pruning.verification import Trial

IMAGE = torch.zeros(1, 3, 8, 8)
Forward = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    """Three convolutions, one of them aside, a head, and a forward pass of the user's."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.extra = nn.Conv2d(16, 16, 1)
        self.fc = nn.Linear(16, 4)
        self.between = forward

    def forward(self, x: Tensor) -> Tensor:
        x = self.between(self, F.relu(self.a(x)))
        return self.fc(F.relu(self.b(x)).mean((2, 3)))  # type: ignore[no-any-return]


def rearranged(rearrange: nn.Module, channels: int) -> nn.Module:
    """Plain layers around one without parameters, which makes ``channels`` of 16."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), rearrange, nn.Conv2d(channels, 12, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4),
    )  # fmt: skip


class Averaged(nn.Module):
    """Makes one channel of all."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1, keepdim=True)


class SpatialTransformer(nn.Module):
    """Looks at the picture through a grid that layers of its own compute."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 6)
        )
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 12, 3, padding=1)
        self.fc = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        grid = F.affine_grid(self.place(x).view(-1, 2, 3), list(x.shape), align_corners=False)
        x = F.relu(self.a(F.grid_sample(x, grid, align_corners=False)))
        return self.fc(F.relu(self.b(x)).mean((2, 3)))  # type: ignore[no-any-return]


def cut_in(network: nn.Module, example: Tensor = IMAGE, scope: Scope = "grouped") -> ChannelLayout:
    """Its layout. With a predictor, so that torch-pruning is asked, too."""
    head = [layer for layer in network.modules() if isinstance(layer, nn.Linear)][-1]
    return trace_layout(network, example, scope, head)


REARRANGED: Mapping[str, tuple[nn.Module, int]] = {
    "pixel_shuffle": (nn.PixelShuffle(2), 4),
    "pixel_unshuffle": (nn.PixelUnshuffle(2), 64),
    "channel_shuffle": (nn.ChannelShuffle(4), 16),
    "_softmax": (nn.Softmax2d(), 16),
    "col2im": (nn.Sequential(nn.Flatten(2), nn.Fold((16, 16), 2, stride=2)), 4),
    "a view spreads the channels": (nn.Sequential(nn.Unflatten(1, (4, 4)), nn.Flatten(2, 3)), 4),
    "`mean` works along the channels": (Averaged(), 1),
}
"""What the note says, the layers in between, and how many channels they make of 16."""


@pytest.mark.parametrize("why", REARRANGED)
def test_layers_without_parameters_may_rearrange_channels(why: str) -> None:
    layer, channels = REARRANGED[why]
    layout = cut_in(rearranged(layer, channels))
    assert list(layout.groups) == ["3"]
    [note] = layout.notes
    assert note.startswith("`0` not cut:")
    assert why in note


def test_where_the_dependency_graph_is_right_it_stays() -> None:
    """Patches of four values a channel, which are not followed."""
    layout = cut_in(rearranged(nn.Sequential(nn.Unfold(2, stride=2), nn.Unflatten(2, (4, 4))), 64))
    assert list(layout.groups) == ["0", "3"]
    assert not layout.notes


def test_a_spatial_transformer_keeps_what_its_grid_is_made_of() -> None:
    layout = cut_in(SpatialTransformer())
    assert list(layout.groups) == ["place.0", "a", "b"]
    assert list(cut_in(SpatialTransformer(), scope="internal").groups) == ["place.0", "a"]
    [note] = layout.notes
    assert note.startswith("`place.4` not cut:")


def only_while_training(net: Net, x: Tensor) -> Tensor:
    return x + 0.1 * F.relu(net.extra(x)) if net.training else x


def only_in_evaluation(net: Net, x: Tensor) -> Tensor:
    return x[:, torch.arange(16)] if net.training else net.extra(x)


def sliced_while_training(net: Net, x: Tensor) -> Tensor:
    return torch.cat([x[:, :8] * 2, x[:, 8:]], dim=1) if net.training else x


def scaled_while_training(net: Net, x: Tensor) -> Tensor:
    return x / x.shape[1] if net.training else x / 16


def there_by_chance(net: Net, x: Tensor) -> Tensor:
    return x + net.extra(x) if net.training and float(torch.rand(())) < 0.2 else x


def left_out_by_chance(net: Net, x: Tensor) -> Tensor:
    return x if not net.training or float(torch.rand(())) < 0.2 else x + net.extra(x)


BRANCHES: Mapping[str, Forward] = {
    each.__name__: each
    for each in (
        only_while_training, only_in_evaluation, sliced_while_training, scaled_while_training, there_by_chance,
        left_out_by_chance,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", BRANCHES)
def test_what_is_only_there_while_training_is_tried(name: str) -> None:
    layout = cut_in(Net(BRANCHES[name]))
    assert "b" in layout.groups
    assert "a" not in layout.groups
    assert any(note.startswith("`a` not cut: without some of its channels it") for note in layout.notes) or any(
        "while training" in note for note in layout.notes
    )
    assert all("while training" in note or note.startswith("`extra` did not run") for note in layout.notes)


def python_s_chance(net: Net, x: Tensor) -> Tensor:
    if not net.training:
        return x
    return x * (0.5 + random.random()) * (0.5 + float(np.random.rand()))


DRAWN: Mapping[str, Forward] = {
    "dropout": lambda net, x: F.dropout(x, 0.4, net.training),
    "dropout of channels": lambda net, x: F.dropout2d(x, 0.4, net.training),
    "alpha dropout": lambda net, x: F.alpha_dropout(x, 0.4, net.training),
    "stochastic depth": lambda net, x: x * torch.empty(len(x), 1, 1, 1).bernoulli_(0.6) if net.training else x,
    "an older one": lambda net, x: x / 0.6 * (0.6 + torch.rand(len(x), 1, 1, 1)).floor() if net.training else x,
    "noise": lambda net, x: x + x.abs() * torch.randn_like(x) if net.training else x,
    "noise of a distribution": lambda net, x: torch.distributions.Normal(x, 0.1 * x.abs() + 1e-6).rsample() * (x > 0),
    "masks": lambda net, x: x * torch.bernoulli(torch.full_like(x, 0.7)) if net.training else x,
    "Gumbel": lambda net, x: x * F.gumbel_softmax(torch.zeros(len(x), 1, 1, 2))[..., :1] if net.training else x,
    "random slopes": lambda net, x: F.rrelu(x - 1, training=net.training),
    "random slopes in place": lambda net, x: F.rrelu_(x - 1, training=net.training),
    "Python's and numpy's": python_s_chance,
}


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_is_drawn_alike(name: str) -> None:
    """So that networks with random layers lose the channels that they lost before anybody tried them in training."""
    layout = cut_in(Net(DRAWN[name]))
    assert not [note for note in layout.notes if "while training" in note]
    assert "b" in layout.groups
    assert "a" in layout.groups


@pytest.mark.parametrize("scope", ["internal", "grouped"])
def test_norms_by_the_batch_s_statistics_are_tried_on_more_than_one_input(scope: Scope) -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 16, 8), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16, 12), nn.BatchNorm1d(12),
        nn.ReLU(), nn.Linear(12, 4),
    )  # fmt: skip
    layout = cut_in(network, scope=scope)
    assert list(layout.groups) == ["0", "4"][: 1 if scope == "internal" else 2]
    assert not layout.notes


class Counting(nn.Module):
    """Notes how often it ran, and works only the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.ran = rearranged(nn.Identity(), 16), 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.ran += 1
        self.seen += 1  # type: ignore[operator]
        return self.layers(x)  # type: ignore[no-any-return]


def test_a_trial_leaves_its_weights_as_they_were() -> None:
    def centred(net: Net, x: Tensor) -> Tensor:
        return x - x.mean(1, keepdim=True)  # which depends on how many channels there are

    layout = cut_in(Net(lambda net, x: x))
    widths = dict.fromkeys(layout.groups, 5)
    assert widths
    for forward, fault in ((lambda net, x: x, None), (centred, "its outputs are not the dense network's in `b`")):
        trial = Trial(Net(forward), IMAGE)
        before = copy.deepcopy(trial._dense.state_dict())
        found = trial.fault(layout, widths)
        assert (found and str(found)) == fault
        assert all(before[name].equal(tensor) for name, tensor in trial._dense.state_dict().items())


def test_trials_leave_no_trace() -> None:
    network, numpys, pythons, torchs = (
        Counting().eval(),
        np.random.get_state(),
        random.getstate(),
        torch.get_rng_state(),
    )
    layout = trace_layout(network, IMAGE, "grouped")
    assert list(layout.groups) == ["layers.0", "layers.3"]
    assert (network.ran, float(network.seen), network.training) == (0, 0.0, False)  # type: ignore[arg-type]
    assert random.getstate() == pythons
    assert np.array_equal(np.random.get_state()[1], numpys[1])
    assert torch.equal(torch.get_rng_state(), torchs)


def odd_convolution(net: Net, x: Tensor) -> Tensor:
    """Called by keywords alone, which the rule of convolutions does not foresee."""
    return F.conv2d(input=x, weight=net.extra.weight, bias=net.extra.bias, padding="same", dilation=(1, 1))


def norm_of_its_own(net: Net, x: Tensor) -> Tensor:
    return F.normalize(x, dim=1)


def asserting(net: Net, x: Tensor) -> Tensor:
    assert x.shape[1] == 16, "the user's own check\nin two lines"
    return x


@pytest.mark.parametrize("forward", [odd_convolution, norm_of_its_own, asserting])
def test_whatever_goes_wrong_is_a_note(forward: Forward) -> None:
    layout = cut_in(Net(forward))
    assert "b" in layout.groups
    assert all("\n" not in note for note in layout.notes)


def test_a_draw_is_the_same_quantile_whatever_its_shape() -> None:
    torch.manual_seed(1)
    with Draws(0.97) as draws:
        assert bool((torch.rand(7) == 0.97).all())
        assert bool((torch.empty(3, 5).uniform_(2, 4) == 2 + 2 * 0.97).all())
        assert float(torch.randn(()).item()) == pytest.approx(1.8808, abs=1e-4)
        assert bool((torch.empty(4).bernoulli_(0.1) == 1).all())
        assert bool((torch.empty(4).bernoulli_(0.01) == 0).all())
        assert torch.equal(torch.randperm(5), torch.randperm(5)) is False
    assert draws.count == 7
    with Draws(0.5) as again:
        first = torch.randint(9, (3,))
    with again:
        assert torch.equal(torch.randint(9, (3,)), first) is False  # the second of its draws


def test_one_layer_of_a_spectral_norm_leaves_the_others_to_be_cut() -> None:
    net = nn.Sequential(spectral_norm(nn.Linear(8, 16)), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    layout = trace_layout(net, torch.zeros(1, 8), "grouped")
    assert list(layout.groups) == ["2"]
    assert all(tensor.equal(before[name]) for name, tensor in net.state_dict().items())
