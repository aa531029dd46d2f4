"""FedBABU (Oh, Kim and Yun, ICLR 2022): the body is learnt under a head that nobody trains.

All clients start from the head of the initial model, drawn from the seed, and keep it as it is: no gradient, no decay.
So it need not be sent at all; only bodies are sent and averaged. A client's own model is the body fine-tuned on its
training images, head included or head alone. It is made anew for every test and thrown away.

The global model, scored per domain, is the body under the initial head; clients' own models are scored after
fine-tuning (``dapper_args.evaluation.personal``). FedCMD's tables seem to be without: ``finetune_epochs: 0``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Literal

from pydantic import Field
from torch import nn

from fedml_dapper.methods.contract import ClientContext, Downlink, LocalTraining, Method, MethodParams
from fedml_dapper.methods.parts.layers import head_of, train_only
from fedml_dapper.models import Backbone


class FedBABUParams(MethodParams):
    """Settings of FedBABU."""

    finetune_epochs: int = Field(default=1, ge=0)
    """Epochs of fine-tuning before a client's own model is tested; 0 tests the global model."""
    finetune: Literal["all", "head"] = "all"
    """Part that is fine-tuned: the whole model, or the head on a body that stays as it is."""


class FedBABU(Method[FedBABUParams]):
    """FedAvg on the body under a fixed head; fine-tuning for evaluation."""

    name = "fedbabu"
    Params = FedBABUParams
    cost_note = (
        "every client trains the full model but for the head, and fine-tunes it whenever its own model is tested."
    )

    @cached_property
    def personal(self) -> frozenset[str]:
        """The head, the same on every client and never changed."""
        return head_of(self.problem.backbone)

    def load(self, client: ClientContext, downlink: Downlink) -> Backbone:
        """The received body under the initial head, which is frozen."""
        model = super().load(client, downlink)
        train_only(model, set(self.problem.layout.trainable) - self.personal)
        return model

    def personal_model(self, client: ClientContext, downlink: Downlink) -> Backbone:
        """The received body, fine-tuned on the client's training images in the batches of the coming round."""
        model = self.load(client, downlink)
        epochs = self.params.finetune_epochs
        whole = self.params.finetune == "all"
        trained = set(self.problem.layout.trainable)
        train_only(model, trained if whole else trained & self.personal)
        unreported = replace(client, on_step=lambda done, total: None)  # these are not steps of the round
        training = LocalTraining(unreported, downlink.round, self.problem.training, epochs)
        optimizer = training.optimizer(model)
        loss = self.objective(client, downlink)
        mode = nn.Module.train if whole else nn.Module.eval
        training.epoch(model, optimizer, loss, times=epochs, mode=mode)
        return model
