"""Networks that a program passes as objects instead of naming them in its settings."""

from __future__ import annotations

import inspect

from torch import nn

from fedml_dapper.config import ModelArgs, digest_of
from fedml_dapper.errors import ConfigError
from fedml_dapper.inputs import Inputs
from fedml_dapper.models.admission import check_network, copied
from fedml_dapper.models.adopt import adopt, bare
from fedml_dapper.models.backbone import Backbone
from fedml_dapper.models.building import adapt_if_asked, build_base


def is_named(passed: nn.Module, args: ModelArgs, num_classes: int, seed: int, example: Inputs) -> bool:
    """Whether ``passed`` is the network that ``args`` name.

    ``args`` may name something unknown to this package, which only the program that made ``passed`` understands.
    """
    try:
        check_same_network(passed, build_base(args, num_classes, seed, example), str(args.model))
    except ConfigError:
        return False
    return True


def take_over(passed: nn.Module, args: ModelArgs, num_classes: int, seed: int, example: Inputs) -> Backbone:
    """Return the initial global model for a network that a program passes: a copy with its present weights, on the CPU.

    If ``args`` name a network too, it has to be the same. Otherwise it is adopted as :func:`build_backbone` would.

    Raises:
        ConfigError: The two networks differ, or the passed one cannot be adopted.
    """
    if args.model is not None:
        backbone = build_base(args, num_classes, seed, example)
        check_same_network(passed, backbone, args.model)
        backbone.load_state_dict(passed.state_dict())
        for ours, theirs in zip(backbone.parameters(), bare(passed).parameters(), strict=True):
            ours.requires_grad_(theirs.requires_grad)
        adapt_if_asked(backbone, args, seed, example)
        return backbone
    for key in ("width", "norm", "arguments", "weights"):
        if getattr(args, key) != ModelArgs.model_fields[key].get_default(call_default_factory=True):
            raise ConfigError(
                f"model_args.{key}: belongs to a network that model_args.model names, and the program passes one; leave"
                " it out"
            )
    backbone = _adopted(passed, example, args.predictor)
    adapt_if_asked(backbone, args, seed, example)
    return backbone


def _adopted(module: nn.Module, example: Inputs, predictor: str | None) -> Backbone:
    label = f"the network that the program passes ({_class_of(module).__name__})"
    copy = copied(module, label).cpu()
    if not isinstance(copy, Backbone):
        return adopt(copy, example, predictor, label=label)
    if predictor is not None:
        raise ConfigError(f"model_args.predictor: {label} is a Backbone, which names its own; leave it out")
    check_network(copy, label)
    return copy


def check_same_network(passed: nn.Module, named: nn.Module, name: str) -> None:
    """Check that ``passed`` has the class and the tensors of ``named``, which settings call ``name``.

    Raises:
        ConfigError: They differ.
    """
    passed_shapes = _shapes(passed)
    named_shapes = _shapes(named)
    if _class_of(passed).__qualname__ == _class_of(named).__qualname__ and passed_shapes == named_shapes:
        return
    differing = sorted(
        (key for key in passed_shapes.keys() | named_shapes.keys() if passed_shapes.get(key) != named_shapes.get(key)),
        key=lambda key: (key not in passed_shapes or key not in named_shapes, key),
    )
    where = f", e.g. in `{differing[0]}`" if differing else ""
    raise ConfigError(
        f"model_args.model: the experiment names `{name}` ({_class_of(named).__name__}), and the program passes another"
        f" network ({_class_of(passed).__name__}){where}; leave model_args out, or pass what it names"
    )


def describe(module: nn.Module) -> str:
    """Describe ``module`` in the same words in every process that runs the same code, whatever its weights.

    The words depend on the source of its class, of its layers' classes beside torch's, and on all tensors' names and
    shapes.
    """
    kinds = {type(layer) for layer in bare(module).modules() if not type(layer).__module__.startswith("torch.")}
    sources = "\n".join(sorted(_source_of(kind) for kind in kinds))
    tensors = "\n".join(f"{name} {shape}" for name, shape in _shapes(module).items())
    name = _class_of(module).__qualname__
    return f"{name} (source {digest_of(sources.encode())}, tensors {digest_of(tensors.encode())})"


def _class_of(module: nn.Module) -> type[nn.Module]:
    return type(bare(module))


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def _source_of(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # a class from a prompt, or one made at run time, has no source
        return kind.__qualname__
