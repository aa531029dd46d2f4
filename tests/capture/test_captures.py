"""Recorded steps of one client: when a step is recorded, what is refused, and what makes way."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.capture import Captures
from fedml_dapper.capture.captures import PATIENCE
from fedml_dapper.capture.recorders import Recording
from fedml_dapper.config import TrainArgs
from fedml_dapper.datasets import Batch
from fedml_dapper.methods.contract.local_training import new_optimizer
from fedml_dapper.methods.contract.step import Loss, Step
from fedml_dapper.models import Backbone

from .recorders import CallsAgain, CountedCalls

ARGS = TrainArgs(learning_rate=0.1, momentum=0.9, weight_decay=0.01, max_grad_norm=1.0)


class Network(Backbone):
    """A perceptron with what a recording could get wrong: running statistics, and noise."""

    def __init__(self, width: int = 8, dropout: float = 0.5) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(dropout))
        self.predictor = nn.Linear(width, 3)

    def encode(self, inputs: Tensor) -> Tensor:
        z: Tensor = self.body(inputs)
        return z


def cross_entropy(model: Backbone, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(batch.inputs), batch.targets)


def batches(count: int, size: int = 6, seed: int = 1) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return [
        Batch(torch.randn(size, 4, generator=generator), torch.randint(3, (size,), generator=generator))
        for _ in range(count)
    ]


def step_of(model: Backbone, loss: Loss = cross_entropy, args: TrainArgs = ARGS, rate: float = 0.1) -> Step:
    total = torch.zeros((), dtype=torch.float64)
    return Step(
        model.train(), new_optimizer(args, model.parameters(), rate), total, loss, args, "fp32", None, None, None
    )


def network(width: int = 8, seed: int = 0) -> Network:
    torch.manual_seed(seed)
    return Network(width)


def train(step: Step, data: Iterable[Batch], captures: Captures | None) -> dict[str, Tensor]:
    """What the step and its model hold after an epoch over ``data``."""
    torch.manual_seed(2)
    if captures is None:
        for batch in data:
            step(batch)
    else:
        with captures.steps(step) as take:
            for batch in data:
                take(batch)
    return {**step.model.state_dict(), "total": step.total}


def alike(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(tensor.equal(other[name]) for name, tensor in one.items())


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_clients_of_one_shape_share_a_recording_whatever_their_rates(optimizer: str) -> None:
    args = TrainArgs.model_validate({**ARGS.model_dump(), "client_optimizer": optimizer})
    recorder = CountedCalls()
    captures = Captures(recorder)
    for seed in range(3):
        models = [network(seed=seed) for _ in range(2)]
        steps = [step_of(model, args=args, rate=0.1 / (1 + seed)) for model in models]
        data = batches(PATIENCE + 3, seed=seed)
        assert alike(train(steps[0], data, captures), train(steps[1], data, None))
        again = batches(2, seed=9)
        assert alike(train(steps[0], again, captures), train(steps[1], again, None)), "the optimizer's memory"
    assert recorder.recordings == 1
    assert recorder.replays == 1 + 2 + 2 + 2 * (PATIENCE + 3 + 2)  # one of them checks the recording


def test_a_last_batch_of_another_size_has_a_recording_of_its_own() -> None:
    recorder = CountedCalls()
    captures = Captures(recorder)
    one = step_of(network())
    other = step_of(network())
    data = [*batches(PATIENCE), *batches(1, size=3), *batches(3), *batches(2, size=3)]
    assert alike(train(one, data, captures), train(other, data, None))
    assert recorder.recordings == 2


def held_back(anchor: dict[str, Tensor], teacher: Backbone, model: Backbone, batch: Batch) -> Tensor:
    """An objective that holds weights, as FedProx's does, and a network, as MOON's."""
    with torch.no_grad():
        taught = teacher(batch.inputs)
    pulls = [(tensor - anchor[name]).square().sum() for name, tensor in model.named_parameters()]
    apart = (model(batch.inputs) - taught).square().mean()
    return cross_entropy(model, batch) + apart + 0.01 * torch.stack(pulls).sum()


def closed_over(anchor: dict[str, Tensor], teacher: Backbone) -> Loss:
    return lambda model, batch: held_back(anchor, teacher, model, batch)


@pytest.mark.parametrize(
    "objective", [closed_over, lambda *held: partial(held_back, *held)], ids=["closure", "partial"]
)
def test_tensors_that_an_objective_holds_are_each_client_s_own(objective: Callable[..., Loss]) -> None:
    captures = Captures(recorder := CountedCalls())
    for seed in range(3):
        anchor = {name: torch.randn_like(tensor) for name, tensor in network(seed=seed).named_parameters()}
        loss = objective(anchor, network(seed=seed + 10).eval())
        data = batches(PATIENCE + 2, seed=seed)
        assert alike(train(step_of(network(), loss), data, captures), train(step_of(network(), loss), data, None))
    assert recorder.recordings == 1


@torch.no_grad()
def pull(model: dict[str, nn.Parameter], towards: dict[str, Tensor]) -> None:
    for name, parameter in model.items():
        assert parameter.grad is not None
        parameter.grad.add_(towards[name], alpha=0.01)


def test_a_change_of_gradients_is_recorded_for_the_recording_s_own_network() -> None:
    """As SCAFFOLD's, which holds the parameters that are trained, by a decorated function."""
    captures = Captures(recorder := CountedCalls())
    for seed in range(3):
        towards = {name: torch.randn_like(tensor) for name, tensor in network(seed=seed).named_parameters()}
        steps = [step_of(network()) for _ in range(2)]
        one, other = (
            replace(step, before_step=partial(pull, dict(step.model.named_parameters()), towards)) for step in steps
        )
        data = batches(PATIENCE + 2, seed=seed)
        assert alike(train(one, data, captures), train(other, data, None))
    assert recorder.recordings == 1


