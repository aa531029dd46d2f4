"""The regression of docs/own_task.md, lower is better, from first round to report."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
import torch
from fedml_dapper.commands.console import LogProgress
from rich.console import Console
from torch import Tensor, nn

from fedml_dapper.errors import ConfigError
from fedml_dapper.evaluation import result_table, summarise, write_report
from fedml_dapper.federation import Experiment, read_ledger, simulate
from fedml_dapper.methods import METHODS
from fedml_dapper.models import Backbone

PAGE = (Path(__file__).parents[2] / "docs" / "own_task.md").read_text()
EXAMPLE = PAGE.split("```python\n")[1].split("```")[0]
"""The page's own file."""


class Brightness(Backbone):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
        self.predictor = nn.Linear(4, 1)

    def encode(self, images: Tensor) -> Tensor:
        features: Tensor = self.features(images)
        return features.mean(dim=(2, 3))


def pictures(scale: float) -> tuple[Tensor, Tensor]:
    images = torch.rand(48, 3, 8, 8) * torch.rand(48, 1, 1, 1)
    return images, images.mean(dim=(1, 2, 3)) * scale


@pytest.fixture
def regression(federation: Callable[..., Experiment], tmp_path: Path) -> Callable[..., Experiment]:
    (tmp_path / "my_prices.py").write_text(EXAMPLE)
    torch.manual_seed(3)

    def make(*overrides: str) -> Experiment:
        domains = {name: (pictures(scale), pictures(scale)) for name, scale in (("dim", 1.0), ("bright", 1.5))}
        own = (f"task={tmp_path}/my_prices.py:Regression", "learning_rate=0.05", "comm_round=6")
        return federation(Brightness(), domains, *own, *overrides)

    return make


def test_its_figures_go_from_training_to_report(regression: Callable[..., Experiment], tmp_path: Path) -> None:
    experiment, text = regression("personal=true", "checkpoints_kept=1"), StringIO()
    _, rounds = simulate(experiment, [LogProgress(Console(file=text, width=300), experiment)], tmp_path / "run")
    run, read = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert [record.scores for record in read] == [record.scores for record in rounds]
    assert (run.metric.name, run.metric.higher_is_better) == ("MAE", False)
    assert run.sources.keys() == {"train_args.task"}

    errors = [record.scores.global_accuracy for record in rounds if record.scores]
    assert 0 < errors[-1] < 0.8 * errors[0]
    last = rounds[-1].scores
    assert last is not None
    assert last.best_global_accuracy == min(errors)
    assert last.domain_figures["dim"]["RMSE"] > last.domain_accuracy["dim"]
    personal = rounds[-1].personal
    assert personal is not None
    assert personal.worst == max(personal.accuracy)

    summary = summarise(run, read)
    assert summary.global_accuracy is not None
    assert (summary.global_accuracy.best, summary.global_accuracy.best_round) == (
        min(errors), errors.index(min(errors)) + 1
    )  # fmt: skip
    shown = Console(file=StringIO(), width=200, record=True)
    shown.print(result_table(summary, run))
    table = shown.export_text()
    write_report(tmp_path / "report.html", run, read)
    report = (tmp_path / "report.html").read_text()
    assert f"global {errors[-1]:.4g} (best {min(errors):.4g})  dim" in text.getvalue()
    for shown_text in (text.getvalue(), table, report):
        assert "%" not in shown_text.split("<h2>Who the clients are")[0].split("</style>")[-1]
        assert "ccuracy" not in shown_text.split("<h2>What a client costs")[0].split("</style>")[-1]
    assert "minimum over rounds" in table
    assert "RMSE" in report


def test_the_checkpoint_that_stays_is_the_lowest(regression: Callable[..., Experiment], tmp_path: Path) -> None:
    experiment = regression("checkpoints_kept=1", "learning_rate_decay=0.1")
    _, rounds = simulate(experiment, [], tmp_path / "run")
    errors = {record.round: record.scores.global_accuracy for record in rounds if record.scores}
    best = min(errors, key=errors.__getitem__)
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("*.safetensors"))
    assert kept == sorted({f"round_{number:05d}.safetensors" for number in (best, 6)})


def test_what_it_measures_must_hold_its_headline(regression: Callable[..., Experiment], tmp_path: Path) -> None:
    experiment = regression()
    experiment.method.problem.task.figures = lambda sums: {"RMSE": 1.0}  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="figures of task `regression` lack its headline `MAE`; they are RMSE"):
        simulate(experiment)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["method=fpl"], "dapper_args.method: `fpl` needs one class a sample, which task `regression` does not have"),
        (["method=fedsr"], "`fedsr` needs one class a sample"),
        (["method=heterofl"], "switch masked_loss off in dapper_args.params"),
        (["method=scaffold", "client_optimizer=adam"], "method `scaffold` is derived for sgd, not adam; set it to sgd"),
    ],
)
def test_methods_that_need_more_refuse_in_one_line(
    regression: Callable[..., Experiment], overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        regression(*overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["dapperfl", "moon", "feddyn", "ditto", "fedmp"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_methods_that_need_no_labels_learn_it(
    regression: Callable[..., Experiment], method: str, optimizer: str
) -> None:
    _, rounds = simulate(regression(f"method={method}", f"client_optimizer={optimizer}", "comm_round=2", "epochs=3"))
    assert all(client.loss >= 0 or method == "feddyn" for client in rounds[-1].clients)


def test_the_page_names_every_method_that_needs_something() -> None:
    table = PAGE.split("## Which methods go with it")[1].split("All others take")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    said = [{name for name in METHODS if f"`{name}`" in row} for row in rows]
    of_levels = {"heterofl", "fedrolex"}  # theirs follows from masked_loss
    representations = {name for name, kind in METHODS.items() if kind.needs_representations} | {"dapperfl"}
    labels = {name for name, kind in METHODS.items() if kind.needs_labels} | of_levels
    assert said == [representations, labels, {name for name, kind in METHODS.items() if kind.needs_sgd}]
