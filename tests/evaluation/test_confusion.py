"""Which class is taken for which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.datasets import ImageSet, TestSamples
from fedml_dapper.errors import DataError
from fedml_dapper.evaluation import write_run_report
from fedml_dapper.evaluation.chart import inline_svg
from fedml_dapper.evaluation.confusion import Mistake, confusion, confusion_matrix, mistakes
from fedml_dapper.evaluation.last_model import look_at_last_model
from fedml_dapper.evaluation.omissions import Omissions
from fedml_dapper.federation import build_experiment, read_ledger, simulate
from fedml_dapper.federation.scoring.testing import evaluate

CLASSES = ("cat", "dog", "a_class_with_a_long_name")


def test_the_mistakes_that_hit_most_of_a_class_come_first() -> None:
    photos, sketches = ((74, 6, 0), (0, 10, 0), (0, 0, 0)), ((1, 0, 0), (5, 4, 1), (0, 0, 3))
    assert mistakes({"photos": photos, "sketches": sketches}, CLASSES, 3) == [
        Mistake("sketches", "dog", "cat", 5, 10),
        Mistake("sketches", "dog", "a_class_with_a_long_name", 1, 10),
        Mistake("photos", "cat", "dog", 6, 80),
    ]


def test_a_matrix_has_class_names_on_both_sides_and_shares_in_its_cells() -> None:
    axes = confusion_matrix(((3, 1, 0), (0, 4, 0), (0, 0, 0)), CLASSES).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog", "a_class_with_…"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["cat", "dog", "a_class_with_…"]
    assert [text.get_text() for text in axes.texts] == ["75", "25", "100"]


def test_names_that_would_control_a_terminal_are_drawn_without_that() -> None:
    drawn = inline_svg(confusion_matrix(((3, 1), (0, 4)), ("\x1b[31mcat", "d\x00g")))
    assert ">?[31mcat</text>" in drawn
    assert ">d?g</text>" in drawn


def test_of_very_many_classes_no_confusions_are_counted() -> None:
    test = TestSamples("day", ImageSet(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1])))
    with pytest.raises(DataError, match=r"there are 100,000 classes, and confusions are counted of 1,000 at most"):
        confusion(torch.nn.Flatten(), test, 100_000, torch.device("cpu"))  # type: ignore[arg-type]


@pytest.mark.long
def test_the_last_model_of_a_run_is_looked_at(tiny_settings: Callable[..., Settings], tmp_path: Path) -> None:
    experiment = build_experiment(tiny_settings("comm_round=1", "epochs=1"))
    server, _ = simulate(experiment, run_dir=tmp_path / "run")
    run, _ = read_ledger(tmp_path / "run" / "ledger.jsonl")
    looked = look_at_last_model(run, tmp_path / "run", Omissions())
    model = experiment.method.global_model(server.state)
    for test in experiment.tests:
        counts = torch.tensor(looked.confusions[test.domain])
        assert counts.sum() == test.num_samples
        figures = evaluate(model, experiment.method.problem.task, test, experiment.device)
        assert 100 * counts.trace() / counts.sum() == figures.headline
        assert confusion(model, test, 10, experiment.device) == looked.confusions[test.domain]
    assert [level for level, memory in looked.peak_memory.items() if memory > 0] == [1, 2, 3, 4, 5]
    html = write_run_report(tmp_path / "run").read_text()
    assert "Which classes are confused" in html
    assert "peak memory" in html
    (tmp_path / "run" / "global_model.safetensors").unlink()
    assert "Which classes are confused" not in write_run_report(tmp_path / "run").read_text()
