"""Networks that cannot be trained, sent or saved are one line; layers that nobody sees are a note."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.config import ModelArgs, Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import build_experiment
from fedml_dapper.models import adopt, check_starting_weights, example_image, layers_out_of_sight, take_over

EXAMPLE = example_image(8)


class Net(nn.Module):
    """Convolution, pooling, head, and what the user makes of the logits."""

    def __init__(self, end: Callable[[Tensor], Any] = lambda logits: logits) -> None:
        super().__init__()
        self.conv, self.fc, self.end = nn.Conv2d(3, 6, 3), nn.Linear(6, 4), end

    def forward(self, images: Tensor) -> Any:
        return self.end(self.fc(F.relu(self.conv(images)).mean((2, 3))))


class Filtered(Net):
    """Frequencies are weighed by complex numbers."""

    def __init__(self, weights: nn.Module) -> None:
        super().__init__()
        self.frequencies = weights

    def forward(self, images: Tensor) -> Any:
        return super().forward(torch.fft.irfft2(torch.fft.rfft2(images) * self.frequencies.w, s=images.shape[2:]))


def weights(*, buffer: bool = False, persistent: bool = True) -> nn.Module:
    layer, values = nn.Module(), torch.ones(8, 5, dtype=torch.complex64)
    if buffer:
        layer.register_buffer("w", values, persistent)
    else:
        layer.w = nn.Parameter(values)
    return layer


class Remembering(Net):
    """Puts a word into its state dict."""

    def get_extra_state(self) -> str:
        return "how it was made"

    def set_extra_state(self, state: str) -> None:
        assert state


@dataclass
class Output:
    """As Hugging Face's models return."""

    logits: Tensor


class Scripted(Net):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.jit.script(nn.Conv2d(3, 6, 3))


def old_weight_norm() -> nn.Module:
    network = Net()
    network.conv = nn.utils.weight_norm(network.conv)
    return network


def locked() -> nn.Module:
    network = Net()
    network.fc.lock = threading.Lock()  # type: ignore[assignment]
    return network


def hooked() -> nn.Module:
    network = Net()
    network.conv.register_forward_hook(Counting())
    return network


def parametrised_by_hand() -> nn.Module:
    network = Net()
    network.conv.scale = network.conv.weight.abs()
    return network


class Counting:
    """A hook that writes down what it sees."""

    def __init__(self) -> None:
        self.file = open(os.devnull, "w")  # noqa: SIM115  # kept

    def __call__(self, *_: object) -> None:
        self.file.write("x")


def half() -> nn.Module:
    network = Net()
    network.fc.half()
    return network


def squeezed() -> nn.Module:
    return Net(lambda logits: logits.squeeze())


REFUSED: Mapping[str, tuple[Callable[[], nn.Module], str]] = {
    "complex parameters": (lambda: Filtered(weights()), r"complex numbers in `frequencies.w`.*torch.view_as_real"),
    "complex buffers": (lambda: Filtered(weights(buffer=True)), r"`frequencies.w`.*or register it with persistent=Fa"),
    "a scripted layer": (Scripted, r"`conv` in it is scripted or traced by torch.jit; give the module that it was"),
    "a scripted network": (lambda: torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(192, 4))), "it is scripted"),
    "a traced network": (lambda: torch.jit.trace(Net(), EXAMPLE), "it is scripted or traced"),
    "a quantised network": (
        lambda: torch.ao.quantization.quantize_dynamic(Net(), {nn.Linear}), r"`fc\..*give the network before it was"
    ),
    "a state that is no tensor": (Remembering, "`_extra_state` is str, no tensor"),
    "Hugging Face's output": (lambda: Net(Output), r"returns Output in training.*forward returns `.logits` of that"),
    "a dict": (lambda: Net(lambda x: {"out": x, "aux": x}), "returns dict .*forward returns its entry `out`"),
    "a dict with logits": (lambda: Net(lambda x: OrderedDict(loss=None, logits=x)), "its entry `logits`"),
    "a tuple": (lambda: Net(lambda x: (x, x)), r"returns tuple .*forward returns one of them, as \[0\]"),
    "a list": (lambda: Net(lambda x: [x]), r"returns list .*as \[0\]"),
    "nothing": (lambda: Net(lambda _: None), "returns NoneType in training, expected one tensor with a row an input"),
    "squeezed outputs": (squeezed, r"gives \(4,\) for an input alone, .*`squeeze` name the axes"),
    "means over the batch": (lambda: Net(lambda x: x.mean(0)), r"gives \(4,\) for an input alone"),
    "rows of all inputs": (lambda: Net(torch.flatten), r"gives \(16,\) for 4 inputs, .*keep the batch's axis"),
    "a weight of another dtype": (half, r"cannot be trained on inputs .* in `fc`"),
    "old weight norm": (old_weight_norm, r"cannot be copied: `conv.weight` is computed of other.*parametrizations do"),
    "what is computed in __init__": (parametrised_by_hand, r"cannot be copied: `conv.scale` is computed of other"),
    "a lock": (locked, r"cannot be copied: `fc.lock` .*pickle '_thread.lock' object\); make it in forward"),
    "a hook that cannot be copied": (hooked, "cannot be copied: `conv._forward_hooks`"),
    "sparse gradients": (
        lambda: nn.Sequential(nn.EmbeddingBag(9, 4, sparse=True)), "`0` in it gives sparse gradients.*with sparse=False"
    ),
    "no parameters": (lambda: nn.Sequential(nn.Flatten(), nn.AvgPool1d(4)), "has no parameters, so that there is"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_used_is_one_line_with_the_layer_and_the_way_out(kind: str) -> None:
    make, message = REFUSED[kind]
    for use in (lambda: adopt(make(), EXAMPLE), lambda: take_over(make(), ModelArgs(), 4, 1, EXAMPLE)):
        with pytest.raises(ConfigError, match=message) as caught:
            use()
        assert "\n" not in str(caught.value)


def test_complex_numbers_that_are_not_sent_are_nobody_s_business() -> None:
    assert adopt(Filtered(weights(buffer=True, persistent=False)), EXAMPLE).predictor_name == "fc"


def starting_with(value: float, *, buffer: str = "") -> nn.Module:
    """A network with an entry that is ``value``: in its convolution's weight, or in a buffer of its own."""
    network = Net()
    if buffer:
        network.register_buffer(buffer, torch.full((2, 2), value))
    else:
        network.conv.weight.data[5, 2, 1, 1] = value
    return network


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (starting_with(float("nan")), r"`conv.weight` \(NaN or infinity, in 1 of 162 entries\); let __init__ draw it"),
        (starting_with(float("-inf")), r"`conv.weight` \(NaN or infinity, in 1 of 162 entries\)"),
        (starting_with(float("-inf"), buffer="mask"), r"`mask` \(.* in 4 of 4 .* with persistent=False, or write -1e9"),
    ],
)
def test_a_network_that_starts_with_numbers_that_are_not_finite_is_one_line(network: nn.Module, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^the network Net: its starting weights are not finite: {said}") as caught:
        check_starting_weights(adopt(network, EXAMPLE), "the network Net")
    assert "\n" not in str(caught.value)


def test_infinity_that_is_not_sent_is_nobody_s_business() -> None:
    network = starting_with(1.0)
    network.register_buffer("mask", torch.full((2, 2), float("-inf")), persistent=False)
    check_starting_weights(adopt(network, EXAMPLE), "the network Net")


def test_a_run_does_not_begin_with_them(tmp_path: Path, tiny_settings: Callable[..., Settings]) -> None:
    code = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, first=float("nan")):
        super().__init__()
        self.body, self.fc = nn.Linear(768, 8), nn.Linear(8, num_classes)
        self.body.bias.data[0] = first

    def forward(self, x):
        return self.fc(self.body(x.flatten(1)).relu())
