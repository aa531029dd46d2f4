"""Counted memory of training, held against what a process really takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import torch
from torch.nn import functional as F
from fedml_dapper.config import AdapterArgs, TrainArgs
from fedml_dapper.methods.contract.local_training import new_optimizer, training_memory
from fedml_dapper.models import adopt
from fedml_dapper.models.adapters import add_adapters
from fedml_dapper.process.freed_memory import freed_memory_kept
from fedml_dapper.process.rss import peak_extra_bytes
from fedml_dapper.pruning import DENSE, slim_model, trace_layout
from tests.adapters import strangers

strangers.WIDTH, strangers.HEADS, strangers.INNER, strangers.DEPTH, strangers.LENGTH = 192, 6, 768, 4, 48
torch.set_num_threads(1)
BATCH = 16
ids = torch.randint(1, strangers.TOKENS, (BATCH, strangers.LENGTH))
text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
network, inputs, targets = {
    "bert": lambda: (strangers.Bert(2), {**text, "token_type_ids": torch.zeros_like(ids)}, torch.zeros(BATCH).long()),
    "gpt2": lambda: (strangers.GPT2(), text, ids),
}[sys.argv[1]]()
one = {name: part[:1] for name, part in inputs.items()}
backbone = adopt(network, one)
add_adapters(backbone, AdapterArgs(rank=4), one, "the network")
layout = trace_layout(backbone, one, "internal")
args = TrainArgs(batch_size=BATCH, client_optimizer="adamw")


def train():
    model = slim_model(backbone, layout, DENSE).train()
    optimizer = new_optimizer(args, [each for each in model.parameters() if each.requires_grad], 0.01)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        outputs = model(inputs)
        F.cross_entropy(outputs.flatten(0, -2), targets.flatten()).backward()
        optimizer.step()


train()  # the first time loads code
counted = training_memory(slim_model(backbone, layout, DENSE), one, args).peak(BATCH)
with freed_memory_kept():
    print(counted / peak_extra_bytes(train))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read as Linux tells it")
@pytest.mark.parametrize("network", ["bert"])
def test_a_network_with_adapters_takes_what_is_counted(network: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, network], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert 0.85 <= float(answer.stdout) <= 1.15
