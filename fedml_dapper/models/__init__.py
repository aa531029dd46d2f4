"""Backbones: networks with ``encode`` and ``predict`` that know nothing of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedml_dapper.config import ModelArgs, did_you_mean
from fedml_dapper.errors import ConfigError
from fedml_dapper.models import alexnet, lenet, resnet, unet
from fedml_dapper.models.backbone import Backbone, ExtendedBackbone
from fedml_dapper.seeding import Stream, seeded_layers


@dataclass(frozen=True)
class Architecture:
    """A kind of backbone: how one is built, and its width as published."""

    build: Callable[[int, int, int], Backbone]
    """From (channels of the first layer, number of classes, side of the images in pixels)."""
    width: int


BACKBONES: Mapping[str, Architecture] = {
    "alexnet": Architecture(alexnet.alexnet, alexnet.WIDTH),
    "lenet5": Architecture(lenet.lenet5, lenet.WIDTH),
    "lenet5_one_fc": Architecture(lenet.lenet5_one_fc, lenet.WIDTH),
    "lenet5_three_fc": Architecture(lenet.lenet5_three_fc, lenet.WIDTH),
    "resnet10": Architecture(resnet.resnet10, resnet.WIDTH),
    "resnet18": Architecture(resnet.resnet18, resnet.WIDTH),
    "unet_small": Architecture(unet.unet_small, unet.WIDTH),
}
"""Name in ``model_args.model`` -> architecture."""

__all__ = ["BACKBONES", "Architecture", "Backbone", "ExtendedBackbone", "build_backbone"]


def build_backbone(args: ModelArgs, num_classes: int, seed: int, input_size: int = 32) -> Backbone:
    """The initial global model for images of ``input_size`` x ``input_size`` pixels.

    Its weights are drawn from the initialisation stream of ``seed`` (PyTorch's default rules). Raises
    :class:`ConfigError` for an unknown name and for images that are too small for the architecture.
    """
    if args.model not in BACKBONES:
        raise ConfigError(f"model_args.model: unknown backbone `{args.model}`{did_you_mean(args.model, BACKBONES)}")
    architecture = BACKBONES[args.model]
    with seeded_layers(seed, Stream.INITIALISATION):
        return architecture.build(args.width or architecture.width, num_classes, input_size)
