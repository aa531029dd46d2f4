"""What becomes of a round, and of a client, whose uploads are bad."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedml_dapper.config import DefenceArgs, Settings
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import ClientSide, Experiment, RoundRecord, Server, SharedSettings, build_experiment
from fedml_dapper.federation.round.quarantine import Quarantine
from fedml_dapper.federation.run_folder.checkpoint import load_checkpoint, save_checkpoint
from fedml_dapper.methods import Aggregation, Downlink, FedAvg, RecoverAndAverage, ServerState, Upload
from fedml_dapper.pruning import Tensors, relative_change, slim_tensors

from ..across_silos import across_silos
from ..grids import ON_ANY_NETWORK, sampled

SettingsFactory = Callable[..., Settings]
FEW = ("client_num_in_total=5", "client_num_per_round=5", "epochs=1", "frequency_of_the_test=9", "comm_round=6")
SANE = "dapper_args.defence.max_change=5"


def garbage(upload: Upload) -> Upload:
    """Finite, in form, and huge."""
    generator = torch.Generator().manual_seed(upload.round)

    def made_up(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        return 1e6 * torch.randn(tensor.shape, generator=generator).abs()

    return replace(upload, weights={name: made_up(tensor) for name, tensor in upload.weights.items()})


class Federation:
    """A server and clients in one process, some of which do as they like."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.server = Server(experiment)
        self.clients = ClientSide(experiment, self.server.memories)

    def update(self, downlink: Downlink) -> Upload:
        return self.clients.update(downlink, self.experiment.clients[downlink.client_id])

    def round(self, bad: int | None = None, silent: int | None = None) -> RoundRecord:
        for client_id in self.server.round_clients():
            if client_id != silent:
                upload = self.update(self.server.downlink(client_id))
                self.server.receive(garbage(upload) if client_id == bad else upload)
        return self.server.close_round()

    def close_with(self, uploads: Collection[Upload]) -> RoundRecord:
        """A round of these and no others."""
        for client_id in self.server.round_clients():
            self.server.downlink(client_id)
        for upload in uploads:
            self.server.receive(upload)
        return self.server.close_round()

    def opposite(self, upload: Upload) -> Upload:
        """Of what is learnt, the opposite of the change; what is measured as it is."""
        layout = self.experiment.method.problem.layout
        before = slim_tensors({name: self.weights[name] for name in layout.trainable}, layout, upload.plan)
        moved = {name: 2 * tensor - upload.weights[name] for name, tensor in before.items()}
        return replace(upload, weights={**upload.weights, **moved})

    @property
    def weights(self) -> Tensors:
        return self.server.state.weights


@pytest.fixture
def federation(tiny_settings: SettingsFactory) -> Callable[..., Federation]:
    return lambda *overrides: Federation(build_experiment(tiny_settings(*FEW, *overrides)))


@pytest.fixture
def silos(tiny_settings: SettingsFactory, tmp_path: Path) -> Callable[..., Federation]:
    """A federation whose clients are other people's."""
    across = across_silos(tmp_path)
    return lambda *overrides: Federation(build_experiment(tiny_settings(*FEW, *across, *overrides)))


def test_an_implausible_upload_costs_its_client_the_round_and_nothing_else(
    federation: Callable[..., Federation], caplog: pytest.LogCaptureFixture
) -> None:
    attacked, without = federation(SANE), federation(SANE)
    with caplog.at_level(logging.WARNING):
        record = attacked.round(bad=2)
    assert record.absent == (2,)
    assert "of its norm" in record.refused[2]
    assert "round 1: upload of client 2 refused: upload differs from what was sent by" in caplog.text
    assert without.round(silent=2).refused == {}
    assert all(torch.equal(tensor, without.weights[name]) for name, tensor in attacked.weights.items())
    record = attacked.round()
    assert (record.absent, record.refused) == ((), {})
    assert RoundRecord.model_validate_json(record.model_dump_json()) == record


def test_in_simulation_what_does_not_fit_is_a_bug_and_raises(federation: Callable[..., Federation]) -> None:
    own = federation()
    own.server.round_clients()
    upload = own.update(own.server.downlink(0))
    with pytest.raises(ProtocolError, match="its client trains on"):
        own.server.receive(replace(upload, num_samples=10**6))
    assert own.server.refused == {}


def test_a_refusal_counts_only_for_those_who_still_owe_an_upload(silos: Callable[..., Federation]) -> None:
    others = silos("method=fedavg")
    server = others.server
    server.round_clients()
    uploads = [others.update(server.downlink(client_id)) for client_id in range(5)]
    server.receive(uploads[3])  # waits for its turn
    server.receive(uploads[0])  # folded
    for client_id in (0, 3, 77):
        server.refuse(client_id, ProtocolError("a second message, or nobody's"))
    assert server.refused == {}
    server.refuse(1, ProtocolError("garbage"))
    with pytest.raises(ProtocolError, match="is not awaited"):
        server.receive(uploads[1])  # one try a round
    server.receive(uploads[2])
    assert server.answered() == {0, 2, 3}
    record = server.close_round()
    assert [client.client for client in record.clients] == [0, 2, 3]
    assert (record.absent, record.refused) == ((1, 4), {1: "garbage"})


