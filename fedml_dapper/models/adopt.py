"""Adoption of any ``nn.Module`` as a :class:`Backbone`, with its own forward pass and names; no subclass is needed.

The predictor is a named layer, or the last linear layer on the way to the output, found by running the network once.
Its input in a forward pass is z.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn import functional as F
from torch.nn.modules.lazy import LazyModuleMixin

from fedml_dapper.config import did_you_mean
from fedml_dapper.errors import USER_CODE_ERRORS, ConfigError
from fedml_dapper.inputs import Inputs, axes_in_order, count, described, repeated, rows, with_numbers
from fedml_dapper.models.admission import check_network, copied, return_hint
from fedml_dapper.models.backbone import Backbone
from fedml_dapper.models.backward import check_backward, ready_for_backward
from fedml_dapper.models.compiled import uncompiled
from fedml_dapper.models.image_layout import takes_channels_last
from fedml_dapper.models.passing import called, misfit
from fedml_dapper.models.running import first_line, in_mode, running

Tail: TypeAlias = Callable[[Tensor], Tensor]
"""Function that a network applies to its predictor's output."""

_PROBED = 4
"""Batch size of the inputs that a network is tried out on."""


class AdoptedBackbone(Backbone):
    """A backbone around another module, with which it shares all layers and tensors under the module's names.

    So state dicts fit either, and a layer or tensor replaced in one is replaced in the other. ``calls`` are the modules
    in the order of a forward pass. Without a ``tail`` the network's outputs cannot be computed from z. Images reach the
    module with their channels last in memory only if it ``takes_channels_last``.
    """

    def __init__(
        self,
        module: nn.Module,
        calls: Sequence[str],
        predictor: str | None,
        tail: Tail | None = None,
        *,
        takes_channels_last: bool = True,
    ) -> None:
        super().__init__()
        own = self.__dict__  # not setattr, with which nn.Module would put a prefix before all of the module's names
        own["_module"] = module
        own["_calls"] = tuple(calls)
        own["_predictor_name"] = predictor
        own["_tail"] = tail
        own["_takes_channels_last"] = takes_channels_last
        for register in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            own[register] = module.__dict__[register]
        self.training = module.training

    @property
    def module(self) -> nn.Module:
        """The module itself."""
        module: nn.Module = self.__dict__["_module"]
        return module

    @property
    def label(self) -> str:
        return type(self.module).__name__

    @property
    def predictor(self) -> nn.Linear | None:  # type: ignore[override]  # built-in backbones have one as a layer
        if self.predictor_name is None:
            return None
        layer = self.get_submodule(self.predictor_name)
        assert isinstance(layer, nn.Linear)
        return layer

    @property
    def predictor_name(self) -> str | None:
        name: str | None = self.__dict__["_predictor_name"]
        return name

    @property
    def has_representations(self) -> bool:
        return self.__dict__["_tail"] is not None

    @property
    def module_order(self) -> Sequence[str]:
        rank = {name: position for position, name in enumerate(self.__dict__["_calls"])}

        def rank_of(name: str) -> int:
            """Position of the module or, if it is never called itself, of the one that holds it."""
            while name not in rank and name:
                name = name.rpartition(".")[0]
            return rank.get(name, 0)

        return sorted((name for name, _ in self.named_modules()), key=rank_of)

    def forward(self, inputs: Inputs) -> Tensor:
        takes_them: bool = self.__dict__["_takes_channels_last"]
        outputs: Tensor = called(self.module, inputs if takes_them else axes_in_order(inputs))
        return outputs

    def encode(self, inputs: Inputs) -> Tensor:
        return self.both(inputs)[0]

    def both(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return z and the outputs of one forward pass."""
        caught: list[Tensor] = []

        def catch(_layer: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
            caught.append(args[0] if args else named["input"])

        assert self.predictor_name is not None, "a network without predictor has no representations"
        hook = self.get_submodule(self.predictor_name).register_forward_pre_hook(catch, with_kwargs=True)
        try:
            outputs = self(inputs)
        finally:
            hook.remove()
        return caught[-1], outputs

    def predict(self, representations: Tensor) -> Tensor:
        tail: Tail | None = self.__dict__["_tail"]
        assert tail is not None, "nobody knows how this network goes on from its representations"
        return tail(super().predict(representations))

    def release_predictor(self) -> nn.Linear:
        predictor = self.predictor
        name = self.predictor_name
        assert predictor is not None
        assert name
        self.set_submodule(name, nn.Identity())  # its input is still z
        return predictor

    def train(self, mode: bool = True) -> AdoptedBackbone:
        self.module.train(mode)  # the module may override it
        self.training = mode
        return self

    # Names that the module gives to layers may be attributes here, so layers are looked up in the module.

    def get_submodule(self, target: str) -> nn.Module:
        return self.module.get_submodule(target)

    def set_submodule(self, target: str, module: nn.Module, strict: bool = False) -> None:
        self.module.set_submodule(target, module, strict)


def bare(module: nn.Module) -> nn.Module:
    """Return the user's own module if ``module`` is a backbone around one, else ``module`` itself."""
    return module.module if isinstance(module, AdoptedBackbone) else module


def adopt(module: nn.Module, example: Inputs, predictor: str | None = None, *, label: str = "") -> AdoptedBackbone:
    """Wrap ``module``, not copied, as a backbone, after trying it out on inputs like ``example``.

    Args:
        example: A batch of one input, on the CPU.
        predictor: Name of its last linear layer; searched for by default.
        label: Name of the network in errors.

    Raises:
        ConfigError: The network cannot run on such inputs, in evaluation or in training, returns something else than
            one tensor with a row per input, or has no linear layer of that name.
    """
    label = label or f"the network {type(module).__name__}"
    ready_for_backward()
    if any(isinstance(layer, LazyModuleMixin) for layer in module.modules()):
        _run(in_mode(module, False), example, label)  # draws the tensors of lazy layers, so outside fork_rng
    check_network(module, label)
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), uncompiled(module):
        torch.manual_seed(0)
        inputs = with_numbers(repeated(example, _PROBED), lambda part: part + torch.randn_like(part))
        probe = _probe(module, label)
        trained, _ = _run(in_mode(_probe(module, label), True), inputs, label)
        outputs, calls = _run(in_mode(probe, False), inputs, label)
        _check_tensors(module, probe, label)
        if trained.shape != outputs.shape:
            raise ConfigError(f"{label} gives {_shape(trained)} in training and {_shape(outputs)} in evaluation")
        with torch.random.fork_rng(devices=[]):
            _run(probe, rows(inputs, slice(1)), label)  # the last batch of an epoch may hold one sample
        name = _last_linear(probe, outputs, calls) if predictor is None else _named(probe, predictor, calls, label)
        tail = _tail_of(AdoptedBackbone(probe, calls, name), inputs) if name else None
        check_backward(module, inputs, label)
        takes_them = takes_channels_last(module, inputs, label)
    return AdoptedBackbone(module, calls, name, tail, takes_channels_last=takes_them)


