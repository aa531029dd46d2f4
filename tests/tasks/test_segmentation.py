"""The example of examples/segmentation: masks as targets, from training to the report's pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import ModelArgs, Reference, Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.evaluation import draw_predictions, write_report
from fedml_dapper.federation import Experiment, build_experiment, simulate
from fedml_dapper.methods import METHODS
from fedml_dapper.models import build_backbone
from fedml_dapper.registry import load
from fedml_dapper.tasks import Segmentation

EXAMPLE = Path(__file__).parents[2] / "examples" / "segmentation"
Domains = dict[str, tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]
LEARNS = ("task=segmentation", "client_optimizer=adam", "learning_rate=0.01", "weight_decay=0", "batch_size=16")


def shapes(train: int, test: int) -> Domains:
    """As many samples of the example's domains, in memory."""
    made = load(Reference(str(EXAMPLE / "my_shapes.py"), "load"), "data_args.dataset")()  # type: ignore[operator]

    def tensors(samples: object, number: int) -> tuple[Tensor, Tensor]:
        pairs = [samples[index] for index in range(number)]  # type: ignore[index]
        return torch.stack([image for image, _ in pairs]), torch.stack([mask for _, mask in pairs])

    return {name: (tensors(parts[0], train), tensors(parts[1], test)) for name, parts in made.items()}


@pytest.fixture
def segmentation(federation: Callable[..., Experiment]) -> Callable[..., Experiment]:
    """``segmentation("key=value", ...)``: the U-Net on a few of the example's pictures."""

    def make(*overrides: str, train: int = 24, test: int = 12) -> Experiment:
        model = build_backbone(ModelArgs(model="unet_small", width=8), 3, 1, 32)
        return federation(model, shapes(train, test), *LEARNS, *overrides)

    return make


def test_fedavg_learns_it_and_the_report_shows_masks(segmentation: Callable[..., Experiment], tmp_path: Path) -> None:
    experiment = segmentation("comm_round=11", "epochs=3", "frequency_of_the_test=11", train=96, test=32)
    server, rounds = simulate(experiment)
    scores = rounds[-1].scores
    assert scores is not None
    assert scores.best_global_accuracy > 60
    assert scores.domain_figures["night"]["pixel accuracy"] > 85
    model = experiment.method.global_model(server.state)
    figure = draw_predictions(model, experiment.method.problem.task, experiment.tests, experiment.device)
    assert [axes.get_title() for axes in figure.axes[:3]] == ["image", "truth", "prediction"]
    assert len([axes for axes in figure.axes if axes.images]) == 2 * 4 * 3
    write_report(tmp_path / "report.html", experiment.record(), rounds, predictions=figure)
    report = (tmp_path / "report.html").read_text()
    assert "What the model makes of the data" in report
    assert "Mean IoU (%) of the global model" in report


def test_pictures_tell_truth_from_prediction() -> None:
    targets = torch.tensor([[[0, 1], [1, 255]]])
    outputs = torch.zeros(1, 2, 2, 2)
    outputs[:, 1] = 1.0
    image, truth, prediction = Segmentation().draw(torch.rand(1, 1, 2, 2), targets, outputs)[0]
    assert image.shape == truth.shape == (2, 2, 3)
    assert truth[1, 1].tolist() == [255, 255, 255]
    assert torch.equal(truth[0, 1], prediction[0, 0])
    assert not torch.equal(truth[0, 0], prediction[0, 0])


def test_the_task_augments_training_and_nothing_else(segmentation: Callable[..., Experiment]) -> None:
    plain, augmented = segmentation("comm_round=1", "task_arguments={augment: false}"), segmentation("comm_round=1")
    before = plain.method.problem.backbone.state_dict()["head.weight"]
    [left, right, again] = [
        simulate(experiment)[0].state.weights["head.weight"] for experiment in (plain, augmented, augmented)
    ]
    assert not torch.equal(left, right)
    assert torch.equal(right, again)
    assert not torch.equal(left, before)


REFUSED = {"dapperfl", "fedbabu", "fedcmd", "fedfa", "fedrep", "fedrolex", "fedsr", "fpl", "heterofl", "lg_fedavg"}
REFUSED |= {"moon", "nefl", "pfedsim"}
OPEN = {"fedfomo", "feddrop", "fedmp"}
"""The first needs data that can be taken apart, the others a tracer that follows concatenation."""


@pytest.mark.parametrize("method", sorted(set(METHODS) - OPEN))
def test_every_method_learns_it_or_refuses_in_one_line(segmentation: Callable[..., Experiment], method: str) -> None:
    few = ("comm_round=2", "epochs=1", "frequency_of_the_test=9", f"method={method}", "client_optimizer=sgd")
    if method in REFUSED:
        with pytest.raises(ConfigError) as caught:
            segmentation(*few)
        assert "\n" not in str(caught.value)
    else:
        _, rounds = simulate(segmentation(*few))
        assert all(client.loss < 2 for client in rounds[-1].clients)


def test_a_model_must_fit_its_task(tiny_settings: Callable[..., Settings]) -> None:
    for overrides in (("model=unet_small",), ("task=segmentation",)):
        with pytest.raises(ConfigError, match=r"model_args.model: .* does not fit task .*: outputs are \(1, 10"):
            build_experiment(tiny_settings("method=fedavg", *overrides))
