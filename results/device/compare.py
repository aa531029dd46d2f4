"""How far two runs of one experiment are apart: ``python results/device/compare.py RUN RUN``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from fedml_dapper.federation import read_ledger


def distance(first: Path, second: Path) -> str:
    """The largest absolute difference of two files' values, and the distance relative to the norm of all of them."""
    one = load_file(first)
    other = load_file(second)
    if {name: tensor.shape for name, tensor in one.items()} != {name: tensor.shape for name, tensor in other.items()}:
        raise ValueError(f"{first} and {second} hold other tensors")
    values = torch.cat([tensor.double().flatten() for tensor in one.values()])
    others = torch.cat([other[name].double().flatten() for name in one])
    apart = (values - others).abs()
    worst = max(one, key=lambda name: float((one[name].double() - other[name].double()).abs().max()))
    largest = float(one[worst].double().abs().max())
    return (
        f"{int(apart.eq(0).sum())} of {len(values)} values equal, largest difference {float(apart.max()):.1e}"
        f" (in {worst}, whose largest value is {largest:.1e}), relative {float(apart.norm() / values.norm()):.1e}"
    )


def lines(one: Path, other: Path) -> Iterator[str]:
    """One of each upload, of the global model, and of each loss of the ledgers."""
    for path in sorted((one / "uploads").iterdir()):
        twin = other / "uploads" / path.name
        with safe_open(path, "pt") as first, safe_open(twin, "pt") as second:
            plans = "same channels" if first.metadata()["plan"] == second.metadata()["plan"] else "OTHER CHANNELS"
        yield f"{path.stem}: {distance(path, twin) if plans == 'same channels' else ''}, {plans}"
    model = Path("server") / "global_model.safetensors"
    yield f"global model: {distance(one / model, other / model)}"
    _, first_rounds = read_ledger(one / "server" / "ledger.jsonl")
    _, second_rounds = read_ledger(other / "server" / "ledger.jsonl")
    for before, after in zip(first_rounds, second_rounds, strict=True):
        for client, twin_client in zip(before.clients, after.clients, strict=True):
            apart = abs(client.loss - twin_client.loss)
            losses = f"{client.loss:.7f} and {twin_client.loss:.7f}"
            yield f"round {before.round}, client {client.client}: loss {losses}, {apart:.1e} apart"
        accuracies = (before.scores.global_accuracy, after.scores.global_accuracy)
        yield f"round {before.round}: global accuracy {accuracies[0]:.2f} and {accuracies[1]:.2f} %"


if __name__ == "__main__":
    for line in lines(Path(sys.argv[1]), Path(sys.argv[2])):
        print(line)