"""
    (tmp_path / "net.py").write_text(code)
    settings = tiny_settings(f"model={tmp_path / 'net.py'}:Net", "image_size=16", "width=null", "method=fedavg")
    with pytest.raises(ConfigError, match=r"^model_args.model: `.*net.py:Net`: its starting .* `body.bias` \(NaN"):
        build_experiment(settings)
    sound = tmp_path / "sound.pt"
    tensors = {"body.weight": (8, 768), "body.bias": (8,), "fc.weight": (10, 8), "fc.bias": (10,)}
    torch.save({name: torch.zeros(shape) for name, shape in tensors.items()}, sound)
    start = settings.model_args.model_copy(update={"weights": sound})
    build_experiment(settings.model_copy(update={"model_args": start}))
    torch.save({name: torch.full(shape, torch.inf) for name, shape in tensors.items()}, sound)
    with pytest.raises(
        ConfigError, match=r"^model_args.weights: .*sound.pt: .* `body.weight` \(.*; name other weights"
    ):
        build_experiment(settings.model_copy(update={"model_args": start}))


class Listed(Net):
    """Holds layers in all that Python has, and some where torch sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.more = [nn.Linear(4, 4), nn.ReLU()]
        self.by_name = {"deep": [(nn.Linear(4, 4),)]}
        self.scales = [nn.Parameter(torch.ones(4))]
        self.seen, self.plain = nn.ModuleList([nn.Linear(4, 4)]), [1, "two", None]
        self.order = [self.conv, self.fc, nn.ReLU()]
        self.inner = nn.Module()
        self.inner.pair = (nn.Linear(4, 4), nn.Linear(4, 4))
        self.plain.append(self.plain)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Any:
        logits = self.seen[0](super().forward(images))
        for layer in (*self.more, *self.by_name["deep"][0], *self.inner.pair):  # type: ignore[misc]
            logits = layer(logits)
        return logits * self.scales[0]


def test_layers_in_a_plain_list_are_named() -> None:
    said = ": what it holds is neither trained, cut, sent nor saved; make it an "
    assert [line.split(said) for line in layers_out_of_sight(Listed())] == [
        ["`more` is a plain list", "nn.ModuleList"],
        ["`by_name` is a plain dict", "nn.ModuleDict"],
        ["`scales` is a plain list", "nn.ParameterList"],
        ["`inner.pair` is a plain tuple", "nn.ModuleList"],
    ]
    assert not layers_out_of_sight(Net())


def test_a_run_says_so(tmp_path: Path, tiny_settings: Callable[..., Settings]) -> None:
    code = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.more = [nn.Linear(8, 8)]
        self.body, self.fc = nn.Linear(768, 8), nn.Linear(8, num_classes)

    def forward(self, x):
        return self.fc(self.more[0](self.body(x.flatten(1)).relu()))
"""
    (tmp_path / "net.py").write_text(code)
    settings = tiny_settings(f"model={tmp_path / 'net.py'}:Net", "image_size=16", "width=null", "method=fedavg")
    assert [note for note in build_experiment(settings).notes if note.startswith("`more` is a plain list")]
