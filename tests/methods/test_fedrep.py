"""FedRep: who trains what, and when."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import ClientSide, Experiment, Server, build_experiment
from fedml_dapper.methods import ClientContext, LocalTraining
from fedml_dapper.methods.catalogue.fedrep import FedRep, FedRepParams

SettingsFactory = Callable[..., Settings]
HEAD = {"predictor.weight", "predictor.bias"}


def fedrep(fedavg: Experiment, epochs: int, body_epochs: int, **training: Any) -> Experiment:
    args = fedavg.method.problem.training.model_copy(update={"epochs": epochs, **training})
    problem = replace(fedavg.method.problem, training=args)
    return replace(fedavg, method=FedRep(FedRepParams(body_epochs=body_epochs), problem))


def states_by_epoch(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """Client 0's model before its first round of training and after every epoch of it."""
    states = [copy.deepcopy(experiment.method.problem.backbone.state_dict())]
    epoch = LocalTraining.epoch

    def watched(self: LocalTraining, model: Any, *args: Any, times: int = 1, **options: Any) -> None:
        for _ in range(times):
            epoch(self, model, *args, **options)
            states.append(copy.deepcopy(model.state_dict()))

    with monkeypatch.context() as patch:
        patch.setattr(LocalTraining, "epoch", watched)
        ClientSide(experiment).update(Server(experiment).downlink(0), experiment.clients[0])
    return states


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}


def test_head_epochs_leave_the_body_bit_identical_and_body_epochs_the_head(
    fedavg: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = fedrep(fedavg, epochs=4, body_epochs=2, weight_decay=0.1, max_grad_norm=0.5)
    states = states_by_epoch(experiment, monkeypatch)
    assert len(states) == 5
    moves = [changed(before, after) for before, after in pairwise(states)]
    assert moves[0] == moves[1] == HEAD
    assert moves[2] == moves[3] == states[0].keys() - HEAD


def test_each_stage_is_plain_sgd_on_its_part(fedavg: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's first epoch by hand: features of the received body in evaluation mode, SGD on the head alone."""
    experiment = fedrep(fedavg, epochs=2, body_epochs=1)
    states = states_by_epoch(experiment, monkeypatch)
    model, args = copy.deepcopy(experiment.method.problem.backbone).eval(), experiment.method.problem.training
    optimizer = torch.optim.SGD(
        model.predictor.parameters(), args.learning_rate, args.momentum, weight_decay=args.weight_decay
    )
    for images, labels in experiment.clients[0].batches(1, 1):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model.predict(model.encode(images).detach()), labels).backward()
        optimizer.step()
    torch.testing.assert_close(states[1]["predictor.weight"], model.predictor.weight.detach())


def test_head_stays_home_and_a_second_round_goes_on_from_it(fedavg: Experiment) -> None:
    experiment = fedrep(fedavg, epochs=2, body_epochs=1)
    server, clients = Server(experiment), ClientSide(experiment)
    downlink = server.downlink(0)
    upload = clients.update(downlink, experiment.clients[0])
    assert downlink.weights.keys() == upload.weights.keys() == server.state.weights.keys() - HEAD
    own = clients.memories[0].recall("personal")
    assert own.keys() == HEAD
    context = ClientContext(experiment.profiles[0], experiment.clients[0], clients.memories[0])
    assert torch.equal(experiment.method.load(context, downlink).predictor.weight, own["predictor.weight"])
    clients.update(replace(downlink, round=2), experiment.clients[0])
    assert not torch.equal(clients.memories[0].recall("personal")["predictor.weight"], own["predictor.weight"])


def test_without_head_epochs_only_the_body_trains(fedavg: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    states = states_by_epoch(fedrep(fedavg, epochs=1, body_epochs=1), monkeypatch)
    assert changed(states[0], states[1]) == states[0].keys() - HEAD


def test_more_body_epochs_than_epochs_is_refused(tiny_settings: SettingsFactory) -> None:
    with pytest.raises(ConfigError, match=r"fedrep.body_epochs: 3 of train_args.epochs: 2"):
        build_experiment(tiny_settings("method=fedrep", "dapper_args.params.fedrep.body_epochs=3"))
