"""Values that are not finite: a result in a simulation, but a loud one, from the data to the end of the run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import get_args

import pytest
import torch

from fedml_dapper.config import DataArgs, Settings, Uplink, load_settings
from fedml_dapper.datasets import divide
from fedml_dapper.evaluation.divergence import divergence_of, divergence_over
from fedml_dapper.federation import RoundRecord, build_experiment, read_ledger, simulate
from fedml_dapper.federation.round.update_norm import is_finite

from ..brought import NET, PAIR, brought, load_of

NAN = "x[3] = float('nan')"
LAZY = """
class Lazy(Dataset):
    def __init__(self, x, y): self.x, self.targets = x, y.tolist()
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return self.x[i], self.targets[i]
TensorDataset = Lazy
"""


def outcome(settings: Settings) -> tuple[str | None, list[RoundRecord]]:
    """What the end of a run by ``settings`` says of values that are not finite, and its rounds."""
    experiment = build_experiment(settings)
    _, rounds = simulate(experiment)
    return divergence_over(experiment.record(), rounds), rounds


@pytest.mark.long
def test_one_picture_is_named_at_load_and_its_client_in_line_ledger_report_and_summary(tmp_path: Path) -> None:
    stranger = brought(tmp_path, load_of(NAN))
    result = stranger.run("comm_round=2")
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "note: my_data, domain a, train: item 3 is not finite (NaN or infinity)" in words
    record, rounds = read_ledger(stranger.run_dir / "ledger.jsonl")
    [sender] = rounds[0].not_finite
    assert not rounds[0].model_is_finite
    assert rounds[1].not_finite == (0, 1)  # who starts from such a model sends one
    assert f"round 1/2 NOT FINITE: client {sender} global model NOT FINITE" in words
    assert f"In round 1, client {sender} sent values that are not finite" in words
    assert any("item 3 is not finite" in note for note in record.notes)
    page = (stranger.run_dir / "report.html").read_text()
    assert f"In round 1, client {sender} sent values that are not finite" in page
    assert "train_args.max_grad_norm" in page


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (NAN, "my_data, domain a, train: item 3 is not finite"),
        ("x[3, 0, 0, 0] = float('inf'); x[5] = -float('inf')", "domain a, train: 2 of 16 items (3, 5) are not finite"),
        ("x[20:] = float('nan')", "domain a, test: 4 of 8 items (4, 5, 6, 7) are not finite"),
        ("x = x.double(); x[3] = float('nan')", "domain a, train: item 3 is not finite"),
        ("x = x.half(); x[3] = float('nan')", "domain a, train: item 3 is not finite"),
    ],
)
def test_inputs_in_memory_are_looked_at_once_when_they_are_loaded(tmp_path: Path, line: str, said: str) -> None:
    [note] = brought(tmp_path, load_of(line)).suite.notes
    assert said in note


@pytest.mark.parametrize("line", ["x = x * 5e37", "x = x * 1e30", "x = (10 * x).to(torch.uint8)"])
def test_large_numbers_and_bytes_are_finite(tmp_path: Path, line: str) -> None:
    assert brought(tmp_path, load_of(line)).suite.notes == ()


def test_a_part_of_a_data_set_keeps_its_own_indices(tmp_path: Path) -> None:
    parts = "from torch.utils.data import Subset; z = TensorDataset(x, y); return {'a': (Subset(z, [1, 3, 5]), z)}"
    notes = brought(tmp_path, load_of(NAN, parts)).suite.notes
    assert "domain a, train: item 1 is not finite" in notes[0]
    assert "domain a, test: item 3 is not finite" in notes[1]


def test_items_that_are_fetched_are_named_once_when_they_come(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    suite = brought(tmp_path, LAZY + load_of(NAN)).suite
    assert suite.notes == ()
    clients = divide(suite, DataArgs(dataset="x"), 2, 4, seed=1).clients
    with caplog.at_level(logging.WARNING):
        for client in clients:
            for epoch in (1, 2):
                list(client.batches(1, epoch))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "my_data, domain a, train: item 3 is not finite" in said[0]


def test_an_upload_that_is_screened_out_for_it_is_said_to_be_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts = "return {'a': (TensorDataset(x[:12], y[:12]),) * 2, 'b': (TensorDataset(x[12:], y[12:]),) * 2}"
    stranger = brought(tmp_path, load_of(NAN, parts))
    overrides = ["dapper_args.defence.aggregation=screened_mean"]
    _, [record] = simulate(build_experiment(load_settings([stranger.experiment], overrides)))
    [ruined] = record.not_finite
    assert f"round 1: upload of client {ruined} left out: it is not finite" in caplog.text
    assert record.model_is_finite


def test_a_rate_that_is_too_high_is_noticed_without_any_fault_of_the_data(tmp_path: Path) -> None:
    stranger = brought(tmp_path, load_of())
    settings = stranger.settings
    training = settings.train_args.model_copy(update={"learning_rate": 1e30, "epochs": 3})
    said, rounds = outcome(settings.model_copy(update={"train_args": training}))
    assert rounds[0].not_finite == (0, 1)
    assert "In round 1, clients 0, 1 sent values that are not finite" in str(said)


HUGE = "x[20, 0] = 3e38"
SQUARING = """
class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, num_classes))
    def forward(self, x): return super().forward(x * x)
