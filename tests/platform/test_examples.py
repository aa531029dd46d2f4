"""What stands in examples/, as a user starts it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedml_dapper.config import Reference
from fedml_dapper.federation import read_ledger
from fedml_dapper.registry import load

from .conftest import OfflineProcess

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.nightly
def test_a_network_of_one_s_own_is_pruned_and_trained(offline: OfflineProcess) -> None:
    experiment = EXAMPLES / "own_model" / "experiment.yaml"
    finished = offline.run("-m", "fedml_dapper", "--cf", experiment, "--output", "run")
    assert finished.returncode == 0, finished.stderr
    assert "Net under dapperfl" in finished.stdout
    run, rounds = read_ledger(offline.folder / "run" / "ledger.jsonl")
    assert run.sources["model_args.model"].startswith("my_model.py:Net (source ")
    assert rounds[-1].scores is not None
    assert rounds[-1].scores.global_accuracy > 20  # ten classes: chance is 10
    assert len({client.params for client in rounds[-1].clients}) == 4
    net = load(Reference(str(EXAMPLES / "own_model" / "my_model.py"), "Net"), "test")(10, channels=64)  # type: ignore[operator]
    net.load_state_dict(load_file(offline.folder / "run" / "global_model.safetensors"))
    assert net(torch.zeros(1, 3, 16, 16)).shape == (1, 10)
