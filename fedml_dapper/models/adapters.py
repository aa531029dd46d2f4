"""Low-rank adapters beside the linear layers of a frozen network (LoRA, Hu et al., ICLR 2022).

A rank component, a row of A and a column of B, is a channel like any other: it is followed, ranked, cut, sent, refilled
and averaged. Adapters stay layers of their own until a model is deployed: :func:`merged` folds them into the base.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function

from fedml_dapper.config import AdapterArgs, did_you_mean
from fedml_dapper.errors import ConfigError
from fedml_dapper.inputs import Inputs, repeated
from fedml_dapper.models.backbone import Backbone
from fedml_dapper.models.norms import norm_tensors
from fedml_dapper.models.running import in_mode

NetworkT = TypeVar("NetworkT", bound=nn.Module)
_TENSORS = frozenset({"lora_a", "lora_b"})
_PROBED = 4
"""Batch size of the inputs on which the network is run to see which layers are called."""


class AdaptedLinear(nn.Linear):
    """A frozen linear layer and its adapter: x W^T + b + (alpha / r) (x A^T) B^T.

    ``lora_a`` is A, of shape (r, in), and ``lora_b`` B, of shape (out, r), which starts at zero, so that the network
    starts as its base. Tensors of the base keep their names.
    """

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    scaling: float
    """alpha / r of the whole rank. A slim layer has the same, so that what is left of its product does not change."""
    dropout: float
    is_transposed: bool
    """Whether ``weight`` is W^T, of shape (in, out), as in layers that compute ``x @ weight``."""

    @classmethod
    def around(cls, layer: nn.Module, args: AdapterArgs) -> AdaptedLinear:
        """Return ``layer``, whose tensors are used and not copied, with an adapter drawn from torch's generator."""
        adapted = cls.__new__(cls)
        nn.Module.__init__(adapted)
        weight = layer.get_parameter("weight")
        adapted.weight = weight
        adapted.register_parameter("bias", layer.bias if isinstance(layer.bias, nn.Parameter) else None)
        adapted.is_transposed = not isinstance(layer, nn.Linear)
        adapted.scaling = args.alpha / args.rank
        adapted.dropout = args.dropout
        rows, columns = weight.t().shape if adapted.is_transposed else weight.shape
        adapted.lora_a = nn.Parameter(weight.new_empty(args.rank, columns))
        adapted.lora_b = nn.Parameter(weight.new_zeros(rows, args.rank))
        nn.init.kaiming_uniform_(adapted.lora_a, a=math.sqrt(5))
        adapted.match_sizes()
        return adapted.train(layer.training)

    @property
    def rank(self) -> int:
        return len(self.lora_a)

    def match_sizes(self) -> None:
        """Set the declared sizes to those of the tensors."""
        self.out_features, self.in_features = len(self.lora_b), self.lora_a.shape[1]

    def forward(self, input: Tensor) -> Tensor:
        dropped = F.dropout(input, self.dropout, self.training) if self.dropout else input
        weight = self.weight.t() if self.is_transposed else self.weight
        return adapted_linear(input, dropped, weight, self.bias, self.lora_a, self.lora_b, self.scaling)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}, scaling={self.scaling:g}"

    def merged(self) -> nn.Linear:
        """Return one linear layer that does the same: its matrix is W + (alpha / r) B A."""
        base = self.weight.t() if self.is_transposed else self.weight
        rows, columns = base.shape
        layer = nn.Linear(columns, rows, self.bias is not None, base.device, base.dtype)
        with torch.no_grad():
            layer.weight.copy_(base + self.scaling * (self.lora_b @ self.lora_a))
            if self.bias is not None:
                layer.bias.copy_(self.bias)
        return layer.train(self.training)


def adapted_linear(
    input: Tensor, dropped: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scaling: float
) -> Tensor:
    """Compute the output of :class:`AdaptedLinear`, visible to torch's function modes like torch's own functions.

    ``dropped`` is what the adapter gets: ``input``, in training with dropout.
    """
    given = (input, dropped, weight, bias, a, b, scaling)
    if has_torch_function((input, dropped, weight, a, b)):
        output: Tensor = handle_torch_function(adapted_linear, (input, dropped, weight, a, b), *given)
        return output
    # in place, as autograd keeps neither summand: one block less to take and to give back
    return F.linear(input, weight, bias).add_(F.linear(F.linear(dropped, a), b), alpha=scaling)


def add_adapters(backbone: Backbone, args: AdapterArgs, example: Inputs, label: str) -> None:
    """Put an adapter beside each target of ``backbone``, in place, and freeze all but adapters, norms and predictor.

    Adapters are drawn from torch's generator, in the order of the network's layers.

    Args:
        backbone: Network, with its weights.
        args: Which layers get one, and of what size.
        example: A batch of one input.
        label: Name of the network in errors.

    Raises:
        ConfigError: No layer can have an adapter, or a target is no linear layer or does not run as one.
    """
    targets = _targets(backbone, args, example, label)
    trained = norm_tensors(backbone) | backbone.head_tensors
    for name, parameter in backbone.named_parameters():
        if name not in trained:
            parameter.requires_grad_(False)
    for name in targets:
        layer = backbone.get_submodule(name)
        if args.rank > min(layer.get_parameter("weight").shape):
            raise ConfigError(
                f"model_args.adapter.rank: {args.rank} is more than `{name}` of {label} has,"
                f" {tuple(layer.get_parameter('weight').shape)}; choose a smaller rank, or other targets"
            )
        _put(backbone, layer, AdaptedLinear.around(layer, args))
    _check_effect(backbone, example, label)


