from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import ClientSide, Experiment, Server, build_experiment, read_ledger, simulate

platform = pytest.importorskip("fedml_dapper.platform", reason="fedml is not installed")

from fedml.core.dp.fedml_differential_privacy import FedMLDifferentialPrivacy  # noqa: E402

SettingsFactory = Callable[..., Settings]


class RecordingTrainer(platform.DapperClientTrainer):  # type: ignore[misc, name-defined]
    def __init__(self, model: Any, args: Any) -> None:
        super().__init__(model, args)
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        hooks = ("set_id", "update_dataset", "set_model_params", "on_before_local_training", "train",
                 "on_after_local_training", "get_model_params")  # fmt: skip
        if name in hooks:
            self.calls.append(name)
        return super().__getattribute__(name)


def prepared(tiny_settings: SettingsFactory, tmp_path: Path, *overrides: str) -> tuple[Any, Experiment]:
    settings = tiny_settings("comm_round=1", "epochs=1", *overrides)
    file = tmp_path / "settings.yaml"
    file.write_text(settings.as_yaml())
    args = platform.init(file)
    return args, platform.experiment_of(args)


@pytest.fixture(autouse=True)
def _private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["program"])


@pytest.mark.long
def test_every_client_hook_is_called_in_fedmls_order(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    args, experiment = prepared(tiny_settings, tmp_path, "workers=auto")  # which is one, as the trainer remembers
    dataset, model = platform.load(args)
    trainer, aggregator = RecordingTrainer(model, args), platform.DapperServerAggregator(model, args)
    runner = platform.InProcessRunner(args, experiment.device, dataset, model, trainer, aggregator)
    runner.run()
    expected = ["set_id", "update_dataset", "set_model_params", "on_before_local_training", "train",
                "on_after_local_training", "get_model_params"]  # fmt: skip
    assert trainer.calls == expected * 10
    assert runner.run_dir is not None
    record, rounds = read_ledger(runner.run_dir / "ledger.jsonl")
    assert (record.workers, len(rounds)) == (1, 1)
    assert set(aggregator.test(None, None, args)) == {"global", "scans", "blended", "fonts", "segments"}


@pytest.mark.nightly
def test_workers_under_fedmls_runner_train_the_same_model(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    few = ("method=ditto", "client_num_in_total=4", "client_num_per_round=4", "image_size=16", "threads=1")
    args, experiment = prepared(tiny_settings, tmp_path, *few, "workers=2")
    dataset, model = platform.load(args)
    trainer, aggregator = platform.DapperClientTrainer(model, args), platform.DapperServerAggregator(model, args)
    runner = platform.InProcessRunner(args, experiment.device, dataset, model, trainer, aggregator)
    runner.run()
    expected, _ = simulate(build_experiment(tiny_settings("comm_round=1", "epochs=1", *few)))
    assert runner.experiment.workers.count == 2
    assert all(tensor.equal(aggregator.server.state.weights[name]) for name, tensor in expected.state.weights.items())
    assert list(aggregator.server.memories) == list(expected.memories) == [0, 1, 2, 3]


@pytest.mark.long
def test_aggregator_by_fedmls_list_equals_the_server(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    args, experiment = prepared(tiny_settings, tmp_path)
    dataset, model = platform.load(args)
    trainer, aggregator = platform.DapperClientTrainer(model, args), platform.DapperServerAggregator(model, args)
    server = Server(experiment)
    server.round_clients()
    uploads = []
    for client_id, downlink in aggregator.get_model_params().items():
        trainer.set_model_params(downlink)
        trainer.train(dataset[5][client_id], experiment.device, args)
        uploads.append((dataset[4][client_id], trainer.get_model_params()))
        server.receive(trainer.get_model_params())
    server.close_round()
    following = aggregator.aggregate(list(reversed(uploads)))
    assert {downlink.round for downlink in following.values()} == {2}
    weights = aggregator.server.state.weights
    assert all(tensor.equal(weights[name]) for name, tensor in server.state.weights.items())
    assert set(aggregator.test(None, None, args)) == {"global", "scans", "blended", "fonts", "segments"}


def test_dataset_has_fedmls_eight_parts(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    args, experiment = prepared(tiny_settings, tmp_path)
    (num_train, num_test, train, test, num_local, train_local, test_local, classes), _ = platform.load(args)
    assert num_train == sum(num_local.values()) == sum(len(labels) for data in train for _, labels in data)
    assert num_test == sum(len(labels) for data in test for _, labels in data)
    assert set(train_local) == set(test_local) == set(range(10))
    assert classes == 10
    assert all(test_local[p.client_id].domain == p.domain for p in experiment.profiles)


def test_calls_in_the_wrong_order_say_so(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    args, experiment = prepared(tiny_settings, tmp_path)
    trainer = platform.DapperClientTrainer(experiment.method.problem.backbone, args)
    with pytest.raises(ProtocolError, match="before set_model_params"):
        trainer.train(experiment.clients[0], experiment.device, args)
    with pytest.raises(ProtocolError, match="before train"):
        trainer.get_model_params()


def test_start_without_a_file_says_what_to_pass() -> None:
    with pytest.raises(ConfigError, match="--cf FILE"):
        platform.init()


def test_settings_survive_the_round_trip_through_args(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    args, experiment = prepared(tiny_settings, tmp_path, "learning_rate=1e-3")
    assert args.learning_rate == 0.001
    assert experiment.record() == build_experiment(experiment.settings).record()
    assert experiment.settings == tiny_settings("comm_round=1", "epochs=1", "learning_rate=1e-3")


def test_fedmls_privacy_hooks_do_not_fit_slim_uploads_and_are_refused(
    tiny_settings: SettingsFactory, tmp_path: Path
) -> None:
    args, experiment = prepared(tiny_settings, tmp_path)
    clients = ClientSide(experiment)
    upload = clients.update(Server(experiment).downlink(0), experiment.clients[0])
    args.enable_dp, args.dp_solution_type, args.mechanism_type = True, "ldp", "gaussian"
    args.epsilon, args.delta, args.sensitivity = 0.5, 0.1, 1.0
    privacy = FedMLDifferentialPrivacy()
    privacy.init(args)
    with pytest.raises(AttributeError, match="keys"):  # what FedML's trainer would do after training
        privacy.add_local_noise(upload)
    noisy = privacy.add_local_noise(dict(upload.weights))
    variances = [name for name in noisy if name.endswith("running_var")]
    assert any(bool((noisy[name] < 0).any()) for name in variances)  # not a model any more
    assert not any(noisy[name].dtype == torch.int64 for name in noisy)
    with pytest.raises(ConfigError, match="leave `enable_dp` out"):
        platform.DapperClientTrainer(experiment.method.problem.backbone, args)
