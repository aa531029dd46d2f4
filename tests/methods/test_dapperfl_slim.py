"""DapperFL from a slim download; how channels are dealt is in test_dealing.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from fedml_dapper.config import Settings
from fedml_dapper.federation import ClientSide, Experiment, Server, build_experiment, simulate
from fedml_dapper.methods import Upload, payload_bytes
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import slim_model

from .plain_sgd import descend, sgd

SettingsFactory = Callable[..., Settings]
NORMS = ("batch", "standardised")
SLIM = ("method=dapperfl_slim", "norm=standardised")


def params(**values: object) -> str:
    return f"dapper_args.params.dapperfl_slim={values}"


def trained(settings: Settings) -> dict[str, Tensor]:
    server, _ = simulate(build_experiment(settings))
    return server.state.weights


def one_upload(experiment: Experiment, client_id: int) -> tuple[Server, Upload]:
    server = Server(experiment)
    server.round_clients()
    return server, ClientSide(experiment).update(server.downlink(client_id), experiment.clients[client_id])


def client_of_level(experiment: Experiment, level: int) -> int:
    return next(profile.client_id for profile in experiment.profiles if profile.level == level)


@pytest.mark.long
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("beta", [0.7, pytest.param(0.0, marks=pytest.mark.nightly)])
def test_with_full_models_it_is_fedavg_or_fedavgm_bit_for_bit(
    tiny_settings: SettingsFactory, norm: str, beta: float
) -> None:
    alike = (f"norm={norm}", "ratios=[0.0]")
    ours = trained(tiny_settings("method=dapperfl_slim", params(server_momentum=beta), *alike))
    theirs = f"dapper_args.params.fedavgm={{server_momentum: {beta}}}"
    fedavg = trained(tiny_settings(f"method={'fedavgm' if beta else 'fedavg'}", *alike, theirs))
    assert all(torch.equal(tensor, fedavg[name]) for name, tensor in ours.items())


def test_no_client_holds_more_than_its_level_allows(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings(*SLIM))
    method = experiment.method
    for level, ratio in enumerate((0.0, 0.2, 0.4, 0.6, 0.8), start=1):
        server, upload = one_upload(experiment, client_of_level(experiment, level))
        downlink, cost = server.downlink(upload.client_id), method.footprint(ratio)
        assert sum(tensor.numel() for tensor in downlink.weights.values()) == cost.parameters
        assert payload_bytes(downlink, method.problem.layout) == cost.bytes_down
        assert payload_bytes(upload, method.problem.layout) == cost.bytes_up == cost.bytes_down
        assert upload.plan.equals(downlink.plan)


def test_a_round_leaves_no_channel_out(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings(*SLIM, "ratios=[0.2, 0.4, 0.6, 0.8]", params(dealt=1.0)))
    server = Server(experiment)
    plans = [server.downlink(client_id).plan for client_id in server.round_clients()]
    for name, group in experiment.method.problem.layout.groups.items():
        assert set(torch.cat([plan.kept[name] for plan in plans]).tolist()) == set(range(group.channels))


def test_those_who_hold_weaker_networks_teach_them(tiny_settings: SettingsFactory) -> None:
    alike = (*SLIM, "ratios=[0.0, 0.3, 0.6]", "client_num_in_total=6", "client_num_per_round=6")
    taught, plain = (build_experiment(tiny_settings(*alike, params(distillation=strength))) for strength in (1.0, 0.0))
    for level, differs in ((1, True), (2, True), (3, False)):
        client = client_of_level(taught, level)
        ours, theirs = one_upload(taught, client)[1].weights, one_upload(plain, client)[1].weights
        assert any(not torch.equal(tensor, theirs[name]) for name, tensor in ours.items()) == differs


@pytest.mark.parametrize("every", [1, 3])
def test_every_so_many_th_step_teaches_one_weaker_network_in_turn(tiny_settings: SettingsFactory, every: int) -> None:
    alike = ("ratios=[0.0, 0.3, 0.6]", "client_num_in_total=6", "client_num_per_round=6")
    experiment = build_experiment(tiny_settings(*SLIM, *alike, params(teach_every=every)))
    client = client_of_level(experiment, 1)
    own, *weaker = (experiment.method.footprint(ratio).parameters for ratio in experiment.method.problem.ratios)
    ran: list[int] = []

    def note(module: nn.Module, inputs: object) -> None:
        if isinstance(module, Backbone):
            ran.append(sum(parameter.numel() for parameter in module.parameters()))

    with register_module_forward_pre_hook(note):
        _, upload = one_upload(experiment, client)
    expected = list[int]()
    for step in range(upload.metrics.steps):
        turn, rest = divmod(step, every)
        expected += [own] if rest else [own, weaker[turn % len(weaker)]]
    assert ran == expected
    assert set(weaker) < set(ran)


def test_every_step_descends_cross_entropy_and_the_length_of_representations(tiny_settings: SettingsFactory) -> None:
    """Eq. 5 in plain torch, on the slim model that was sent."""
    gamma = 2.0
    experiment = build_experiment(tiny_settings(*SLIM, params(gamma=gamma, distillation=0.0)))
    client, problem = client_of_level(experiment, 3), experiment.method.problem
    _, upload = one_upload(experiment, client)
    model = slim_model(problem.backbone, problem.layout, upload.plan)
    optimizer = sgd(model, problem.training)
    for number in (1, 2):
        batches = experiment.clients[client].batches(1, number)
        descend(model, optimizer, batches, lambda z: gamma * z.square().mean(dim=1).mean())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(upload.weights[name], parameter.detach(), atol=1e-6, rtol=1e-5)


def test_what_is_fused_is_the_slim_model_that_was_sent(tiny_settings: SettingsFactory) -> None:
    """With alpha = 1 and one epoch a client sends back what it got (Eq. 1)."""
    experiment = build_experiment(tiny_settings(*SLIM, "epochs=1", params(fusion=True, alpha_0=1.0, alpha_min=1.0)))
    server, upload = one_upload(experiment, client_of_level(experiment, 4))
    sent = server.downlink(upload.client_id).weights
    assert all(torch.equal(tensor, sent[name]) for name, tensor in upload.weights.items())
