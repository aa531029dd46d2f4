"""Losses and figures by hand; how tasks are named, and refused."""

from __future__ import annotations

from collections.abc import Callable
from math import log, nan
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import Settings, TrainArgs, load_settings
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.tasks import TOP_1, Classification, Metric, Segmentation, Task, build_task

MAE = Metric("MAE", higher_is_better=False)
IGNORED = 255


def figures(task: Task, *batches: tuple[Tensor, Tensor]) -> dict[str, float]:
    """As scoring adds up batches."""
    sums: dict[str, Tensor] = {}
    for outputs, targets in batches:
        for name, value in task.sums(outputs, targets).items():
            sums[name] = sums.get(name, torch.zeros(())) + value.double()
    return dict(task.figures(sums))


def logits_of(classes: Tensor, count: int = 3) -> Tensor:
    """Logits, the class on dim 1, whose largest is at ``classes``."""
    return torch.nn.functional.one_hot(classes, count).movedim(-1, 1).float()


def test_top_1_over_batches_of_unequal_size() -> None:
    three = (logits_of(torch.tensor([0, 1, 2])), torch.tensor([0, 1, 0]))
    one = (logits_of(torch.tensor([2])), torch.tensor([0]))
    assert figures(Classification(), three, one) == {"Top-1 accuracy": 50.0}
    zero = torch.zeros(2, 4)
    assert Classification().loss(zero, torch.tensor([0, 1])).item() == pytest.approx(log(4))
    assert Classification().total_loss(zero, torch.tensor([0, 1])).item() == pytest.approx(2 * log(4))


@pytest.mark.parametrize("target", [4, -1])
def test_a_class_that_the_network_does_not_know_is_said(target: int) -> None:
    said = rf"a batch has the class {target}, and the network knows 0 to 3; mend the targets"
    for loss in (Classification().loss, Classification().total_loss):
        with pytest.raises(DataError, match=said):
            loss(torch.zeros(2, 4), torch.tensor([0, target]))
    for measure in (Segmentation().loss, Segmentation().sums):
        with pytest.raises(DataError, match=said):
            measure(torch.zeros(1, 4, 1, 3), torch.tensor([[[0, IGNORED, target]]]))


def test_mean_iou_over_batches_without_ignored_pixels_and_absent_classes() -> None:
    truth = torch.tensor([[[0, 0], [1, IGNORED]]])
    guess = torch.tensor([[[0, 1], [1, 2]]])
    # class 0: 1 of 2; class 1: 1 of 2; class 2 is only guessed where nobody asks
    found = figures(Segmentation(), (logits_of(guess), truth))
    assert found == pytest.approx({"mean IoU": 50.0, "pixel accuracy": 200 / 3})
    # with a batch of four pixels of class 1, all right: class 0 1 of 2, class 1 5 of 6
    ones = torch.ones(1, 2, 2, dtype=torch.int64)
    found = figures(Segmentation(), (logits_of(guess), truth), (logits_of(ones), ones))
    assert found["mean IoU"] == pytest.approx(100 * (1 / 2 + 5 / 6) / 2)


def test_ignored_pixels_have_no_part_in_the_loss() -> None:
    task, outputs = Segmentation(ignore_index=7), torch.zeros(1, 2, 1, 2)
    outputs[0, 0, 0, 1] = 50.0  # the second pixel is surely of class 0
    assert task.loss(outputs, torch.tensor([[[1, 7]]])).item() == pytest.approx(log(2))
    assert task.loss(outputs, torch.tensor([[[1, 1]]])).item() == pytest.approx((log(2) + 50) / 2)
    assert task.loss(outputs, torch.tensor([[[7, 7]]])).item() == 0


def test_outputs_must_fit_the_masks() -> None:
    task = Segmentation()
    assert task.misfit(torch.zeros(1, 3, 8, 8), 3) == ""
    assert task.misfit(torch.zeros(1, 3), 3).startswith("it gives (B, 3), and (B, 3, H, W) is expected")
    assert "2 or more; list them in data_args.classes" in task.misfit(torch.zeros(1, 3, 8, 8), 0)


