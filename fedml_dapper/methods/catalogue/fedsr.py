"""FedSR (Nguyen, Torr and Lim, NeurIPS 2022): simple representations.

The encoder gives a Gaussian per image instead of a point; z is drawn from it. The length of z is penalised (L2R), and
the Gaussian is held near a reference Gaussian of the image's class (CMI), so that z says little beyond the class. Full
models on every client; epochs and sample weights as for every method here, not the original's steps and uniform mean.

The penalty is the plain length, which public results stem from; ``l2r_norm: squared`` is the paper's text. The class
references and the scalar k stay with the client, as in the public code; ``shared_references`` averages them. A test
image's class probabilities are the mean over draws of z. These draws are fixed by the seed and the same for every
image, so accuracy does not depend on batches or their order; ``test_samples: 0`` takes the mean of z instead.
"""

from __future__ import annotations

from functools import cached_property
from math import log
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.datasets import Batch
from fedml_dapper.inputs import Inputs
from fedml_dapper.methods.contract import ClientContext, Downlink, Loss, Method, MethodParams
from fedml_dapper.models import Backbone, ExtendedBackbone
from fedml_dapper.randomness.seeding import Stream, seeded_layers, torch_generator


class FedSRParams(MethodParams):
    """Settings of FedSR; defaults as in DapperFL, Table 4, and the public code."""

    alpha_l2r: float = Field(default=0.01, ge=0)
    """Strength of the penalty on the length of z."""
    alpha_cmi: float = Field(default=0.001, ge=0)
    """Strength of the divergence from the class reference."""
    l2r_norm: Literal["l2", "squared"] = "l2"
    """Measure of length: plain, or squared as in the paper's text."""
    test_samples: int = Field(default=20, ge=0)
    """Number of draws of z per test image; 0 tests on the mean of z."""
    shared_references: bool = False
    """Whether the class references and k are sent and averaged too."""


class ClassReferences(nn.Module):
    """Reference r_c = N(mean_c, softplus(scale_c)^2) of every class c, trained with the model, and the scalar k."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(num_classes, width))
        self.scale = nn.Parameter(torch.ones(num_classes, width))
        self.k = nn.Parameter(torch.ones(()))

    def divergence(self, mean: Tensor, std: Tensor, labels: Tensor) -> Tensor:
        """Batch mean of KL(N(k m, (k s)^2) || r_y), for ``mean`` and ``std`` of shape (B, d)."""
        return kl(self.k * mean, self.k.abs() * std, self.mean[labels], F.softplus(self.scale[labels]))


class StochasticBackbone(ExtendedBackbone):
    """Backbone with one more linear layer, d -> 2 d, for mean and standard deviation of z, which training draws.

    The output is the logarithm of the class probabilities averaged over ``test_noise``, shape (draws, d), or where
    there is none the logits at the mean of z.
    """

    def __init__(self, backbone: Backbone, test_noise: Tensor) -> None:
        super().__init__(backbone)
        width = self.predictor.in_features
        self.head = nn.Linear(width, 2 * width)
        self.references = ClassReferences(self.predictor.out_features, width)
        self._test_noise = test_noise

    def distribution(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of z, each of shape (B, d)."""
        mean, spread = self.head(self.encoder.encode(inputs)).chunk(2, dim=1)
        return mean, F.softplus(spread)

    def encode(self, inputs: Inputs) -> Tensor:
        """The mean of z."""
        return self.distribution(inputs)[0]

    def forward(self, inputs: Inputs) -> Tensor:
        mean, std = self.distribution(inputs)
        if len(self._test_noise) == 0:
            return self.predict(mean)
        draws = [mean + std * noise for noise in self._test_noise.to(mean.device)]
        log_probabilities = torch.stack([F.log_softmax(self.predict(draw), dim=1) for draw in draws])
        return log_probabilities.logsumexp(dim=0) - log(len(draws))


class FedSR(Method[FedSRParams]):
    """FedAvg on a stochastic representation that is kept short and near its class."""

    name = "fedsr"
    Params = FedSRParams
    needs_labels = True
    needs_representations = True
    cost_note = (
        "every client trains the full model, with one linear layer more; testing runs the predictor once per draw."
    )

    def build_model(self, backbone: Backbone) -> Backbone:
        predictor = backbone.predictor
        seed = self.problem.seed
        generator = torch_generator(seed, Stream.METHOD)
        test_noise = torch.randn(self.params.test_samples, predictor.in_features, generator=generator)
        with seeded_layers(seed, Stream.METHOD):
            return StochasticBackbone(backbone, test_noise).to(predictor.weight.device)

    @cached_property
    def personal(self) -> frozenset[str]:
        """State-dict entries of the class references and k; none where they are shared."""
        names = self.problem.backbone.state_dict() if not self.params.shared_references else ()
        return frozenset(name for name in names if name.startswith("references."))

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """L_CE(z) + alpha_L2R mean ||z|| + alpha_CMI mean KL, z = m + s * noise drawn per (client, round)."""
        params = self.params
        generator = torch_generator(self.problem.seed, Stream.METHOD, client.profile.client_id, downlink.round)

        def loss(model: Backbone, batch: Batch) -> Tensor:
            assert isinstance(model, StochasticBackbone)
            mean, std = model.distribution(batch.inputs)
            noise = torch.randn(mean.shape, generator=generator).to(mean.device)  # on the CPU: alike on every device
            representations = mean + std * noise
            total = self.problem.task.loss(model.predict(representations), batch.targets)
            total = total + params.alpha_l2r * length(representations, params.l2r_norm)
            if params.alpha_cmi > 0:  # the divergence of a point, s = 0, is infinite
                total = total + params.alpha_cmi * model.references.divergence(mean, std, batch.targets)
            return total

        return loss


def length(representations: Tensor, norm: Literal["l2", "squared"]) -> Tensor:
    """Batch mean of ||z||_2, or of its square; ``representations`` is (B, d)."""
    lengths: Tensor = torch.linalg.vector_norm(representations, dim=1)
    return (lengths if norm == "l2" else lengths.square()).mean()


def kl(mean: Tensor, std: Tensor, reference_mean: Tensor, reference_std: Tensor) -> Tensor:
    """Batch mean of KL(N(mean, std^2) || N(reference_mean, reference_std^2)), summed over dimensions; all (B, d)."""
    squares = (std.square() + (mean - reference_mean).square()) / (2 * reference_std.square())
    return (reference_std.log() - std.log() + squares - 0.5).sum(dim=1).mean()