def _probe(module: nn.Module, label: str) -> nn.Module:
    """Copy ``module`` with gradients for all linear layers, so that dependence on them can be seen."""
    probe = copied(module, label)
    for layer in probe.modules():
        if isinstance(layer, nn.Linear):
            layer.requires_grad_(True)
    return probe


def _check_tensors(module: nn.Module, probe: nn.Module, label: str) -> None:
    """Check that ``module`` can be trained, and that running ``probe``, a copy of it, has made no tensors.

    Tensors made in the forward pass would be there on some clients, and not on others or the server.

    Raises:
        ConfigError: Tensors were made, there are no parameters, or none of them is trained.
    """
    made = sorted(probe.state_dict().keys() - module.state_dict().keys())
    if made:
        raise ConfigError(
            f"{label}: `{made[0]}` is made in its forward pass, so that a network that has not run lacks it; make it in"
            " __init__, or register a buffer with persistent=False"
        )
    parameters = list(module.parameters())
    if not parameters:
        raise ConfigError(f"{label} has no parameters, so that there is nothing to train")
    if not any(parameter.requires_grad for parameter in parameters):
        raise ConfigError(f"{label} has no parameter that is trained; give one requires_grad=True")


def _run(module: nn.Module, inputs: Inputs, label: str) -> tuple[Tensor, list[str]]:
    """Return the output for ``inputs``, and the names of the modules in the order of their first call."""
    if unfit := misfit(module, inputs):
        raise ConfigError(f"{label} cannot be given the data's inputs: {unfit}; name its parameters as the entries")
    calls: dict[str, None] = {}
    hooks = [
        layer.register_forward_pre_hook(lambda _layer, _args, name=name: calls.setdefault(name))
        for name, layer in module.named_modules()
    ]
    doing = "be trained" if module.training else "run"
    stack = list[str]()
    try:
        with running(module, stack):
            outputs: Any = called(module, inputs)
    except USER_CODE_ERRORS as error:
        raise ConfigError(
            f"{label} cannot {doing} on inputs of shape {described(inputs, _look)}: {first_line(error)}"
            f"{f' in `{stack[-1]}`' if stack and stack[-1] else ''}{_conversion(module, inputs, error)}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(outputs, Tensor):
        when = "in training" if module.training else "in evaluation"
        raise ConfigError(
            f"{label} returns {type(outputs).__name__} {when}, expected one tensor with a row an input;"
            f" {return_hint(outputs)}"
        )
    if outputs.dim() == 0 or len(outputs) != count(inputs):
        alone = count(inputs) == 1
        raise ConfigError(
            f"{label} gives {tuple(outputs.shape)} for {'an input alone' if alone else f'{count(inputs)} inputs'},"
            " expected one tensor with a row an input; "
            + ("let `squeeze` name the axes that it takes, not that of the batch" if alone else "keep the batch's axis")
        )
    return outputs, list(calls)


def _conversion(module: nn.Module, inputs: Inputs, error: BaseException) -> str:
    """Say how inputs become float32, as the weights are, if ``error`` is about that; otherwise nothing."""
    dtypes = {weight.dtype for weight in module.parameters()}
    is_about_that = dtypes == {torch.float32} and "type" in str(error)
    if not is_about_that or not isinstance(inputs, Tensor) or inputs.dtype == torch.float32:
        return ""
    wanted = "x.float() / 255" if inputs.dtype == torch.uint8 else "x.float()"
    return f"; let the data set give {wanted}, or begin forward with that"


def _last_linear(module: nn.Module, outputs: Tensor, calls: Sequence[str]) -> str | None:
    """The last linear layer of C outputs that ``outputs``, shape (B, C), depend on; None if there is none."""
    if outputs.dim() != 2 or not outputs.requires_grad:
        return None
    leaves = _leaves(outputs)
    for name in reversed(calls):
        layer = module.get_submodule(name)
        is_linear = isinstance(layer, nn.Linear) and layer.out_features == outputs.shape[1]
        if is_linear and id(next(layer.parameters())) in leaves:
            return name
    return None


def _leaves(outputs: Tensor) -> set[int]:
    """Ids of the parameters that ``outputs`` depend on.

    The graph is walked, and no backward pass is run: once torch's engine has run where there is a GPU, no fork of the
    process can train.
    """
    found = set[int]()
    seen = set[Node]()
    waiting = [outputs.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            found.add(id(leaf))
        waiting += [before for before, _ in node.next_functions]
    return found


def _named(module: nn.Module, name: str, calls: Sequence[str], label: str) -> str:
    layers = dict(module.named_modules())
    linear = [other for other, layer in layers.items() if isinstance(layer, nn.Linear)]
    if name not in layers:
        raise ConfigError(f"model_args.predictor: {label} has no layer `{name}`{did_you_mean(name, linear)}")
    if name not in linear:
        kind = type(layers[name]).__name__
        raise ConfigError(
            f"model_args.predictor: `{name}` of {label} is {kind}, no nn.Linear{did_you_mean(name, linear)}"
        )
    if name not in calls:
        raise ConfigError(f"model_args.predictor: `{name}` of {label} has no part in its forward pass; name another")
    return name


@torch.no_grad()
def _tail_of(probe: AdoptedBackbone, inputs: Inputs) -> Tail | None:
    """The function behind ``predict(encode(inputs))``, by trial; None if no known one fits, or z is no vector."""
    predictor = probe.predictor
    assert predictor is not None
    for parameter in predictor.parameters():
        parameter.normal_()  # heads that start with zeros would hide what is applied to their output
    representations, outputs = probe.both(inputs)
    if representations.dim() != 2 or outputs.dim() != 2:
        return None
    if representations.dtype != predictor.weight.dtype:
        return None  # the network runs under torch.autocast
    logits = predictor(representations)
    if logits.dtype != outputs.dtype or logits.shape != outputs.shape:
        return None
    for tail in (_identity, _log_softmax):
        if torch.allclose(tail(logits), outputs, rtol=1e-5, atol=1e-6):
            return tail
    return None


def _identity(logits: Tensor) -> Tensor:
    return logits


def _log_softmax(logits: Tensor) -> Tensor:
    """Log-probabilities, which cross-entropy treats as it does logits."""
    return F.log_softmax(logits, dim=1)


def _look(tensor: Tensor) -> str:
    return f"{_shape(tensor)} {str(tensor.dtype).removeprefix('torch.')}"


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(['B', *map(str, tensor.shape[1:])])})"
