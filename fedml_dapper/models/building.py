"""Construction of the initial global model from ``model_args``."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from fedml_dapper.config import ModelArgs, Settings
from fedml_dapper.config.compatibility import Capabilities, check_capabilities
from fedml_dapper.errors import USER_CODE_ERRORS, ConfigError, DapperError
from fedml_dapper.inputs import Inputs, described
from fedml_dapper.models.adapters import add_adapters
from fedml_dapper.models.admission import check_network
from fedml_dapper.models.adopt import adopt
from fedml_dapper.models.backbone import Backbone, example_image
from fedml_dapper.models.catalogue import BACKBONES, MODELS, Architecture, Factory
from fedml_dapper.models.library import library_factory
from fedml_dapper.models.weights import load_weights
from fedml_dapper.randomness.seeding import Stream, seeded_layers

_SMALL_IMAGE = example_image(32)


def build_backbone(args: ModelArgs, num_classes: int, seed: int, example: Inputs = _SMALL_IMAGE) -> Backbone:
    """Build the initial global model for inputs like ``example``, a batch of one: a base, and adapters if asked for.

    Raises:
        ConfigError: No such network exists, or it does not fit the inputs, the classes or the adapters.
    """
    backbone = build_base(args, num_classes, seed, example)
    adapt_if_asked(backbone, args, seed, example)
    return backbone


def adapt_if_asked(backbone: Backbone, args: ModelArgs, seed: int, example: Inputs) -> None:
    """Freeze ``backbone`` and put adapters beside its layers, in place, where ``args`` ask for that.

    Raises:
        ConfigError: The network cannot have such adapters.
    """
    if args.adapter is not None:
        with seeded_layers(seed, Stream.ADAPTERS):
            add_adapters(backbone, args.adapter, example, backbone.label)


def build_base(args: ModelArgs, num_classes: int, seed: int, example: Inputs = _SMALL_IMAGE) -> Backbone:
    """Build the network that ``args`` name, without adapters.

    Its weights are drawn from the initialisation stream of ``seed`` (by PyTorch's default rules, or the network's own),
    or read from ``args.weights``.

    Raises:
        ConfigError: No such network exists, or it does not fit the inputs or the classes.
    """
    if args.model is None:
        raise ConfigError(
            "model_args.model: neither the experiment file nor the program says which network; name one, or pass one to"
            " trainer, aggregator or runner"
        )
    kind = library_factory(args.model) or MODELS.find(args.model)
    with seeded_layers(seed, Stream.INITIALISATION):
        backbone = (
            _built_in(kind, args, num_classes, example)
            if isinstance(kind, Architecture)
            else _own(kind, args, num_classes, example)
        )
    if args.weights is not None:
        load_weights(backbone, args.weights)
    return backbone


def _built_in(architecture: Architecture, args: ModelArgs, num_classes: int, example: Inputs) -> Backbone:
    _check(args, architecture)
    size = _length_of_texts(args, example) if architecture.takes == "texts" else _side_of_images(args, example)
    chosen = {} if args.norm is None else {"norm": args.norm}
    return architecture.build(args.width or architecture.width, num_classes, size, **chosen)


def _length_of_texts(args: ModelArgs, example: Inputs) -> int:
    """Return the number of tokens of an input."""
    if not isinstance(example, Tensor) or example.dim() != 2 or example.dtype != torch.int64:
        raise ConfigError(
            f"model_args.model: `{args.model}` takes tokens, int64 (T,), and the data are"
            f" {described(example, _dtype_and_shape)}; name a network for these (docs/own_model.md)"
        )
    return example.shape[1]


def _dtype_and_shape(part: Tensor) -> str:
    return f"{str(part.dtype).removeprefix('torch.')} {tuple(part.shape[1:])}"


def _side_of_images(args: ModelArgs, example: Inputs) -> int:
    """Return the side of an input in pixels."""
    if not isinstance(example, Tensor):
        raise ConfigError(
            f"model_args.model: `{args.model}` takes one tensor, square colour images, and the data are"
            f" {described(example, lambda part: str(tuple(part.shape[1:])))}; name a network for these"
            " (docs/own_model.md)"
        )
    side = example.shape[-1]
    if example.shape != (1, 3, side, side):
        raise ConfigError(
            f"model_args.model: `{args.model}` takes square colour images, (3, S, S), and the data are"
            f" {tuple(example.shape[1:])}; name a network for these (docs/own_model.md)"
        )
    if example.dtype != torch.float32:
        found = str(example.dtype).removeprefix("torch.")
        remedy = "x.float() / 255" if example.dtype == torch.uint8 else "x.float()"
        raise ConfigError(
            f"model_args.model: `{args.model}` takes float32 inputs, and those of all domains are {found}; let the data"
            f" set give {remedy}"
        )
    return side


def _check(args: ModelArgs, architecture: Architecture | None) -> None:
    """Raise :class:`ConfigError` for settings that do not go with the network, which is of the user's own where it has
    no ``architecture``."""
    check_capabilities(
        Settings.model_construct(model_args=args),
        Capabilities(
            network=str(args.model),
            is_built_in=architecture is not None,
            takes_norm=None if architecture is None else args.norm in (None, *architecture.norms),
            with_norm=", ".join(name for name, known in BACKBONES.items() if args.norm in known.norms),
        ),
    )


def _own(factory: Factory, args: ModelArgs, num_classes: int, example: Inputs) -> Backbone:
    assert args.model is not None
    _check(args, None)
    label = f"model_args.model: `{args.model}`"
    module = _made(factory, args, num_classes, label)
    if isinstance(module, Backbone):
        check_network(module, label)
        backbone: Backbone = module
        if args.predictor is not None:
            raise ConfigError(f"model_args.predictor: {label} is a Backbone, which names its own; leave it out")
    else:
        backbone = adopt(module, example, args.predictor, label=label)
    return backbone


def _made(factory: Factory, args: ModelArgs, num_classes: int, label: str) -> nn.Module:
    arguments = dict(args.arguments)
    if _takes_num_classes(factory):
        arguments.setdefault("num_classes", num_classes)
    try:
        module = factory(**arguments)
    except DapperError:
        raise
    except USER_CODE_ERRORS as error:
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        reason = " ".join(str(error).split())
        raise ConfigError(f"{label} cannot be made from ({given}): {type(error).__name__}: {reason}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{label} gives a {type(module).__name__}, expected a torch.nn.Module")
    return module


def _takes_num_classes(factory: Factory) -> bool:
    try:
        return "num_classes" in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some written in C have none
        return False
