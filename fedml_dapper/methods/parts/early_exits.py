"""Residual networks that can stop early: a classifier behind every stage (DepthFL, ScaleFL)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, cast

import torch
from torch import Tensor, nn

from fedml_dapper.errors import ConfigError
from fedml_dapper.models import Backbone
from fedml_dapper.models.resnet import NORMALISATIONS, BasicBlock, Normalisation, ResNet
from fedml_dapper.randomness.seeding import Stream, seeded_layers

Prediction = Literal["ensemble", "deepest"]
"""Answer of the network: the mean of all classifiers' logits, or the deepest's."""


class Exit(nn.Module):
    """A short way from a stage of ``channels[0]`` channels past the later ones, to a classifier like the network's.

    For each stage that is passed: means over 2x2 positions, a 1x1 convolution to its number of channels, the network's
    norm, ReLU.
    """

    def __init__(self, channels: Sequence[int], num_classes: int, norm: Normalisation) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for narrow, wide in pairwise(channels):
            layers += [nn.AvgPool2d(2, ceil_mode=True), norm.pointwise(narrow, wide, 1), norm.behind(wide)]
            layers += [nn.ReLU(inplace=True)]
        self.way = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels[-1], num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Representations z, shape (B, d), of a stage's output."""
        passed: Tensor = self.way(features)
        return passed.mean(dim=(2, 3))


class EarlyExits(Backbone):
    """A ResNet with an :class:`Exit` behind every stage but the last, whose classifier is the network's own predictor.

    The network's own tensors keep their names. What :meth:`shallow` cuts off has the classifier of its deepest exit as
    predictor. Forward passes always take every exit, so that all statistics are measured and all costs counted.
    """

    def __init__(self, resnet: ResNet, prediction: Prediction) -> None:
        super().__init__()
        whole = copy.deepcopy(resnet)
        norm = NORMALISATIONS[resnet.norm]
        self.stem = whole.stem
        self.stages = whole.stages
        channels = [_channels(cast(nn.Sequential, stage)) for stage in self.stages]
        num_classes = whole.predictor.out_features
        self.exits = nn.ModuleList(Exit(channels[passed:], num_classes, norm) for passed in range(len(channels) - 1))
        self._modules["predictor"] = whole.predictor
        self._prediction = prediction

    @property
    def predictor(self) -> nn.Linear:  # type: ignore[override]  # a layer of its own in whole networks only
        """The deepest classifier."""
        return self.classifiers[-1]

    @property
    def classifiers(self) -> list[nn.Linear]:
        """Classifiers of all stages, shallowest first."""
        of_exits = [cast(Exit, exit_).classifier for exit_ in self.exits]
        last = self._modules.get("predictor")
        return of_exits if last is None else [*of_exits, cast(nn.Linear, last)]

    @property
    def head_tensors(self) -> frozenset[str]:
        """State-dict entries of all classifiers."""
        heads = ("predictor", *(f"exits.{index}.classifier" for index in range(len(self.exits))))
        return frozenset(name for name in self.state_dict() if name.rpartition(".")[0] in heads)

    def beyond(self, depth: int) -> frozenset[str]:
        """State-dict entries that a network of the first ``depth`` stages lacks."""
        gone = [f"stages.{index}." for index in range(depth, len(self.stages))]
        if gone:
            gone += ["predictor.", *(f"exits.{index}." for index in range(depth, len(self.exits)))]
        return frozenset(name for name in self.state_dict() if name.startswith(tuple(gone)))

    def shallow(self, depth: int) -> EarlyExits:
        """A copy of the first ``depth`` stages and their classifiers; tensors keep their names."""
        cut = copy.deepcopy(self)
        if depth < len(self.stages):
            del cut.stages[depth:], cut.exits[depth:], cut._modules["predictor"]
        return cut

    def representations(self, images: Tensor) -> list[Tensor]:
        """Representations z that each classifier is given, (B, d) each, shallowest first."""
        features = self.stem(images)
        found = []
        for index, stage in enumerate(self.stages):
            features = stage(features)
            found.append(self.exits[index](features) if index < len(self.exits) else features.mean(dim=(2, 3)))
        return found

    def classify(self, images: Tensor) -> list[Tensor]:
        """Logits of all classifiers, (B, C) each, shallowest first."""
        return [classifier(z) for classifier, z in zip(self.classifiers, self.representations(images), strict=True)]

    def encode(self, images: Tensor) -> Tensor:
        return self.representations(images)[-1]

    def forward(self, images: Tensor) -> Tensor:
        # stacked in either case: tracing has to see that every classifier's logits are put out
        logits = torch.stack(self.classify(images))
        return logits.mean(dim=0) if self._prediction == "ensemble" else logits[-1]


def with_exits(backbone: Backbone, prediction: Prediction, method: str, seed: int) -> EarlyExits:
    """``backbone`` with a classifier behind every stage, whose initial weights follow from ``seed``.

    Raises :class:`ConfigError`, which names ``method``, where it is not a built-in ResNet.
    """
    if not isinstance(backbone, ResNet):
        raise ConfigError(
            f"model_args.model: {method} needs the stages of a built-in ResNet, resnet10 or resnet18;"
            f" {backbone.label} is another network"
        )
    with seeded_layers(seed, Stream.METHOD):
        return EarlyExits(backbone, prediction).to(backbone.predictor.weight.device)


def _channels(stage: nn.Sequential) -> int:
    """Number of channels that a stage puts out."""
    last = stage[-1]
    assert isinstance(last, BasicBlock)
    return last.conv2.out_channels
