"""Training steps as CUDA graphs, against the same run without them."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch

from fedml_dapper.capture import CudaGraphs
from fedml_dapper.capture.recorders import Recording
from fedml_dapper.config import Settings
from fedml_dapper.federation import Server, build_experiment, simulate
from fedml_dapper.pruning import Tensors

from ..capture.test_captured_methods import STEP_BY_STEP

SettingsFactory = Callable[..., Settings]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
FEW = ("client_num_in_total=5", "client_num_per_round=5", "using_gpu=true", "epochs=5", "learning_rate_decay=0.9")


METHODS = ("fedavg", "fedprox", "moon", "fpl", "heterofl", "fedmp", "nefl", "dapperfl", "scaffold")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("method", METHODS)
def test_a_recorded_run_ends_where_one_without_recordings_does(
    tiny_settings: SettingsFactory,
    method: str,
    precision: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As close as two runs without recordings are to each other, whose kernels add in another order each time."""
    args = (*FEW, f"method={method}", f"precision={precision}")
    start = Server(build_experiment(tiny_settings(*args))).state.weights
    plain = trained(tiny_settings(*args, "capture=off"))
    again = trained(tiny_settings(*args, "capture=off"))
    recordings = list[Recording]()
    record = CudaGraphs.record

    def counted(graphs: CudaGraphs, step: Callable[[], None]) -> Recording:
        recordings.append(record(graphs, step))
        return recordings[-1]

    monkeypatch.setattr(CudaGraphs, "record", counted)
    with caplog.at_level(logging.WARNING, "fedml_dapper.capture"):
        recorded = trained(tiny_settings(*args))
    assert recordings or method in STEP_BY_STEP
    expected = STEP_BY_STEP.get(method)
    assert not caplog.messages if expected is None else any(expected in line for line in caplog.messages)
    assert distance(recorded, plain) <= 3 * distance(again, plain) + 0.02 * distance(plain, start)


def test_noise_goes_on_from_step_to_step() -> None:
    """Dropout draws anew in every replay: two replays of one batch differ."""
    step = torch.nn.Dropout(0.5).cuda()
    inputs = torch.ones(4096, device="cuda")
    outputs = torch.zeros(4096, device="cuda")
    recording = CudaGraphs(torch.device("cuda", 0)).record(lambda: outputs.copy_(step(inputs)))
    recording.replay()
    first = outputs.clone()
    recording.replay()
    assert not first.equal(outputs)


def test_nothing_more_is_recorded_after_a_capture_that_broke_off() -> None:
    graphs = CudaGraphs(torch.device("cuda", 0))
    value = torch.ones(8, device="cuda")
    stream = torch.cuda.current_stream()
    with pytest.raises(RuntimeError):
        graphs.record(lambda: value.add_(value.sum().item()))
    assert torch.cuda.current_stream() == stream
    with pytest.raises(RuntimeError, match="no more is recorded after one that broke off"):
        graphs.record(lambda: value.add_(1))


def trained(settings: Settings) -> Tensors:
    return simulate(build_experiment(settings))[0].state.weights


def distance(one: Tensors, other: Tensors) -> float:
    return float(sum((tensor.double() - other[name].double()).square().sum() for name, tensor in one.items())) ** 0.5
