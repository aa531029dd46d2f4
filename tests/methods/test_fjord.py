"""FjORD's draws and distillation; what it shares is in test_sub_width.py and test_sub_models.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import Experiment, Server, build_experiment
from fedml_dapper.methods import ClientContext
from fedml_dapper.methods.catalogue.fjord import FjORD
from fedml_dapper.methods.parts.divergence import divergence
from fedml_dapper.models import Backbone
from fedml_dapper.randomness.seeding import Stream, numpy_generator

SettingsFactory = Callable[..., Settings]
SHAPES = Path(__file__).parents[2] / "examples" / "segmentation" / "shapes.yaml"
FEW = (
    "method=fjord", "client_num_in_total=4", "client_num_per_round=4", "client_share=0.1", "scope=grouped",
    "batch_size=4",
)  # fmt: skip
LEVELS = ("ratios=[0.0, 0.25, 0.5, 0.75]", "ratio_of=channels", "assignment=index_mod")
KD = "dapper_args.params.fjord={distillation: true}"
GROUP = "stages.0.0.conv1"


def opened(experiment: Experiment, client_id: int) -> tuple[FjORD, ClientContext, Server]:
    method = experiment.method
    assert isinstance(method, FjORD)
    client = ClientContext(experiment.profiles[client_id], experiment.clients[client_id])
    return method, client, Server(experiment)


def trained_width(model: Backbone) -> int:
    """How many leading channels of eight got a gradient."""
    gradient = model.get_parameter(f"{GROUP}.weight").grad
    assert gradient is not None
    trained = gradient.abs().sum((1, 2, 3)).nonzero().flatten().tolist()
    assert trained == list(range(len(trained)))
    return len(trained)


def total(terms: Iterator[Tensor]) -> Tensor:
    return torch.stack(list(terms)).sum()


@pytest.mark.parametrize(("client_id", "widths"), [(0, {8, 6, 4, 2}), (1, {6, 4, 2}), (3, {2})])
def test_each_step_trains_a_width_up_to_the_client_s_own(
    tiny_settings: SettingsFactory, client_id: int, widths: set[int]
) -> None:
    method, client, server = opened(build_experiment(tiny_settings(*FEW, *LEVELS)), client_id)
    downlink = server.downlink(client_id)
    model, batch = method.load(client, downlink).train(), next(client.data.batches(1, 1))
    steps = method.drawn_widths(client, downlink, model)
    drawn = []
    terms = method.ordered_dropout(steps)
    for _ in range(80):
        model.zero_grad()
        total(terms(model, batch)).backward()  # type: ignore[no-untyped-call]
        drawn.append(trained_width(model))
        steps.advance()
    assert set(drawn) == widths
    for width in widths:
        assert drawn.count(width) / 80 == pytest.approx(1 / len(widths), abs=0.17)  # 3.5 standard deviations


@pytest.mark.nightly
def test_draws_follow_from_seed_client_and_round(tiny_settings: SettingsFactory) -> None:
    def draws(client_id: int, completed: int, *overrides: str) -> list[int]:
        method, client, server = opened(build_experiment(tiny_settings(*FEW, *LEVELS, *overrides)), client_id)
        server.state.round = completed
        downlink = server.downlink(client_id)
        model, found = method.load(client, downlink).train(), []
        steps = method.drawn_widths(client, downlink, model)
        batch = next(client.data.batches(1, 1))
        terms = method.ordered_dropout(steps)
        for _ in range(24):
            model.zero_grad()
            total(terms(model, batch)).backward()  # type: ignore[no-untyped-call]
            found.append(trained_width(model))
            steps.advance()
        return found

    first = draws(0, 0)
    assert draws(0, 0) == first
    assert len({tuple(first), tuple(draws(0, 1)), tuple(draws(0, 0, "random_seed=2"))}) == 3
    alike = ("ratios=[0.0, 0.5]",)
    assert draws(0, 0, *alike) != draws(2, 0, *alike)  # two clients of level 1


def test_the_own_width_teaches_the_drawn_one(tiny_settings: SettingsFactory) -> None:
    method, client, server = opened(build_experiment(tiny_settings(*FEW, *LEVELS, KD)), 2)
    downlink = server.downlink(2)
    model, batch = method.load(client, downlink).train(), next(client.data.batches(1, 1))
    [narrower] = method.narrower(client, downlink, model)

    def losses() -> tuple[Tensor, Tensor]:
        taught = model(batch.inputs)
        alone = F.cross_entropy(taught, batch.targets)
        return alone, alone + divergence(narrower(batch.inputs), taught)

    alone, both = losses()
    assert both > alone
    steps = method.drawn_widths(client, downlink, model)
    terms = method.ordered_dropout(steps)
    found = set()
    for _ in range(12):
        found.add(round(total(terms(model, batch)).item(), 4))
        steps.advance()
    assert found == {round(alone.item(), 4), round(both.item(), 4)}

    def gradient(value: Tensor) -> Tensor:
        model.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        found = model.get_parameter(f"{GROUP}.weight").grad
        assert found is not None
        return found

    plain, distilled = gradient(losses()[0]), gradient(losses()[1])
    assert torch.equal(distilled[2:], plain[2:])  # beyond the drawn width only the task's loss trains
    assert not torch.allclose(distilled[:2], plain[:2], rtol=1e-2)


def test_steps_of_narrower_widths_leave_tracked_statistics_alone(tiny_settings: SettingsFactory) -> None:
    tracked = "dapper_args.params.fjord={bn_statistics: slim}"
    experiment = build_experiment(tiny_settings(*FEW, *LEVELS, tracked, "epochs=3"))
    method, client, server = opened(experiment, 1)
    upload = method.local_update(client, server.downlink(1))
    draws = numpy_generator(method.problem.seed, Stream.METHOD, 1, 1)
    own = sum(int(draws.integers(3)) == 2 for _ in range(upload.metrics.steps))
    assert 0 < own < upload.metrics.steps
    assert {int(t) for name, t in upload.weights.items() if name.endswith("num_batches_tracked")} == {own}


def test_no_width_is_larger_than_the_client_s_own(tiny_settings: SettingsFactory) -> None:
    """Whole groups of GroupNorm make steps so coarse that a smaller model may be wider in places."""
    coarse = ("norm=group", "ratios=[0.1, 0.2]", "scope=internal", "ratio_of=parameters", "assignment=index_mod")
    method, client, server = opened(build_experiment(tiny_settings(*FEW, *coarse)), 0)
    own, weaker = (server.downlink(client_id).plan.widths for client_id in (0, 1))
    wider = "stages.1.0.conv1"
    assert (own[wider], weaker[wider]) == (3, 4)
    downlink = server.downlink(0)
    model, batch = method.load(client, downlink).train(), next(client.data.batches(1, 1))
    [narrower] = method.narrower(client, downlink, model)
    assert narrower(batch.inputs).shape == (4, 10)
    assert len(narrower.network().get_submodule(wider).weight) == 4 * own[wider]


def test_distillation_needs_classes() -> None:
    masks = load_settings([SHAPES], ["method=fjord", "client_share=0.1", KD])
    with pytest.raises(ConfigError, match=r".`fjord`. needs one class a sample.*switch distillation off"):
        build_experiment(masks)