def test_reasons_are_short_and_cannot_forge_lines(silos: Callable[..., Federation]) -> None:
    server = silos().server
    server.round_clients()
    server.refuse(0, ProtocolError("unknown group `a\nround 9 closed\x1b[2J" + "x" * 10**6))
    assert server.refused[0].startswith("unknown group `a?round 9 closed?[2Jxxx")
    assert len(server.refused[0]) < 210


class _Picky(FedAvg):
    """Finds out only while it aggregates that it does not like client 3."""

    def __init__(self, inner: FedAvg) -> None:
        self.params, self.problem = inner.params, inner.problem

    def aggregation(self, server: ServerState) -> Aggregation:
        class Picking(RecoverAndAverage):
            def add(self, upload: Upload) -> None:
                if upload.client_id == 3:
                    raise ProtocolError("not this one")
                super().add(upload)

        return Picking(server, self.problem)


def test_who_is_refused_in_aggregation_is_refused_in_person(silos: Callable[..., Federation]) -> None:
    others = silos("method=fedavg")
    others = Federation(replace(others.experiment, method=_Picky(others.experiment.method)))
    server = others.server
    server.round_clients()
    for client_id in (3, 4, 0, 1, 2):  # client 3 waits, and its turn comes within client 2's
        server.receive(others.update(server.downlink(client_id)))
    assert server.refused == {3: "not this one"}
    record = server.close_round()
    assert [client.client for client in record.clients] == [0, 1, 2, 4]
    assert record.absent == (3,)


# Strikes and quarantine


def test_strikes_and_quarantine_by_hand() -> None:
    quarantine = Quarantine(DefenceArgs(strikes=2, quarantine_rounds=3))
    assert not quarantine.strike(7, round_=1)
    assert not quarantine.strike(8, round_=2)
    assert quarantine.strike(7, round_=4)
    assert [quarantine.holds(7, round_) for round_ in range(4, 10)] == [True, True, True, True, False, False]
    assert not quarantine.holds(8, 5)
    assert not quarantine.strike(7, round_=8)  # a clean slate
    for round_ in range(1, 50):
        assert not Quarantine(DefenceArgs()).strike(7, round_)


def test_who_was_evicted_stays_so_whatever_is_refused_later() -> None:
    quarantine = Quarantine(DefenceArgs(strikes=1, quarantine_rounds=2))
    quarantine.evict(7)
    assert not quarantine.strike(7, round_=1)
    assert quarantine.is_evicted(7)
    assert quarantine.holds(7, 99)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "feddyn"])
def test_a_round_of_which_nothing_counts_leaves_the_model_as_it_was(
    federation: Callable[..., Federation], method: str
) -> None:
    own = federation(f"method={method}", SANE)
    own.round()
    before = dict(own.weights)
    for client_id in own.server.round_clients():
        own.server.receive(garbage(own.update(own.server.downlink(client_id))))
    record = own.server.close_round()
    assert (len(record.refused), record.rolled_back) == (5, "no client's upload counts")
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.weights.items())
    assert own.round().rolled_back is None


def test_momentum_moves_no_model_by_a_round_that_was_screened_out(federation: Callable[..., Federation]) -> None:
    own = federation("method=fedavgm", "norm=standardised", "dapper_args.defence.aggregation=screened_mean")
    own.round()
    before = dict(own.weights)
    for client_id in own.server.round_clients():
        upload = own.update(own.server.downlink(client_id))
        own.server.receive(
            replace(upload, weights={name: tensor * torch.nan for name, tensor in upload.weights.items()})
        )
    record = own.server.close_round()
    assert len(record.left_out) == 5
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.weights.items())


QUARANTINE = (SANE, "dapper_args.defence.strikes=2", "dapper_args.defence.quarantine_rounds=2")


@pytest.mark.long
def test_quarantined_clients_are_left_out_and_come_back(federation: Callable[..., Federation], tmp_path: Path) -> None:
    straight = federation(*QUARANTINE)
    records = [straight.round(bad=2) for _ in range(6)]
    assert [record.quarantined for record in records] == [(), (), (2,), (2,), (), ()]
    assert [sorted(record.refused) for record in records] == [[2], [2], [], [], [2], [2]]
    assert [record.absent for record in records] == [(2,), (2,), (), (), (2,), (2,)]
    # a run that goes on from a checkpoint within the quarantine is the same run
    interrupted, settings = federation(*QUARANTINE), SharedSettings.of_experiment(straight.experiment)
    for _ in range(3):
        interrupted.round(bad=2)
    save_checkpoint(interrupted.server.checkpoint(), settings, tmp_path / "three.safetensors")
    resumed = federation(*QUARANTINE)
    resumed.server.restore(load_checkpoint(tmp_path / "three.safetensors", settings, resumed.experiment.device))
    assert [resumed.round(bad=2).quarantined for _ in range(3)] == [(2,), (), ()]
    assert all(torch.equal(tensor, resumed.weights[name]) for name, tensor in straight.weights.items())