def test_image_and_mask_move_together() -> None:
    masks = torch.randint(1, 3, (40, 16, 24))
    images = masks[:, None].float().repeat(1, 3, 1, 1)
    moved, moved_masks = Segmentation().augment(images, masks, torch.Generator().manual_seed(1))
    outside = moved_masks == IGNORED
    assert torch.equal(moved, moved_masks[:, None].float().masked_fill(outside[:, None], 0).repeat(1, 3, 1, 1))
    assert 0 < outside.float().mean() < 0.2
    assert not torch.equal(moved_masks, masks)
    again, _ = Segmentation().augment(images, masks, torch.Generator().manual_seed(1))
    assert torch.equal(moved, again)
    assert Segmentation(augment=False).augment(images, masks, torch.Generator())[0] is images


def test_half_of_the_images_are_mirrored() -> None:
    columns = torch.arange(24).expand(200, 16, 24).contiguous()
    _, masks = Segmentation().augment(torch.zeros(200, 1, 16, 24), columns, torch.Generator().manual_seed(2))
    mirrored = masks[:, 8, 12] < masks[:, 8, 11]
    assert 70 < int(mirrored.sum()) < 130


def test_a_metric_knows_which_of_two_values_is_better_and_how_to_show_it() -> None:
    assert (TOP_1.best([1.0, 3.0, 2.0]), TOP_1.worst([1.0, 3.0, 2.0])) == (3.0, 1.0)
    assert (MAE.best([1.0, 3.0, nan]), MAE.worst([1.0, 3.0])) == (1.0, 3.0)
    assert (TOP_1.title, TOP_1.text(71.234)) == ("Top-1 accuracy (%)", "71.2 %")
    assert (MAE.title, MAE.text(0.0312345)) == ("MAE", "0.03123")
    assert Metric("error", "m", higher_is_better=False).text(1.5) == "1.5 m"


OWN = """
from fedml_dapper.tasks import Classification, Metric, Task
class Half(Task):
    name = "half"
    headline = Metric("half", higher_is_better=False)
    def loss(self, outputs, targets): return outputs.mean()
class Scaled(Classification):
    name = "scaled"
    def __init__(self, scale):
        if scale < 0: raise ValueError("scale is below 0")
        self.scale = scale
"""


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task=segmentatoin"], "train_args.task: unknown task `segmentatoin`; did you mean `segmentation`"),
        (["task=own.py:Half"], "own.py:Half` is a task without `figures`; give its class one"),
        (["task=own.py:Metric"], "own.py:Metric` is no task; derive a class from fedml_dapper.tasks.Task"),
        (["task=own.py:Scaled"], "task_arguments: do not fit task `scaled`: missing a required argument: 'scale'"),
        (["task=own.py:Scaled", "task_arguments={scale: -1}"], "do not fit task `scaled`: scale is below 0"),
        (["task_arguments={scale: 1}"], "do not fit task `classification`: got an unexpected keyword argument 'scale'"),
        (
            ["client_optimizer=adam", "momentum=0.5"],
            "needs train_args.client_optimizer sgd .it is adam.: the others have betas instead",
        ),
        (["client_optimizer=rmsprop"], "client_optimizer"),
    ],
)
def test_what_does_not_fit_is_one_line(
    tiny_settings: Callable[..., Settings], tmp_path: Path, overrides: list[str], message: str
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "experiment.yaml").write_text(tiny_settings().as_yaml())
    with pytest.raises(ConfigError, match=message) as caught:
        build_task(load_settings([tmp_path / "experiment.yaml"], overrides).train_args)
    assert "\n" not in str(caught.value)


def test_own_task_beside_the_experiment(tiny_settings: Callable[..., Settings], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "experiment.yaml").write_text(tiny_settings().as_yaml())
    settings = load_settings([tmp_path / "experiment.yaml"], ["task=own.py:Scaled", "task_arguments={scale: 2}"])
    assert vars(build_task(settings.train_args)) == {"scale": 2}
    assert isinstance(build_task(TrainArgs()), Classification)
