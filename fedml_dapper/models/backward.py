"""Trial of a network's backward pass before anything starts: what autograd forbids is one line and no traceback."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves

from fedml_dapper.errors import ConfigError
from fedml_dapper.inputs import Inputs, rows
from fedml_dapper.models.admission import copied
from fedml_dapper.models.blame import place_in_own_code
from fedml_dapper.models.passing import called
from fedml_dapper.models.running import first_line, in_mode, undisturbed

_STEPS = 2
"""Number of tried steps: a network that keeps tensors of a step may fail in the next."""
_BATCH = 2
_OVERWRITTEN = "modified by an inplace operation"
_KEPT = "backward through the graph a second time"


def initialise_autograd() -> None:
    """Run a backward pass, in which torch's engine counts the devices that exist.

    After ``torch.export`` or ``torch.compile`` there is one more, for which the engine would start threads, and no fork
    could train.
    """
    torch.ones((), requires_grad=True).backward()  # type: ignore[no-untyped-call]  # torch ships it untyped


def ready_for_backward() -> None:
    """Initialise autograd before a user's network runs.

    Nothing is done where there is a GPU: once torch's engine has run there, no fork of this process can train.
    """
    if not torch.accelerator.is_available():
        initialise_autograd()


def check_backward(module: nn.Module, inputs: Inputs, label: str) -> None:
    """Try training steps on a copy of ``module``, called ``label`` in errors, with a few of ``inputs``.

    Nothing is tried where there is a GPU: no fork of this process could train afterwards.

    Raises:
        ConfigError: A step fails; the error names the layer, if it can be told, and the way out.
    """
    if torch.accelerator.is_available():
        return
    probe = in_mode(copied(module, label), True)
    few = rows(inputs, slice(_BATCH))
    with undisturbed(inputs), torch.enable_grad():
        for step in range(1, _STEPS + 1):
            try:
                outputs = called(probe, few)
            except Exception as error:  # whatever the user's network raises
                raise ConfigError(f"{label} cannot be trained: step {step} fails: {first_line(error)}") from error
            if not outputs.requires_grad:
                return
            try:
                outputs.sum().backward()
            except Exception as error:  # whatever the user's network makes it raise
                raise ConfigError(f"{label} cannot be trained: {_explained(error, module, few, label)}") from error


def _explained(error: Exception, module: nn.Module, inputs: Inputs, label: str) -> str:
    """Return what is wrong with the backward pass, and what to do."""
    if _OVERWRITTEN in str(error):
        place = _overwritten(in_mode(copied(module, label), True), inputs)
        return (
            f"what {place} keeps for its gradient is overwritten in place afterwards; write x = 2 * x for x *= 2,"
            " relu(x) for relu_(x), inplace=False for inplace=True"
        )
    if _KEPT in str(error):
        return "it goes on from what it has kept of an earlier step, with the gradient's graph; keep x.detach()"
    return f"its backward pass fails: {first_line(error)}{place_in_own_code(error)}"


def _overwritten(module: nn.Module, inputs: Inputs) -> str:
    """Return the operation, and its layer, whose saved tensor is overwritten before the forward pass ends."""
    layer_of = dict[Node, str]()
    stack = [""]

    def label(values: object) -> None:
        """Assign nodes of the graph behind ``values`` that have no layer yet to the innermost running one."""
        waiting = [each.grad_fn for each in tree_leaves(values) if isinstance(each, Tensor)]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in layer_of:
                layer_of[node] = stack[-1]
                waiting += [before for before, _ in node.next_functions]

    def enter(name: str) -> Callable[..., None]:
        def hook(_layer: nn.Module, args: object, named: object) -> None:
            label((args, named))
            stack.append(name)

        return hook

    def leave(_layer: nn.Module, _args: object, output: object) -> None:
        label(output)
        stack.pop()

    for name, layer in module.named_modules():
        layer.register_forward_pre_hook(enter(name), with_kwargs=True)
        layer.register_forward_hook(leave)
    label(called(module, inputs))
    found = next(((node, name) for node, name in layer_of.items() if _is_stale(node)), None)
    if found is None:
        return "an operation"
    node, name = found
    operation = re.sub(r"(?<!^)(?=[A-Z])", "_", re.sub(r"Backward\d*$", "", node.name())).lower()
    return f"`{operation}` in {f'`{name}`' if name else 'the network itself'}"


def _is_stale(node: Node) -> bool:
    for kept in dir(node):
        if kept.startswith("_saved"):
            try:
                getattr(node, kept)
            except RuntimeError as error:
                if _OVERWRITTEN in str(error):
                    return True
    return False
