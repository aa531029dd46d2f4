"""Backbones: networks with ``encode`` and ``predict`` that know nothing of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from fedml_dapper.config import ModelArgs, did_you_mean
from fedml_dapper.errors import ConfigError
from fedml_dapper.models.backbone import Backbone
from fedml_dapper.models.resnet import resnet10, resnet18
from fedml_dapper.seeding import Stream, torch_generator

BACKBONES: Mapping[str, Callable[[int, int], Backbone]] = {"resnet10": resnet10, "resnet18": resnet18}
"""Name in ``model_args.model`` -> builder from (width, number of classes)."""

__all__ = ["BACKBONES", "Backbone", "build_backbone"]


def build_backbone(args: ModelArgs, num_classes: int, seed: int) -> Backbone:
    """The initial global model, drawn from the initialisation stream of ``seed`` (PyTorch's default rules).

    Raises :class:`ConfigError` for an unknown name.
    """
    if args.model not in BACKBONES:
        raise ConfigError(f"model_args.model: unknown backbone `{args.model}`{did_you_mean(args.model, BACKBONES)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_generator(seed, Stream.INITIALISATION).initial_seed())
        return BACKBONES[args.model](args.width, num_classes)