def has_adapters(names: Iterable[str]) -> bool:
    """Return whether tensors of adapters are among these ``names`` of a state dict."""
    return any(name.rpartition(".")[2] in _TENSORS for name in names)


def merged(network: NetworkT) -> NetworkT:
    """Return a copy of ``network`` whose adapters are folded into their linear layers; itself where it has none."""
    if not any(isinstance(layer, AdaptedLinear) for layer in network.modules()):
        return network
    whole = copy.deepcopy(network)
    for layer in [layer for layer in whole.modules() if isinstance(layer, AdaptedLinear)]:
        _put(whole, layer, layer.merged())
    return whole


def _put(network: nn.Module, layer: nn.Module, other: nn.Module) -> None:
    """Put ``other`` in the place of ``layer``, under each name that it has."""
    names = [name for name, found in network.named_modules(remove_duplicate=False) if found is layer]
    for name in names:
        network.set_submodule(name, other)


def _targets(backbone: Backbone, args: AdapterArgs, example: Inputs, label: str) -> list[str]:
    linear = [name for name, layer in backbone.named_modules() if _can_be_adapted(layer)]
    run = _called(backbone, linear, example)
    if args.targets is None:
        found = [name for name in linear if name in run and name != backbone.predictor_name]
        if not found:
            raise ConfigError(
                f"model_args.adapter: {label} has no linear layer but the last, and adapters stand beside linear"
                " layers; leave adapter out"
            )
        return found
    chosen = dict.fromkeys(name for target in args.targets for name in _named(target, linear, label))
    for name in chosen:
        if name not in run:
            raise ConfigError(
                f"model_args.adapter.targets: `{name}` of {label} is not called when the network runs (its weights are"
                " used elsewhere), so that an adapter would do nothing; leave it out"
            )
    return [name for name in linear if name in chosen]


def _named(target: str, linear: Collection[str], label: str) -> list[str]:
    found = [name for name in linear if name == target or name.endswith(f".{target}")]
    if not found:
        raise ConfigError(
            f"model_args.adapter.targets: {label} has no linear layer `{target}`"
            f"{did_you_mean(target, sorted({name.rpartition('.')[2] for name in linear}))}"
        )
    return found


def _can_be_adapted(layer: nn.Module) -> bool:
    """Whether a layer is torch's linear one, or multiplies by its matrix from the right as GPT-2's ``Conv1D`` does.

    One whose matrix is computed, as by ``torch.nn.utils.spectral_norm``, is left out.
    """
    own = dict(layer.named_parameters(recurse=False))
    if type(layer) is nn.Linear:
        return "weight" in own
    return type(layer).__name__ == "Conv1D" and own.keys() == {"weight", "bias"} and own["weight"].dim() == 2


def _called(backbone: Backbone, names: Collection[str], example: Inputs) -> set[str]:
    """Return which of the layers are called when the network runs, in evaluation or in training."""
    probe = copy.deepcopy(backbone)
    found = set[str]()
    with _noting(probe, names, found), torch.random.fork_rng(devices=[]), torch.no_grad():
        for training in (False, True):
            in_mode(probe, training)(repeated(example, _PROBED))
    return found


def _check_effect(backbone: Backbone, example: Inputs, label: str) -> None:
    """Check that adapters count without gradients as they do with them.

    Without gradients torch's own encoder layers go past the layers in them, by one fused operation on their weights.

    Raises:
        ConfigError: They do not.
    """
    probe = copy.deepcopy(backbone).eval()
    inputs = repeated(example, _PROBED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for layer in probe.modules():
            if isinstance(layer, AdaptedLinear):
                nn.init.normal_(layer.lora_b, std=0.1)
        with torch.no_grad():
            measured = probe(inputs)
        with torch.enable_grad():
            trained = probe(inputs).detach()
    if not torch.allclose(measured, trained, rtol=1e-3, atol=1e-4 * float(trained.abs().max())):
        fused = [name for name, layer in probe.named_modules() if isinstance(layer, nn.TransformerEncoderLayer)]
        where = f"`{fused[0]}` of {label}" if fused else label
        raise ConfigError(
            f"model_args.adapter: {where} puts out something else without gradients, as when it is tested: a fused"
            " operation goes past its layers, and so past their adapters. Call"
            " torch.backends.mha.set_fastpath_enabled(False) in the network's file, or name other targets"
        )


@contextmanager
def _noting(network: Backbone, names: Collection[str], found: set[str]) -> Iterator[None]:
    hooks = [
        network.get_submodule(name).register_forward_pre_hook(lambda _layer, _args, name=name: found.add(name))
        for name in names
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
