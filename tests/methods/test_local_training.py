"""The local epochs that all methods share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from weakref import WeakSet

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from fedml_dapper.config import Settings
from fedml_dapper.datasets import Batch
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import Experiment, build_experiment, simulate
from fedml_dapper.methods import ClientContext, LocalTraining
from fedml_dapper.models import Backbone

SettingsFactory = Callable[..., Settings]
FEW = ("method=fedavg", "client_num_in_total=4", "client_num_per_round=4", "client_share=0.05")


def prepared(settings: Settings, round_: int = 1) -> tuple[Experiment, Backbone, LocalTraining]:
    experiment = build_experiment(settings)
    client = ClientContext(experiment.profiles[0], experiment.clients[0])
    return experiment, experiment.method.problem.backbone, LocalTraining(client, round_, settings.train_args)


def test_learning_rate_decays_from_round_to_round(tiny_settings: SettingsFactory) -> None:
    settings = tiny_settings(*FEW, "learning_rate=0.1", "learning_rate_decay=0.5")
    for round_, expected in ((1, 0.1), (2, 0.05), (4, 0.0125)):
        _, model, training = prepared(settings, round_)
        assert training.optimizer(model).param_groups[0]["lr"] == pytest.approx(expected)


def test_only_the_chosen_parameters_are_stepped_and_momentum_may_differ(tiny_settings: SettingsFactory) -> None:
    experiment, model, training = prepared(tiny_settings(*FEW))
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    optimizer = training.optimizer(model, momentum=0.0, parameters=model.predictor.parameters())
    assert optimizer.param_groups[0]["momentum"] == 0.0
    training.epoch(model, optimizer, experiment.method.problem.task_loss)
    moved = {name for name, tensor in model.named_parameters() if not tensor.equal(before[name])}
    assert moved == {"predictor.weight", "predictor.bias"}


def test_gradients_may_be_changed_and_are_clipped_after_that(tiny_settings: SettingsFactory) -> None:
    experiment, model, training = prepared(
        tiny_settings(*FEW, "max_grad_norm=0.5", "weight_decay=0", "learning_rate=1.0")
    )
    norms: list[float] = []

    def enlarge() -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(1000)

    def note() -> None:
        norms.append(float(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()))

    training.epoch(model, training.optimizer(model), experiment.method.problem.task_loss, note, before_step=enlarge)
    assert norms == pytest.approx([0.5] * len(norms), rel=1e-4)


def test_each_filter_s_gradient_is_clipped_to_a_share_of_the_filter(tiny_settings: SettingsFactory) -> None:
    experiment, model, training = prepared(tiny_settings(*FEW, "adaptive_clipping=0.02", "weight_decay=0"))
    seen: list[float] = []

    def enlarge() -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(1000)
        before.append(model.predictor.weight.grad.clone())  # type: ignore[union-attr]

    def check() -> None:
        for parameter in model.stem[0].weight, model.stages[3][0].conv2.weight:  # type: ignore[index,union-attr]
            for filter_, gradient in zip(parameter, parameter.grad, strict=True):
                seen.append(float(gradient.norm() / filter_.norm()))
        assert torch.equal(model.predictor.weight.grad, before[-1])  # type: ignore[arg-type]

    before: list[torch.Tensor] = []
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    training.epoch(model, optimizer, experiment.method.problem.task_loss, check, before_step=enlarge)
    assert seen == pytest.approx([0.02] * len(seen), rel=1e-3)


def test_mode_decides_which_layers_train(tiny_settings: SettingsFactory) -> None:
    experiment, model, training = prepared(tiny_settings(*FEW))
    norm = next(layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d))
    assert norm.running_mean is not None
    before = norm.running_mean.clone()
    training.epoch(model, training.optimizer(model), experiment.method.problem.task_loss, mode=nn.Module.eval)
    assert norm.running_mean.equal(before)
    training.epoch(model, training.optimizer(model), experiment.method.problem.task_loss)
    assert not norm.running_mean.equal(before)


def test_epochs_in_one_call_are_epochs_one_by_one(tiny_settings: SettingsFactory) -> None:
    found = []
    for in_one_call in (False, True):
        experiment, model, training = prepared(tiny_settings(*FEW))
        optimizer = training.optimizer(model)
        if in_one_call:
            training.epoch(model, optimizer, experiment.method.problem.task_loss, times=3)
        else:
            for _ in range(3):
                training.epoch(model, optimizer, experiment.method.problem.task_loss)
        training.epoch(model, optimizer, experiment.method.problem.task_loss, times=0)
        found.append((model.state_dict(), training.metrics()))
    (one, by_one), (other, together) = found
    assert all(tensor.equal(other[name]) for name, tensor in one.items())
    assert (by_one.steps, by_one.loss) == (together.steps, together.loss)


def test_a_batch_in_pieces_gives_the_same_gradients(tiny_settings: SettingsFactory) -> None:
    found = []
    for pieces in ("null", "5"):  # of batches of 16, so that the last piece of each is shorter
        settings = tiny_settings(*FEW, "norm=standardised", "max_grad_norm=2", f"micro_batch_size={pieces}")
        experiment, model, training = prepared(settings)
        training.epoch(model, training.optimizer(model), experiment.method.problem.task_loss)
        found.append((model.state_dict(), training.metrics()))
    (whole, one), (in_pieces, other) = found
    assert (one.steps, one.loss) == (other.steps, pytest.approx(other.loss, rel=1e-5))
    for name, tensor in whole.items():
        torch.testing.assert_close(in_pieces[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "asked",
    [
        ("method=fjord",),
        ("method=fjord", "dapper_args.params.fjord.distillation=true"),
        ("method=dapperfl_slim",),
        ("method=dapperfl_slim", "dapper_args.params.dapperfl_slim.teach_every=2"),
        ("method=partialfed", "dapper_args.params.partialfed.strategy=adaptive", "comm_round=2"),
    ],
    ids=" ".join,
)
def test_pieces_of_a_batch_share_what_its_step_draws(tiny_settings: SettingsFactory, asked: tuple[str, ...]) -> None:
    found = []
    for pieces in ("null", "5"):
        settings = tiny_settings("comm_round=1", "norm=standardised", *FEW, *asked, f"micro_batch_size={pieces}")
        found.append(simulate(build_experiment(settings))[0].state.weights)
    whole, in_pieces = found
    for name, tensor in whole.items():
        torch.testing.assert_close(in_pieces[name], tensor, rtol=1e-3, atol=1e-4)  # draws not shared give 1e-2 and more


def test_no_more_of_a_batch_than_a_piece_is_in_the_network_at_a_time(tiny_settings: SettingsFactory) -> None:
    experiment, model, training = prepared(tiny_settings(*FEW, "norm=standardised", "micro_batch_size=5"))
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _model, inputs: sizes.append(len(inputs[0])))
    training.epoch(model, training.optimizer(model), experiment.method.problem.task_loss)
    assert sizes == [5, 5, 5, 1] * experiment.clients[0].steps_per_epoch


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("micro_batch_size=4",), "BatchNorm .ResNet has it.: it would normalise by pieces"),
        (
            ("micro_batch_size=17", "norm=standardised"),
            "micro_batch_size .17. needs train_args.batch_size of as many or more .it is 16.",
        ),
        (
            ("micro_batch_size=4", "norm=standardised", "method=fedfa"),
            "a method that looks at a batch as a whole .`fedfa`.",
        ),
    ],
)
def test_where_pieces_would_change_what_is_learnt_they_are_refused(
    tiny_settings: SettingsFactory, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_experiment(tiny_settings(*FEW, *overrides))


def test_terms_one_after_the_other_give_the_gradients_of_their_sum(tiny_settings: SettingsFactory) -> None:
    def both(model: Backbone, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs = model(batch.inputs)
        return nn.functional.cross_entropy(outputs, batch.targets), 0.1 * model(-batch.inputs).square().mean()

    found = []
    for loss in (lambda model, batch: sum(both(model, batch)), lambda model, batch: iter(both(model, batch))):
        _, model, training = prepared(tiny_settings(*FEW, "norm=standardised", "micro_batch_size=5"))
        training.epoch(model, training.optimizer(model), loss)
        found.append((model.state_dict(), training.metrics().loss))
    (summed, one), (in_turn, other) = found
    assert one == pytest.approx(other, rel=1e-5)
    for name, tensor in summed.items():
        torch.testing.assert_close(in_turn[name], tensor, rtol=1e-4, atol=1e-6)


def test_what_a_term_needs_is_let_go_before_the_next_one_comes(tiny_settings: SettingsFactory) -> None:
    class Held:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    experiment, model, training = prepared(tiny_settings(*FEW))
    alive: WeakSet[Held] = WeakSet()
    left: list[tuple[int, int]] = []

    def note(tensor: Tensor) -> Held:
        alive.add(held := Held(tensor))
        return held

    def terms(model: Backbone, batch: Batch) -> Iterator[Tensor]:
        with saved_tensors_hooks(note, lambda held: held.tensor):
            term = experiment.method.problem.task_loss(model, batch)
        before = len(alive)
        yield term
        left.append((before, len(alive)))
        yield term.detach() * next(model.parameters()).sum()

    training.epoch(model, training.optimizer(model), terms)
    assert all(before > 10 and after == 0 for before, after in left)
    assert len(left) == experiment.clients[0].steps_per_epoch
