"""Models made ready to be written, and what their files take and give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedml_dapper.deployment.deployed import Deployed
from fedml_dapper.deployment.formats import Product
from fedml_dapper.deployment.sidecar import Port
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.run_folder.model_file import ModelOrigin
from fedml_dapper.inputs import Inputs, tensors_of
from fedml_dapper.models import Backbone
from fedml_dapper.models.adapters import has_adapters
from fedml_dapper.pruning import ChannelLayout, Widths
from fedml_dapper.pruning.footprint import count_macs, count_parameters

_CLASSES = "classification"


def product_of(model: Backbone, origin: ModelOrigin, round_: int, task: str, kept: Mapping[str, Tensor]) -> Product:
    """Return the model of ``round_`` for files; ``task`` is the name of what it was trained for.

    ``kept`` are the kept channels of a slim model's groups where it matters which they are.
    """
    return Product(
        model=model,
        deployed=Deployed(model, origin.preprocessing),
        origin=origin,
        round=round_,
        label=f"the network {model.label}",
        input_names=_names(origin.example) if origin.preprocessing is None else ("pixels",),
        output_name="scores" if task == _CLASSES else "outputs",
        kept=kept,
    )


def output_port(product: Product, task: str) -> Port:
    """Return the output of a file."""
    with torch.no_grad():
        outputs = product.deployed(product.example)
    return Port(
        name=product.output_name,
        dtype=_kind(outputs),
        shape=(None, *outputs.shape[1:]),
        meaning="a score a class; softmax gives probabilities"
        if task == _CLASSES
        else f"what the network gives for task {task}",
    )


def _names(example: Inputs) -> tuple[str, ...]:
    """Names under which a file takes the tensors of inputs like ``example``."""
    if isinstance(example, Tensor):
        return ("inputs",)
    return tuple(example) if isinstance(example, dict) else tuple(f"inputs_{place}" for place in range(len(example)))


def input_ports(product: Product) -> tuple[Port, ...]:
    """Return the inputs of a file, in order."""
    meaning = _meaning_of_input(product)
    return tuple(
        Port(name=name, dtype=_kind(part), shape=(None, *part.shape[1:]), meaning=meaning)
        for name, part in zip(product.input_names, tensors_of(product.example), strict=True)
    )


def _meaning_of_input(product: Product) -> str:
    preprocessing = product.origin.preprocessing
    if preprocessing is None:
        return "what the data set gives"
    side = preprocessing.input_size
    return (
        "pictures in RGB, 0 to 255, upright as EXIF says (16 bits divided by 257, what is transparent made white),"
        f" resized to {side} x {side} whatever their proportions (bilinear, antialiased); normalisation is inside"
    )


def check_finite(model: Backbone, whose: str) -> None:
    """Check that the numbers of ``model``, described as ``whose``, are finite.

    Raises:
        ConfigError: They are not, so the model is useless.
    """
    not_finite = [name for name, tensor in model.state_dict().items() if not bool(tensor.isfinite().all())]
    if not_finite:
        raise ConfigError(
            f"{whose} holds numbers that are not finite (NaN or infinite) in {len(not_finite)} tensors,"
            f" `{not_finite[0]}` first: its training went astray; look for such values in the data, lower"
            " train_args.learning_rate, or set train_args.max_grad_norm, and train again"
        )


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def size_when_merged(layout: ChannelLayout, widths: Widths, size: tuple[int, int]) -> tuple[int, int]:
    """Return parameters and multiply-accumulates of a model with its adapters merged, from its ``size`` with them."""
    tensors = {name: spec for name, spec in layout.tensors.items() if has_adapters([name])}
    adapters = replace(layout, tensors=tensors, products={})
    parameters, macs = size
    return parameters - count_parameters(adapters, widths), macs - count_macs(adapters, widths)
