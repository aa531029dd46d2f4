"""A federation with two clients that send the opposite of what they learned, as an outsider would try a defence: a file
for the clients, a YAML for the server, the command line, and the ledger read as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .test_own_pictures import fedml_dapper

TWO_SIDES = '''
from dataclasses import replace

from fedml_dapper.methods import Method, MethodParams


class TwoSides(Method[MethodParams]):
    """FedAvg, in which clients 3 and 4 send the opposite."""

    name = "two_sides"
    Params = MethodParams

    def local_update(self, client, downlink):
        upload = super().local_update(client, downlink)
        if client.profile.client_id not in (3, 4):
            return upload
        before = downlink.weights
        return replace(upload, weights={name: 2 * before[name] - new for name, new in upload.weights.items()})
'''
EXPERIMENT = """
common_args: {random_seed: 1}
data_args: {dataset: digits_offline}
model_args: {model: resnet10, width: 8, norm: standardised}
train_args: {client_num_in_total: 10, client_num_per_round: 10, comm_round: 4, epochs: 2, batch_size: 16,
             client_optimizer: sgd, learning_rate: 0.05, momentum: 0.9, max_grad_norm: 2}
dapper_args:
  method: two_sides.py:TwoSides
"""
SCREENED = "  defence: {aggregation: screened_mean}\n"


@pytest.mark.nightly
@pytest.mark.parametrize("defence", ["", SCREENED], ids=["mean", "screened_mean"])
def test_who_works_against_the_others_is_named_and_does_not_count(defence: str, tmp_path: Path) -> None:
    (tmp_path / "two_sides.py").write_text(TWO_SIDES)
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT + defence)
    finished = fedml_dapper("run", "-c", "experiment.yaml", "--output", "run", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    rounds = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()[1:]]
    left_out = [{one["client"] for one in each["clients"] if one["counted"] == 0} for each in rounds]
    assert len(left_out) == 4
    if not defence:
        assert not any(left_out)
        return
    assert sum({3, 4} <= clients for clients in left_out) >= 3  # early rounds are a matter of chance
    assert "left out clients 3, 4" in " ".join(finished.stderr.split())
