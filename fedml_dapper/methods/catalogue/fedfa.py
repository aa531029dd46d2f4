"""FedFA (Zhou and Konukoglu, ICLR 2023): federated feature augmentation.

Behind every convolutional stage, a layer of augmentation moves each image's channel means and standard deviations at
random while training. How far is learnt from the statistics of the batch and, channel by channel, from how much the
clients differ, which the server measures and sends. Everything else is FedAvg. Two more methods go by this name
(feature anchors; fairness and accuracy); this is neither.

Public code takes one variance over clients and channels alike, so that no channel weighs more than another; here it
is per channel, as in the paper. As in public code a layer tracks running statistics only in the steps in which it is
active. Where the text is silent: all variances are biased (divided by the count); running statistics are averaged
between rounds like other buffers; each layer decides for itself, a whole batch at a time; every square root has eps
under it, for its gradient.
"""

from __future__ import annotations

import copy

import torch
from pydantic import Field
from torch import Tensor, nn

from fedml_dapper.errors import ConfigError
from fedml_dapper.inputs import Inputs, moved
from fedml_dapper.methods.contract import (
    Aggregation,
    ClientContext,
    Downlink,
    Method,
    MethodParams,
    Problem,
    RecoverAndAverage,
    ServerState,
    Upload,
)
from fedml_dapper.models import Backbone
from fedml_dapper.randomness.seeding import Stream, torch_generator

_EPS = 1e-6
_STATISTICS = ("mean", "std")


class FedFAParams(MethodParams):
    """Settings of FedFA; defaults as published."""

    probability: float = Field(default=0.5, ge=0, le=1)
    """Probability that a layer of augmentation is active in a training step; 0 is FedAvg."""
    momentum: float = Field(default=0.99, ge=0, lt=1)
    """Share of its old value that a running statistic keeps in a step."""


class FeatureAugmentation(nn.Module):
    """Federated feature augmentation of feature maps x of shape (B, C, H, W); in evaluation mode it changes nothing.

    With channel means m and standard deviations s of each image, and V the batch variance of either:
    s' (x - m) / s + m', where m' = m + noise sqrt((1 + gamma) V), s' likewise, and gamma is :func:`client_gamma` of R.
    """

    running_mean: Tensor
    running_std: Tensor
    shared_mean_variance: Tensor
    shared_std_variance: Tensor

    def __init__(self, channels: int, probability: float, momentum: float) -> None:
        super().__init__()
        self.probability = probability
        self.momentum = momentum
        self.generator: torch.Generator | None = None
        """Where decisions and noise come from, on the CPU; torch's own where absent."""
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_std", torch.ones(channels))
        self.register_buffer("shared_mean_variance", torch.ones(channels))
        self.register_buffer("shared_std_variance", torch.ones(channels))

    def forward(self, features: Tensor) -> Tensor:
        if not self.training or torch.rand((), generator=self.generator) >= self.probability:
            return features
        mean = features.mean(dim=(2, 3))
        std = (features.var(dim=(2, 3), correction=0) + _EPS).sqrt()
        for running, statistic in ((self.running_mean, mean), (self.running_std, std)):
            running.lerp_(statistic.detach().mean(dim=0).to(running.dtype), 1 - self.momentum)
        new_mean = self._moved(mean, self.shared_mean_variance)
        new_std = self._moved(std, self.shared_std_variance)
        normalised = (features - _maps(mean)) / _maps(std)
        return normalised * _maps(new_std) + _maps(new_mean)

    def _moved(self, statistic: Tensor, shared_variance: Tensor) -> Tensor:
        variance = (1 + client_gamma(shared_variance)) * statistic.var(dim=0, correction=0)
        noise = torch.randn(statistic.shape, generator=self.generator).to(statistic.device)
        return statistic + noise * (variance + _EPS).sqrt()


class FedFA(Method[FedFAParams]):
    """FedAvg on features whose statistics are perturbed as far as clients differ."""

    name = "fedfa"
    Params = FedFAParams
    sees_batches = True
    cost_note = "every client trains the full model; statistics of its feature maps travel with it."

    def build_model(self, backbone: Backbone) -> Backbone:
        if not backbone.conv_stages():
            raise ConfigError(
                "model_args.model: method `fedfa` augments what comes out of convolutional stages, and"
                f" {backbone.label} marks none; implement its conv_stages or choose another backbone"
            )
        augmented = copy.deepcopy(backbone)
        params = self.params
        channels = stage_channels(backbone, self.problem.example)
        for stage, width in zip(augmented.conv_stages(), channels, strict=True):
            stage.append(FeatureAugmentation(width, params.probability, params.momentum))
        return augmented.to(next(backbone.parameters()).device)

    def load(self, client: ClientContext, downlink: Downlink) -> Backbone:
        """The received model, its augmentation drawing from the stream of (client, round)."""
        model = super().load(client, downlink)
        generator = torch_generator(self.problem.seed, Stream.METHOD, client.profile.client_id, downlink.round)
        for layer in augmentations(model).values():
            layer.generator = generator
        return model

    @property
    def beyond_sums(self) -> str:
        return "how much feature statistics vary between clients"

    def aggregation(self, server: ServerState) -> Aggregation:
        return AverageAndCompare(server, self.problem)


class AverageAndCompare(RecoverAndAverage):
    """FedAvg's mean, and R, the unweighted variance of the round's running statistics across clients."""

    def __init__(self, server: ServerState, problem: Problem) -> None:
        super().__init__(server, problem)
        self._running: dict[tuple[str, str], list[Tensor]] = {
            (layer, statistic): [] for layer in augmentations(problem.backbone) for statistic in _STATISTICS
        }

    def add(self, upload: Upload) -> None:
        super().add(upload)
        for (layer, statistic), values in self._running.items():
            values.append(upload.weights[f"{layer}.running_{statistic}"].double())

    def close(self) -> None:
        super().close()
        for (layer, statistic), values in self._running.items():
            name = f"{layer}.shared_{statistic}_variance"
            variance = torch.stack(values).var(dim=0, correction=0)
            self._server.weights[name] = variance.to(self._server.weights[name])


def client_gamma(shared_variance: Tensor) -> Tensor:
    """Share of each channel (C,) in the noise: gamma = C q / sum(q), q = 1 / (1 + 1 / (R + eps)), from R (C,)."""
    q = 1 / (1 + 1 / (shared_variance + _EPS))
    return len(q) * q / q.sum()


def augmentations(model: nn.Module) -> dict[str, FeatureAugmentation]:
    """Layers of augmentation, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, FeatureAugmentation)}


@torch.no_grad()
def stage_channels(backbone: Backbone, example: Inputs) -> list[int]:
    """Channels that come out of every convolutional stage."""
    probe = copy.deepcopy(backbone).eval()
    channels = list[int]()
    for stage in probe.conv_stages():
        stage.register_forward_hook(lambda _stage, _inputs, output: channels.append(output.shape[1]))
    probe(moved(example, next(backbone.parameters()).device))
    return channels


def _maps(statistic: Tensor) -> Tensor:
    return statistic[:, :, None, None]