def test_an_epoch_that_is_interrupted_leaves_the_model_where_it_was() -> None:
    captures = Captures(CountedCalls())
    first = batches(PATIENCE + 1)
    train(step_of(network()), first, captures)
    one = step_of(network())
    other = step_of(network())

    def data() -> Iterator[Batch]:
        yield from first[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(one, data(), captures)
    assert alike(one.model.state_dict(), train(other, first[:2], None))


def test_what_fits_no_longer_makes_way(said: list[str]) -> None:
    recorder = CountedCalls(most_bytes=2000)
    captures = Captures(recorder)
    for width in (8, 16, 8):
        train(step_of(network(width)), batches(PATIENCE + 1), captures)
    assert recorder.recordings == 3
    [line] = said
    assert "more shapes than fit into" in line


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Warnings, as they come."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]  # a list is enough
    logger = logging.getLogger("fedml_dapper.capture")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def refused(loss: Loss, network: Callable[[], Network] = network) -> None:
    """Train by ``loss``, which no recording does, and end where training without recordings does."""
    captures = Captures(recorder := CountedCalls())
    for _ in range(2):
        data = batches(PATIENCE + 2)
        assert alike(train(step_of(network(), loss), data, captures), train(step_of(network(), loss), data, None))
    assert recorder.replays == 0


def test_an_objective_that_counts_is_taken_step_by_step(said: list[str]) -> None:
    seen: list[int] = []

    def loss(model: Backbone, batch: Batch) -> Tensor:
        seen.append(len(batch.targets))
        return cross_entropy(model, batch)

    refused(loss)
    assert len(seen) == 4 * (PATIENCE + 2)
    assert "changes" in said[0]


def test_an_objective_that_comes_to_hold_what_cannot_be_told_trains_all_the_same(said: list[str]) -> None:
    held: list[torch.Generator] = []

    def loss(model: Backbone, batch: Batch) -> Tensor:
        held.append(torch.Generator())
        return cross_entropy(model, batch)

    assert alike(
        train(step_of(network(), loss), batches(2), Captures(CountedCalls())),
        train(step_of(network()), batches(2), None),
    )
    assert "changes what it reads" in said[0]


def test_an_objective_that_keeps_a_running_mean_is_taken_step_by_step(said: list[str]) -> None:
    mean = torch.zeros(())

    def loss(model: Backbone, batch: Batch) -> Tensor:
        value = cross_entropy(model, batch)
        mean.mul_(0.9).add_(value.detach(), alpha=0.1)
        return value

    refused(loss)
    assert "changes more than its model and its optimizer" in said[0]


def test_an_object_that_may_change_is_named(said: list[str]) -> None:
    noise = torch.Generator().manual_seed(0)

    def loss(model: Backbone, batch: Batch) -> Tensor:
        return cross_entropy(model, batch) * (1 + 0 * torch.rand((), generator=noise))

    refused(loss)
    [line] = said
    assert line.endswith("where its step reads an object of Generator, which could change while it trains")


def test_a_network_with_hooks_is_taken_step_by_step(said: list[str]) -> None:
    def hooked() -> Network:
        made = network()
        made.predictor.register_forward_hook(lambda layer, given, out: out * 2)
        return made

    refused(cross_entropy, hooked)
    assert "has hooks, in a Linear" in said[0]


class Wrong(CallsAgain):
    """A recording that misses a part of the step."""

    def record(self, step: Callable[[], None]) -> Recording:
        super().record(step)
        return Recording(lambda: None, 0)


class Waits(CallsAgain):
    def record(self, step: Callable[[], None]) -> Recording:
        step()
        raise RuntimeError("operation not permitted when stream is capturing\nmore")


@pytest.mark.parametrize(
    ("recorder", "reason"),
    [(Wrong(), "comes to something else"), (Waits(), "cannot be captured: operation not permitted")],
)
def test_a_recording_that_is_not_the_step_is_never_used(recorder: CallsAgain, reason: str, said: list[str]) -> None:
    captures = Captures(recorder)
    data = batches(PATIENCE + 3)
    assert alike(train(step_of(network()), data, captures), train(step_of(network()), data, None))
    [line] = said
    assert reason in line
    assert "\n" not in line


@pytest.mark.parametrize("draw", [random.random, np.random.random])
def test_a_step_that_decides_by_chance_in_python_is_taken_step_by_step(
    draw: Callable[[], float], said: list[str]
) -> None:
    """A layer that is left out now and then, as some encoders do: the recording would always leave it out, or never."""

    class Dropping(Network):
        def encode(self, inputs: Tensor) -> Tensor:
            z = super().encode(inputs)
            return z if draw() < 0.9 else z * 0

    def dropping() -> Network:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # the user's network draws from it
        return Dropping()

    refused(cross_entropy, dropping)
    assert "draws random numbers on the CPU" in said[0]


@pytest.mark.parametrize("again", [False, True])
def test_an_optimizer_that_is_not_known_trains_in_every_epoch(again: bool, said: list[str]) -> None:
    model = network()
    step = replace(step_of(model), optimizer=torch.optim.RMSprop(model.parameters()))
    for _ in range(1 + again):
        train(step, batches(2), Captures(CountedCalls()))
    assert "is by RMSprop" in said[0]


class Counter:
    """An object that cannot be pickled, for a reason of its own."""

    def __reduce__(self) -> str:
        raise RuntimeError("shared between processes")


def test_an_object_that_refuses_to_be_read_trains_all_the_same(said: list[str]) -> None:
    counter = Counter()

    def loss(model: Backbone, batch: Batch) -> Tensor:
        return cross_entropy(model, batch) * (1 if counter is not None else 0)

    refused(loss)
    assert "reads an object of Counter" in said[0]


def test_a_function_whose_variable_is_not_set_yet_trains_all_the_same(said: list[str]) -> None:
    def loss(model: Backbone, batch: Batch) -> Tensor:
        return cross_entropy(model, batch) if len(batch.targets) else later

    refused(loss)
    assert "whose variables are not all set" in said[0]
    later = torch.zeros(())