# Robust aggregation


@pytest.mark.long
@pytest.mark.parametrize("level", [5, pytest.param(1, marks=pytest.mark.nightly)])  # the slimmest, and the whole model
def test_garbage_ruins_the_mean_and_not_what_is_robust(federation: Callable[..., Federation], level: int) -> None:
    wide = ("client_num_in_total=10", "client_num_per_round=10")
    honest = federation(*wide)
    bad = next(p.client_id for p in honest.experiment.profiles if p.level == level)
    honest.round()
    distances = {}
    for aggregation in ("mean", "median", "trimmed_mean", "norm_clipping", "screened_mean"):
        attacked = federation(*wide, f"dapper_args.defence.aggregation={aggregation}")
        attacked.round(bad=bad)
        distances[aggregation] = relative_change(attacked.weights, honest.weights)
    assert distances["mean"] > 1000
    assert distances["median"] < 0.1
    assert distances["trimmed_mean"] < 0.1
    assert distances["norm_clipping"] < 0.6  # shortened to 1, not thrown out, and one of ten
    assert distances["screened_mean"] < 0.3  # left out, or shortened to three times what is usual


AS_IN_THE_QUICKSTART = ("method=dapperfl_slim", "norm=standardised", "learning_rate=0.05", "max_grad_norm=2")


@pytest.mark.long
@pytest.mark.parametrize(
    "method",
    [("method=dapperfl",), pytest.param(AS_IN_THE_QUICKSTART, marks=pytest.mark.nightly)],
    ids=["dapperfl", "quickstart"],
)
def test_who_sends_the_opposite_is_left_out_as_if_it_had_not_come(
    federation: Callable[..., Federation], caplog: pytest.LogCaptureFixture, method: tuple[str, ...]
) -> None:
    """Wherever it sits, and with all that only clients of its level hold; where nobody does, nothing is different."""
    chosen = (*method, "client_num_in_total=10", "client_num_per_round=10", "client_share=0.2", "epochs=2")
    screening = (*chosen, "dapper_args.defence.aggregation=screened_mean")
    honest = federation(*screening)
    uploads = [honest.update(honest.server.downlink(client_id)) for client_id in honest.server.round_clients()]
    unharmed, plain = federation(*screening), federation(*chosen)
    record = unharmed.close_with(uploads)
    assert [client.counted for client in record.clients] == [1] * 10
    assert {client.counted for client in plain.close_with(uploads).clients} == {None}
    assert all(torch.equal(tensor, plain.weights[name]) for name, tensor in unharmed.weights.items())
    for level in (1, 3, 5):
        bad = [profile.client_id for profile in honest.experiment.profiles if profile.level == level]
        hostile = [honest.opposite(one) if one.client_id in bad else one for one in uploads]
        attacked, exposed, without = federation(*screening), federation(*chosen), federation(*chosen)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            record = attacked.close_with(hostile)
        assert record.left_out == tuple(bad)
        assert f"round 1: upload of client {bad[0]} left out: it agrees by -" in caplog.text
        without.close_with([one for one in uploads if one.client_id not in bad])
        assert all(torch.equal(tensor, without.weights[name]) for name, tensor in attacked.weights.items())
        exposed.close_with(hostile)
        assert relative_change(exposed.weights, without.weights) > 1e-3
        assert RoundRecord.model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize("name", sampled(sorted(ON_ANY_NETWORK)))
def test_robust_aggregation_is_for_methods_that_recover_and_average(tiny_settings: SettingsFactory, name: str) -> None:
    """Those that take it are as good as their word in every round; the others say so before anything starts."""
    model = ("model=lenet5", "width=6") if name in ("fedcmd", "fedap") else ()
    settings = tiny_settings(f"method={name}", *FEW, *model)
    method = build_experiment(settings).method
    robust = (f"method={name}", *FEW, *model, "dapper_args.defence.aggregation=median")
    if not method.takes_robust_means:
        with pytest.raises(
            ConfigError, match=rf"dapper_args.defence.aggregation other than mean \(median\) needs .*`{name}`"
        ):
            build_experiment(tiny_settings(*robust))
        return
    federation = Federation(build_experiment(tiny_settings(*robust)))
    for _ in range(2):
        aggregation = federation.experiment.method.aggregation(federation.server.state)
        assert type(aggregation) is RecoverAndAverage
        federation.round()


def test_settings_that_could_not_work_are_refused(tiny_settings: SettingsFactory) -> None:
    with pytest.raises(
        ConfigError, match=r"min_holders .* \(3\) needs train_args.client_num_per_round of as many or more \(it is 2\)"
    ):
        tiny_settings("client_num_per_round=2", "dapper_args.defence.aggregation=median")
    with pytest.raises(ConfigError, match="trimmed_share"):
        tiny_settings("dapper_args.defence.trimmed_share=0.5")
