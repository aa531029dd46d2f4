"""Networks as a chain of blocks, found by running them once (ProFL)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn

from fedml_dapper.errors import ConfigError
from fedml_dapper.inputs import Inputs, moved, repeated, with_numbers
from fedml_dapper.methods.parts.layers import modules_of
from fedml_dapper.models import Backbone
from fedml_dapper.models.passing import called
from fedml_dapper.models.running import undisturbed

_CONTAINERS = ("stages", "blocks", "layers")
"""Names under which networks keep their blocks in a list or sequence."""
_NUMBERED = "layer"
"""Name, with a number from 1 on, of the blocks of torchvision's ResNets."""
_TRIED = 4
"""Batch size of the inputs that a network is run on."""


@dataclass(frozen=True)
class Call:
    """A block's call: shapes of its input and output without the batch's axis."""

    takes: tuple[int, ...]
    gives: tuple[int, ...]
    goes_below_zero: bool
    """Whether its output has a negative entry."""


@dataclass(frozen=True)
class BlockChain:
    """Blocks of a network, front to back; their numbers count from 1."""

    names: tuple[str, ...]
    """Modules that are the blocks."""
    calls: tuple[Call, ...]
    own: tuple[frozenset[str], ...]
    """State-dict entries of each block; the first has those of all that runs before it."""
    head: frozenset[str]
    """State-dict entries of what runs behind the last block."""

    def __len__(self) -> int:
        return len(self.names)

    def of_blocks(self, numbers: Iterable[int]) -> frozenset[str]:
        """Return the state-dict entries of the blocks of these numbers."""
        return frozenset[str]().union(*(self.own[number - 1] for number in numbers))


def chain_of(model: Backbone, example: Inputs, names: Sequence[str] | None, setting: str) -> BlockChain:
    """Return the chain of ``model``, of the modules ``names`` or of those that it is found to have.

    Args:
        example: A batch of one input.
        names: The blocks, front to back; by default the entries of ``stages``, ``blocks`` or ``layers``, or
            ``layer1``, ``layer2`` and so on.
        setting: Name of the setting for ``names``, for errors.

    Raises:
        ConfigError: The network has no such blocks, or they do not follow one another.
    """
    blocks = tuple(_found(model, setting) if names is None else names)
    _check_names(model, blocks, setting)
    owners = {layer.name for layer in modules_of(model)}
    walk = _Walk(blocks, owners, f"{setting}: ", model.label)
    device = next(model.parameters()).device
    was_training = model.training
    hooks = list(walk.hooks(model))
    try:
        with undisturbed(example):
            inputs = with_numbers(repeated(example, _TRIED), lambda part: part + torch.randn_like(part))
            called(model.eval(), moved(inputs, device))
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    walk.check()
    return _chain(model, blocks, walk)


@dataclass
class _Walk:
    """What is noted of a forward pass: the blocks' calls, and which layers run where."""

    blocks: tuple[str, ...]
    owners: Collection[str]
    """Layers with tensors of their own."""
    where: str
    label: str
    calls: dict[str, Call] = field(default_factory=dict)
    behind: set[str] = field(default_factory=set)
    """Layers that run behind the last block."""
    between: list[str] = field(default_factory=list)
    """Layers that run between two blocks."""
    running: str | None = None

    def hooks(self, model: nn.Module) -> Iterable[Any]:
        """Register what notes the calls; the handles have to be removed."""
        for name, module in model.named_modules():
            if name in self.blocks:
                yield module.register_forward_pre_hook(self._entering(name))
                yield module.register_forward_hook(self._leaving(name))
            elif name in self.owners:
                yield module.register_forward_pre_hook(self._meeting(name))

    def check(self) -> None:
        """Raise ``ConfigError`` where the blocks do not follow one another, and where nothing comes behind them."""
        missing = [name for name in self.blocks if name not in self.calls]
        if missing:
            raise ConfigError(f"{self.where}`{missing[0]}` has no part in the forward pass of {self.label}")
        if self.between:
            raise ConfigError(
                f"{self.where}`{self.between[0]}` of {self.label} runs between two blocks and belongs to neither; name"
                " modules that follow one another"
            )
        if not self.behind:
            raise ConfigError(
                f"{self.where}behind `{self.blocks[-1]}`, the last block of {self.label}, there is no layer to train;"
                " name fewer blocks"
            )

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(*_: object) -> None:
            self.running = name

        return enter

    def _leaving(self, name: str) -> Callable[..., None]:
        def leave(_block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self.running = None
            is_plain = len(args) == 1 and isinstance(args[0], Tensor) and isinstance(output, Tensor)
            in_turn = name not in self.calls and self.blocks[len(self.calls)] == name
            if not is_plain or not in_turn:
                raise ConfigError(
                    f"{self.where}`{name}` of {self.label} is not called once, in its turn, with one tensor for one"
                    " tensor; name modules that follow one another"
                )
            self.calls[name] = Call(tuple(args[0].shape[1:]), tuple(output.shape[1:]), bool((output < 0).any()))

        return leave

    def _meeting(self, name: str) -> Callable[..., None]:
        def meet(*_: object) -> None:
            if self.running is not None or not self.calls:
                return
            if len(self.calls) == len(self.blocks):
                self.behind.add(name)
            else:
                self.between.append(name)

        return meet


def _found(model: Backbone, setting: str) -> list[str]:
    children = dict(model.named_children())
    for container in _CONTAINERS:
        if isinstance(children.get(container), nn.Sequential | nn.ModuleList):
            return [f"{container}.{name}" for name, _ in children[container].named_children()]
    numbered = [f"{_NUMBERED}{number}" for number in range(1, 1 + len(children))]
    found = [name for name in numbered if name in children]
    if not found:
        raise ConfigError(
            f"model_args.model: {model.label} has no stages or blocks to train one after another; name modules of it in"
            f" {setting}, or choose another method"
        )
    return found


def _check_names(model: Backbone, names: Sequence[str], setting: str) -> None:
    modules = dict(model.named_modules())
    missing = [name for name in names if name not in modules]
    if missing:
        raise ConfigError(f"{setting}: {model.label} has no module `{missing[0]}`")
    inside = [name for name, outer in permutations(names, 2) if name == outer or name.startswith(f"{outer}.")]
    if inside:
        raise ConfigError(f"{setting}: `{inside[0]}` is named twice, or lies in another module that is named")


def _chain(model: Backbone, names: tuple[str, ...], walk: _Walk) -> BlockChain:
    entries = {layer.name: frozenset(layer.tensors) for layer in modules_of(model)}
    head = frozenset[str]().union(*(entries[name] for name in walk.behind))
    tensors = model.state_dict().keys()
    inside = [frozenset(tensor for tensor in tensors if tensor.startswith(f"{name}.")) for name in names]
    before = frozenset(tensors) - head.union(*inside)
    return BlockChain(names, tuple(walk.calls.values()), (inside[0] | before, *inside[1:]), head)
