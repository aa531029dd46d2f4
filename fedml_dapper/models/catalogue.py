"""Networks that ``model_args.model`` can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import nn

from fedml_dapper.config import Norm
from fedml_dapper.models import alexnet, lenet, resnet, transformer, unet
from fedml_dapper.models.backbone import Backbone
from fedml_dapper.registry import Registry


@dataclass(frozen=True)
class Architecture:
    """A kind of built-in backbone."""

    build: Callable[..., Backbone]
    """Builds one from the channels of the first layer, the number of classes, the side of the images in pixels (the
    length of texts in tokens) and, if one is asked for, the norm."""
    width: int
    """Channels of the first layer as published."""
    norms: tuple[Norm, ...] = ()
    """Norms that it can be built with."""
    takes: Literal["images", "texts"] = "images"
    """Images float32 (B, 3, S, S), or tokens int64 (B, T)."""


Factory: TypeAlias = Callable[..., nn.Module]
"""A class of networks, or a function that makes one."""

BACKBONES: Mapping[str, Architecture] = {
    "alexnet": Architecture(alexnet.alexnet, alexnet.WIDTH, alexnet.NORMS),
    "lenet5": Architecture(lenet.lenet5, lenet.WIDTH),
    "lenet5_one_fc": Architecture(lenet.lenet5_one_fc, lenet.WIDTH),
    "lenet5_three_fc": Architecture(lenet.lenet5_three_fc, lenet.WIDTH),
    "resnet10": Architecture(resnet.resnet10, resnet.WIDTH, tuple(resnet.NORMALISATIONS)),
    "resnet18": Architecture(resnet.resnet18, resnet.WIDTH, tuple(resnet.NORMALISATIONS)),
    "transformer_small": Architecture(transformer.transformer_small, transformer.WIDTH, takes="texts"),
    "unet_small": Architecture(unet.unet_small, unet.WIDTH),
}
"""The built-in networks by name."""


def _fits(found: object) -> str:
    """Reason why ``found`` cannot make a network; see :class:`Registry`."""
    return "" if callable(found) else "neither a class nor a function; name one that gives a torch.nn.Module"


MODELS: Registry[Architecture | Factory] = Registry("model_args.model", "network", BACKBONES, _fits)
"""Networks that ``model_args.model`` can name, beside those of libraries (``library``)."""
