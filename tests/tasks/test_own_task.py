"""The regression of docs/own_task.md, lower is better, from first round to report."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fedml_dapper.config import load_settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.evaluation import result_table, summarise, write_run_report
from fedml_dapper.evaluation.progress import LogProgress
from fedml_dapper.federation import Experiment, build_experiment, read_ledger, simulate
from fedml_dapper.methods import METHODS

from ..brought import brought, load_of

PAGE = (Path(__file__).parents[2] / "docs" / "own_task.md").read_text()
FEW = ("client_num_in_total=2", "client_num_per_round=2", "client_share=0.2", "max_clients_per_domain=1", "epochs=3")


TASKS = """
import torch
from fedml_dapper.tasks import Metric, Task

class Sound(Task):
    name, headline = "own", Metric("MAE", higher_is_better=False)
    def loss(self, outputs, targets): return (outputs[:, 0] - targets).abs().mean()
    def sums(self, outputs, targets):
        return {"error": (outputs[:, 0] - targets).abs().sum(), "samples": torch.tensor(len(targets))}
    def figures(self, sums): return {"MAE": float(sums["error"] / sums["samples"])}

class FailsInTraining(Sound):
    def loss(self, outputs, targets): return targets.missing

class FailsInTests(Sound):
    def sums(self, outputs, targets): return {"error": [][7]}

class FailsAtTheEnd(Sound):
    def figures(self, sums): return {"MAE": sums["squares"]}

class ALossASample(Sound):
    def loss(self, outputs, targets): return (outputs[:, 0] - targets).abs()

class ANumber(Sound):
    def loss(self, outputs, targets): return super().loss(outputs, targets).item()
"""


@pytest.fixture
def regression(tmp_path: Path) -> Callable[..., Experiment]:
    """``regression("key=value", ...)``: the page's files, with fewer and smaller clients."""
    (tmp_path / "my_prices.py").write_text(PAGE.split("```python\n")[1].split("```")[0])
    (tmp_path / "prices.yaml").write_text(PAGE.split("```yaml\n")[1].split("```")[0])

    def make(*overrides: str) -> Experiment:
        return build_experiment(load_settings([tmp_path / "prices.yaml"], [*FEW, "comm_round=6", *overrides]))

    return make


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "FailsInTraining",
            "task `own` fails: AttributeError: 'Tensor' object has no attribute 'missing' (my",
        ),
        (
            "FailsInTests",
            "train_args.task: task `own` fails: IndexError: list index out of range (my_task.py, line 16)",
        ),
        ("FailsAtTheEnd", "train_args.task: task `own` fails: KeyError: 'squares' (my_task.py, line 19)"),
        ("ALossASample", "the loss of a batch is a tensor of shape (8,), and has to be a tensor of one number"),
        ("ANumber", "the loss of a batch is a float, and has to be a tensor of one number"),
    ],
)
def test_what_a_task_raises_or_gives_in_place_of_a_loss_is_one_line(tmp_path: Path, name: str, message: str) -> None:
    stranger = brought(tmp_path, load_of())
    (tmp_path / "my_task.py").write_text(TASKS)
    result = stranger.run(f"task=my_task.py:{name}")
    assert result.exit_code == 2
    assert message in result.stderr.strip().splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_its_figures_go_from_training_to_report(regression: Callable[..., Experiment], tmp_path: Path) -> None:
    experiment, text = regression("personal=true"), StringIO()
    _, rounds = simulate(experiment, [LogProgress(Console(file=text, width=300), experiment)], tmp_path / "run")
    run, read = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert [record.scores for record in read] == [record.scores for record in rounds]
    assert (run.metric.name, run.metric.higher_is_better) == ("MAE", False)
    assert run.sources.keys() == {"data_args.dataset", "model_args.model", "train_args.task"}

    errors = [record.scores.global_accuracy for record in rounds if record.scores]
    assert 0 < errors[-1] < 0.8 * errors[0]
    last = rounds[-1].scores
    assert last is not None
    assert last.best_global_accuracy == min(errors)
    assert last.domain_figures["town"]["RMSE"] > last.domain_accuracy["town"]
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
    report = write_run_report(tmp_path / "run").read_text()
    assert f"global {errors[-1]:.4g} (best {min(errors):.4g})  clients' own" in text.getvalue()
    assert f"  town {last.domain_accuracy['town']:.4g}  coast" in text.getvalue()
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
        (
            ["method=fpl"],
            "dapper_args.method .* .`fpl`. needs one class a sample .which task `regression` does not have",
        ),
        (["method=fedsr"], ".`fedsr`. needs one class a sample"),
        (["method=heterofl"], "switch masked_loss off in dapper_args.params"),
        (
            ["method=scaffold", "client_optimizer=adam"],
            "derived for sgd .`scaffold`. does not go with .*other than sgd .adam.: .* set it to sgd",
        ),
    ],
)
def test_methods_that_need_more_refuse_in_one_line(
    regression: Callable[..., Experiment], overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        regression(*overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["dapperfl", "moon", "feddyn", "ditto", "fedfomo", "fedmp"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_methods_that_need_no_labels_learn_it(
    regression: Callable[..., Experiment], method: str, optimizer: str
) -> None:
    _, rounds = simulate(regression(f"method={method}", f"client_optimizer={optimizer}", "comm_round=2"))
    assert all(client.loss >= 0 or method == "feddyn" for client in rounds[-1].clients)


def test_the_page_names_every_method_that_needs_something() -> None:
    table = PAGE.split("## Which methods go with it")[1].split("All others take")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    said = [{name for name in METHODS if f"`{name}`" in row} for row in rows]
    of_levels = {"heterofl", "fedrolex"}  # theirs follows from masked_loss
    representations = {name for name, kind in METHODS.items() if kind.needs_representations} | {"dapperfl"} | of_levels
    head = {"fedbabu", "fedrep", "lg_fedavg"}  # what they do without one is in test_segmentation
    distilling = {"dapperfl_slim", "fjord"}
    labels = {name for name, kind in METHODS.items() if kind.needs_labels} | of_levels | distilling
    assert said == [representations, head, labels, {name for name, kind in METHODS.items() if kind.needs_sgd}]
