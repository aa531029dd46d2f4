"""The example of examples/segmentation: masks as targets, from training to the report's pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.evaluation import draw_predictions, write_run_report
from fedml_dapper.federation import MODEL_NAME, Experiment, build_experiment, simulate
from fedml_dapper.tasks import Segmentation

from ..grids import ON_ANY_NETWORK, sampled

EXAMPLE = Path(__file__).parents[2] / "examples" / "segmentation" / "shapes.yaml"
FEW = ("client_num_in_total=2", "client_num_per_round=2", "max_clients_per_domain=1")


def segmentation(*overrides: str) -> Experiment:
    """The example with two clients of few samples each."""
    return build_experiment(load_settings([EXAMPLE], [*FEW, "client_share=0.1", *overrides]))


@pytest.mark.nightly
def test_dapperfl_learns_it_and_the_report_shows_masks(tmp_path: Path) -> None:
    experiment = build_experiment(load_settings([EXAMPLE], ["frequency_of_the_test=12", *FEW]))
    _, rounds = simulate(experiment, run_dir=tmp_path / "run")
    scores = rounds[-1].scores
    assert scores is not None
    assert scores.global_accuracy > 60
    assert scores.domain_figures["night"]["pixel accuracy"] > 90
    assert min(client.params for client in rounds[-1].clients) < max(client.params for client in rounds[-1].clients)
    report = write_run_report(tmp_path / "run").read_text()
    assert "What the model makes of the data" in report
    assert "Mean IoU (%) of the global model" in report
    (tmp_path / "run" / MODEL_NAME).unlink()
    assert "What the model makes of the data" not in write_run_report(tmp_path / "run").read_text()


def test_every_sample_is_drawn_with_truth_and_prediction() -> None:
    experiment = segmentation()
    problem = experiment.method.problem
    figure = draw_predictions(problem.backbone, problem.task, experiment.tests, experiment.device)
    assert [axes.get_title() for axes in figure.axes[:3]] == ["image", "truth", "prediction"]
    assert len([axes for axes in figure.axes if axes.images]) == 2 * 4 * 3


def test_pictures_tell_truth_from_prediction() -> None:
    targets = torch.tensor([[[0, 1], [1, 255]]])
    outputs = torch.zeros(1, 2, 2, 2)
    outputs[:, 1] = 1.0
    image, truth, prediction = Segmentation().draw(torch.rand(1, 1, 2, 2), targets, outputs)[0]
    assert image.shape == truth.shape == (2, 2, 3)
    assert truth[1, 1].tolist() == [255, 255, 255]
    assert torch.equal(truth[0, 1], prediction[0, 0])
    assert not torch.equal(truth[0, 0], prediction[0, 0])


@pytest.mark.nightly
def test_the_task_augments_training_and_nothing_else() -> None:
    plain, augmented = segmentation("comm_round=1", "task_arguments={augment: false}"), segmentation("comm_round=1")
    before = plain.method.problem.backbone.state_dict()["head.weight"]
    [left, right, again] = [
        simulate(experiment)[0].state.weights["head.weight"] for experiment in (plain, augmented, augmented)
    ]
    assert not torch.equal(left, right)
    assert torch.equal(right, again)
    assert not torch.equal(left, before)


REFUSED = {"fedbabu", "fedcmd", "fedfa", "fedrep", "fedrolex", "fedsr", "fpl", "heterofl", "lg_fedavg", "moon", "nefl"}
REFUSED |= {"dapperfl_exits", "dapperfl_slim", "depthfl", "pfedsim", "profl", "scalefl"}


@pytest.mark.parametrize("method", sampled(ON_ANY_NETWORK, quick=("dapperfl", "heterofl")))
def test_every_method_learns_it_or_refuses_in_one_line(method: str) -> None:
    few = ("comm_round=2", "epochs=1", "frequency_of_the_test=9", f"method={method}", "client_optimizer=sgd")
    if method in REFUSED:
        with pytest.raises(ConfigError) as caught:
            segmentation(*few)
        assert "\n" not in str(caught.value)
    else:
        _, rounds = simulate(segmentation(*few))
        assert all(client.loss < 2 for client in rounds[-1].clients)


def test_lg_fedavg_has_something_to_average() -> None:
    with pytest.raises(ConfigError, match="num_global_layers: the model has no linear layer, so nothing would be"):
        segmentation("method=lg_fedavg")
    all_layers = "dapper_args.params.lg_fedavg={num_global_layers: all}"
    _, rounds = simulate(segmentation("method=lg_fedavg", all_layers, "comm_round=1", "epochs=1"))
    assert len(rounds) == 1


@pytest.mark.long
@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
def test_windows_need_no_classes_without_the_masked_loss(method: str) -> None:
    with pytest.raises(ConfigError, match="switch masked_loss off"):
        segmentation(f"method={method}")
    off = f"dapper_args.params.{method}={{masked_loss: false}}"
    _, rounds = simulate(segmentation(f"method={method}", off, "comm_round=2", "epochs=1"))
    assert len(rounds) == 2


def test_memory_for_figures_grows_with_classes_not_with_their_square() -> None:
    outputs = torch.zeros(1, 7, 2, 2)
    outputs[:, 3, 0] = 1.0
    targets = torch.tensor([[[3, 4], [0, 255]]])
    sums = Segmentation().sums(outputs, targets)
    assert {name: counts.tolist() for name, counts in sums.items()} == {
        "truth": [1, 0, 0, 1, 1, 0, 0], "predicted": [1, 0, 0, 2, 0, 0, 0], "hits": [1, 0, 0, 1, 0, 0, 0]
    }  # fmt: skip
    figures = Segmentation().figures(sums)
    assert figures == pytest.approx({"mean IoU": 100 * (1 + 1 / 2 + 0) / 3, "pixel accuracy": 200 / 3})
    with pytest.raises(DataError):
        Segmentation().sums(outputs, targets + 5)


def test_dar_needs_representations() -> None:
    with pytest.raises(ConfigError, match=r"works on representations .`dapperfl`. .*gamma to 0, which leaves DAR out"):
        segmentation("dapper_args.params.dapperfl={gamma: 0.1}")


def test_a_model_must_fit_its_task(tiny_settings: Callable[..., Settings]) -> None:
    with pytest.raises(ConfigError, match=r"does not fit task `classification`: it gives"):
        build_experiment(tiny_settings("method=fedavg", "model=unet_small"))
    with pytest.raises(ConfigError, match=r"does not fit task `segmentation`: it gives"):
        segmentation("method=fedavg", "model=resnet10", "width=4")
    with pytest.raises(DataError, match=r"scans, train: targets do not fit task `segmentation`: .* shape \(B\), and"):
        build_experiment(tiny_settings("method=fedavg", "task=segmentation"))