"""
NAN_IN_EVALUATION = """
class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, num_classes))
    def forward(self, x): return super().forward(x) if self.training or not x.abs().sum() else super().forward(x) / 0
"""


@pytest.mark.parametrize(
    ("data", "net", "method", "domains"),
    [
        (load_of(HUGE), SQUARING, "fedavg", "a"),
        (load_of(), NAN_IN_EVALUATION, "fedavg", "a"),
        (load_of("x[3, 0] = float('nan')", "a = " + PAIR.removeprefix("return ") + "['a']",
                 "return {'a': a, 'b': (TensorDataset(x[5:16], y[5:16]),) * 2}"), NET, "local", "a"),
    ],
    ids=["tests alone", "evaluation alone", "a client's own model"],
)  # fmt: skip
def test_a_loss_on_tests_that_is_not_finite_is_loud_where_the_global_model_is_sound(
    tmp_path: Path, data: str, net: str, method: str, domains: str
) -> None:
    stranger = brought(tmp_path, data, net)
    said, rounds = outcome(load_settings([stranger.experiment], [f"method={method}"]))
    assert rounds[0].not_finite == ()
    assert rounds[0].model_is_finite
    assert list(divergence_of(rounds[0])) == [f"test loss NOT FINITE: {domains}"]
    assert f"In round 1, the loss on test samples of {domains} is not finite" in str(said)


def test_a_loss_on_validation_samples_alone_is_called_that(tmp_path: Path) -> None:
    parts = "z = TensorDataset(x[:16], y[:16]); return {'a': (z, z, TensorDataset(x[16:], y[16:]))}"
    stranger = brought(tmp_path, load_of("x[20] = float('nan')", parts))
    said, rounds = outcome(stranger.settings)
    assert list(divergence_of(rounds[0])) == ["validation loss NOT FINITE: a"]
    assert "In round 1, the loss on validation samples of a is not finite" in str(said)


MASKS = """
class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, num_classes, 1))
"""


def test_a_figure_of_nothing_is_said_to_be_none(tmp_path: Path) -> None:
    masks = "m = (x[:, 0] > 0).long(); a = (TensorDataset(x, m), TensorDataset(x, m * 0 + 255))"
    stranger = brought(tmp_path, load_of(masks, "return {'a': a, 'b': (TensorDataset(x, m),) * 2}"), MASKS)
    overrides = ["task=segmentation", "data_args.classes=[dark, light]"]
    experiment = build_experiment(load_settings([stranger.experiment], overrides))
    _, rounds = simulate(experiment)
    said = divergence_over(experiment.record(), rounds)
    assert list(divergence_of(rounds[0])) == ["test figure NOT FINITE: a"]
    assert "In round 1, the figure on test samples of a is not finite" in str(said)


GAINED = """
class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(192, num_classes))
        self.gain = nn.Parameter(torch.full((2, 4), 1e6))
    def forward(self, x): return super().forward(x) + 0 * self.gain.sum()
"""


@pytest.mark.parametrize("uplink", get_args(Uplink))
def test_a_client_that_diverges_is_the_same_loud_result_in_every_uplink(tmp_path: Path, uplink: str) -> None:
    stranger = brought(tmp_path, load_of(NAN))
    changes = [f"uplink={uplink}", "comm_round=2"]
    said, rounds = outcome(load_settings([stranger.experiment], changes))
    [sender] = rounds[0].not_finite
    assert not rounds[0].model_is_finite
    assert rounds[1].not_finite == (0, 1)
    assert said is not None
    assert said.startswith(f"In round 1, client {sender} sent values that are not finite")
    assert ("too large for dapper_args.uplink fp16" in said) is (uplink == "fp16")


@pytest.mark.parametrize(("uplink", "senders"), [("fp16", (0, 1)), ("bf16", ()), ("int8", ()), ("fp32", ())])
def test_weights_beyond_fp16_are_a_loud_result_that_says_what_holds_them(
    tmp_path: Path, uplink: str, senders: tuple[int, ...]
) -> None:
    stranger = brought(tmp_path, load_of(), GAINED)
    said, rounds = outcome(load_settings([stranger.experiment], [f"uplink={uplink}"]))
    assert rounds[0].not_finite == senders
    assert (said is None) is not bool(senders)
    assert said is None or "weights beyond 65504 are too large for dapper_args.uplink fp16, and need bf16" in said


def test_sound_rounds_say_nothing(tmp_path: Path) -> None:
    said, rounds = outcome(brought(tmp_path, load_of()).settings)
    assert rounds[0].not_finite == ()
    assert rounds[0].model_is_finite
    assert said is None


def test_a_sum_that_overflows_is_no_infinity() -> None:
    assert is_finite([torch.full((8,), 3e38), torch.ones(2, dtype=torch.int64)])
    assert not is_finite([torch.ones(3), torch.tensor([1.0, float("nan")])])
    assert not is_finite([torch.tensor([float("inf"), -float("inf")])])
