"""Uploads that no honest client of the experiment sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import ClientSide, Experiment, Server, UploadCheck, build_experiment
from fedml_dapper.federation.round.update_norm import UpdateNorms
from fedml_dapper.methods import Upload
from fedml_dapper.pruning import DENSE, PruningPlan, slim_tensors

from ..grids import ON_ANY_NETWORK, sampled

SettingsFactory = Callable[..., Settings]
FEW = ("client_num_in_total=5", "client_num_per_round=5", "epochs=2")
DIGITS = Path(__file__).parents[2] / "config" / "digits_offline.yaml"


def first_round(experiment: Experiment) -> tuple[Server, list[Upload]]:
    server, clients = Server(experiment), ClientSide(experiment)
    server.round_clients()
    return server, [clients.update(server.downlink(data.client_id), data) for data in experiment.clients]


@pytest.fixture(scope="module")
def slim() -> tuple[Experiment, Server, Upload]:
    """DapperFL, and the upload of the slimmest client; nothing in them may change."""
    experiment = build_experiment(load_settings([DIGITS], ["width=8", "client_share=0.08", "batch_size=16", *FEW]))
    server, uploads = first_round(experiment)
    return experiment, server, max(uploads, key=lambda upload: server.state.profiles[upload.client_id].level)


def with_tensor(upload: Upload, name: str, tensor: torch.Tensor) -> Upload:
    return replace(upload, weights={**upload.weights, name: tensor})


def recut(upload: Upload, experiment: Experiment, plan: PruningPlan) -> Upload:
    """A made-up upload of ``plan``, in form but for whose it claims to be."""
    layout, weights = experiment.method.problem.layout, experiment.method.problem.backbone.state_dict()
    return replace(upload, plan=plan, weights=slim_tensors(weights, layout, plan, upload.unsliced))


def leading(widths: Mapping[str, int]) -> PruningPlan:
    return PruningPlan({group: torch.arange(width) for group, width in widths.items()})


Change = Callable[[Upload, Experiment], Upload]
BAD: dict[str, tuple[Change, str]] = {
    "a stronger level's widths": (
        lambda upload, e: recut(upload, e, leading(e.method.problem.widths(0.2))),
        "not those of its client's capability level",
    ),
    "the whole model": (lambda upload, e: recut(upload, e, DENSE), "not those of its client's capability level"),
    "an accuracy beyond 100 %": (
        lambda upload, e: replace(upload, metrics=replace(upload.metrics, accuracy_after=100.5)),
        r"Top-1 accuracy \(%\) is outside 0..100",
    ),
    "an accuracy that is no number": (
        lambda upload, e: replace(upload, metrics=replace(upload.metrics, accuracy_before=nan)),
        r"Top-1 accuracy \(%\) is outside 0..100",
    ),
    "a tensor left out": (
        lambda upload, e: replace(upload, plan=PruningPlan(upload.plan.kept, frozenset({"predictor.bias"}))),
        "not those of its client's capability level",
    ),
    "statistics cut": (lambda upload, e: replace(upload, unsliced=frozenset()), "sent whole"),
    "a weight sent whole": (
        lambda upload, e: replace(upload, unsliced=upload.unsliced | {"predictor.weight"}),
        "sent whole",
    ),
    "a name missing": (
        lambda upload, e: replace(upload, weights={n: t for n, t in upload.weights.items() if n != "predictor.bias"}),
        "differ in 1 tensors, first `predictor.bias`",
    ),
    "a name too many": (lambda upload, e: with_tensor(upload, "extra", torch.zeros(1)), "differ in 1 tensors"),
    "another shape": (lambda upload, e: with_tensor(upload, "predictor.bias", torch.zeros(9)), "has shape"),
    "another dtype": (
        lambda upload, e: with_tensor(upload, "predictor.bias", torch.zeros(10, dtype=torch.float64)),
        r"is torch\.float64",
    ),
    "extras": (lambda upload, e: replace(upload, extras={"x": torch.zeros(1)}), "knows nothing of"),
    "more samples": (lambda upload, e: replace(upload, num_samples=upload.num_samples + 1), "its client trains on"),
    "a counter too high": (
        lambda upload, e: with_tensor(upload, counter(upload), torch.tensor(2**40 - 1)), r"counts outside 0\.\."
    ),
    "a counter below 0": (lambda upload, e: with_tensor(upload, counter(upload), torch.tensor(-1)), "counts outside"),
    "more steps than batches": (
        lambda upload, e: replace(upload, metrics=replace(upload.metrics, steps=10**6)), "1000000 steps"
    ),
    "a negative variance": (
        lambda upload, e: with_tensor(upload, variance(upload), -upload.weights[variance(upload)]),
        "negative variances",
    ),
}  # fmt: skip


def counter(upload: Upload) -> str:
    return next(name for name in upload.weights if name.endswith("num_batches_tracked"))


def variance(upload: Upload) -> str:
    return next(name for name in upload.weights if name.endswith("running_var"))


@pytest.mark.parametrize("what", BAD)
def test_what_does_not_fit_is_refused_and_changes_nothing(slim: tuple[Experiment, Server, Upload], what: str) -> None:
    experiment, server, upload = slim
    change, reason = BAD[what]
    answered = server.answered()
    with pytest.raises(ProtocolError, match=reason):
        server.receive(change(upload, experiment))
    assert server.answered() == answered


def test_an_honest_upload_of_each_level_passes(slim: tuple[Experiment, Server, Upload]) -> None:
    experiment, *_ = slim
    server, uploads = first_round(experiment)
    check = UploadCheck(experiment)
    for upload in uploads:
        check.check_form(server.state, upload)


@pytest.mark.parametrize("name", ["feddrop", "fedmp", "heterofl", "fedrolex", "fjord", "fedecover", "fiarse"])
def test_channels_that_the_server_chose_are_the_only_ones(tiny_settings: SettingsFactory, name: str) -> None:
    experiment = build_experiment(tiny_settings(f"method={name}", *FEW, "epochs=1"))
    server, uploads = first_round(experiment)
    upload = next(upload for upload in uploads if upload.plan.kept)
    group, kept = next(
        (g, k) for g, k in upload.plan.kept.items() if len(k) < experiment.method.problem.layout.groups[g].channels
    )
    channels = experiment.method.problem.layout.groups[group].channels
    others = torch.tensor([c for c in range(channels) if c not in kept.tolist()][:1] + kept.tolist()[1:]).sort().values
    with pytest.raises(ProtocolError, match="not the one that its client was sent"):
        server.receive(replace(upload, plan=PruningPlan({**upload.plan.kept, group: others})))
    server.receive(upload)


@pytest.mark.parametrize("name", sampled(sorted(ON_ANY_NETWORK)))
def test_no_method_takes_extras_that_it_does_not_know(tiny_settings: SettingsFactory, name: str) -> None:
    model = ("model=lenet5", "width=6") if name in ("fedcmd", "fedap") else ()
    experiment = build_experiment(tiny_settings(f"method={name}", *FEW, "epochs=1", *model))
    server, clients = Server(experiment), ClientSide(experiment)
    first = server.round_clients()[0]
    upload = clients.update(server.downlink(first), experiment.clients[first])
    with pytest.raises(ProtocolError):
        server.receive(replace(upload, extras={**upload.extras, "stowaway": torch.zeros(1)}))
    server.receive(upload)


@pytest.mark.long
def test_counters_as_high_as_they_may_be_leave_honest_uploads_in_bounds(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings(*FEW, "method=fedavg", "comm_round=3"))
    server, clients = Server(experiment), ClientSide(experiment)
    name = "stem.1.num_batches_tracked"
    for _ in range(3):
        for client_id in server.round_clients():
            upload = clients.update(server.downlink(client_id), experiment.clients[client_id])
            if client_id == 2:
                with pytest.raises(ProtocolError, match=r"counts outside 0\.\.(\d+)") as caught:
                    server.receive(with_tensor(upload, name, torch.tensor(2**40 - 1)))
                most = int(str(caught.value).rpartition("..")[2])
                upload = with_tensor(upload, name, torch.tensor(most))
            server.receive(upload)
        server.close_round()
    assert server.state.weights[name] == most  # of counters the highest counts


@pytest.mark.nightly
def test_batches_may_be_as_small_as_their_owner_likes(tiny_settings: SettingsFactory) -> None:
    """Of two samples each, as from a loader of the user's own, where the experiment's own would be of 1024."""
    _, uploads = first_round(
        build_experiment(tiny_settings(*FEW, "client_share=0.08", "method=fedavg", "batch_size=2"))
    )
    assert max(upload.metrics.steps for upload in uploads) > 16 * 2  # epochs of one batch each
    server = Server(build_experiment(tiny_settings(*FEW, "client_share=0.08", "method=fedavg", "batch_size=1024")))
    server.round_clients()
    for upload in uploads:
        server.receive(upload)


def test_whole_numbers_of_a_network_s_own_are_no_counters(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings(*FEW, "method=fedavg"))
    experiment.method.problem.backbone.get_submodule("stem.1").get_buffer("num_batches_tracked").fill_(-7)
    server, (upload, *_) = first_round(experiment)
    assert UploadCheck(experiment).check_form(server.state, upload) is None
    with pytest.raises(ProtocolError, match=r"counts outside -7\.\."):
        server.receive(with_tensor(upload, counter(upload), torch.tensor(-8)))


def test_change_is_measured_from_what_the_client_was_sent(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings(*FEW, "dapper_args.defence.max_change=2.0"))
    server, uploads = first_round(experiment)
    check = UploadCheck(experiment)
    for upload in uploads:
        check.check_change(server.state, upload, UpdateNorms())
        for factor, passes in ((2.9, True), (3.1, False)):  # 3 W is W moved by twice its length
            layout, weights = experiment.method.problem.layout, server.state.weights
            cut = slim_tensors(weights, layout, upload.plan, upload.unsliced)
            far = replace(upload, weights={n: (t * factor).to(t.dtype) for n, t in cut.items()})
            if passes:
                check.check_change(server.state, far, UpdateNorms())
            else:
                with pytest.raises(ProtocolError, match=r"2\.1 of its norm.*max_change allows 2"):
                    check.check_change(server.state, far, UpdateNorms())
        broken: dict[str, Any] = {"predictor.bias": torch.full((10,), float("nan"))}
        with pytest.raises(ProtocolError, match="nan of its norm"):
            check.check_change(server.state, replace(upload, weights={**upload.weights, **broken}), UpdateNorms())
