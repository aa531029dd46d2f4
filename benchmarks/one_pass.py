"""A step of several clients in one pass (``torch.func.vmap``) against their steps one after another.

Methods whose clients train networks of one shape could take them together. Eager steps and the pass do the same work:
gradients of each client's own weights on its own batch, and SGD.
"""

from __future__ import annotations

from collections.abc import Callable

import click
import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F

from benchmarks.networks import Networks, network_options
from benchmarks.output import Figure, Findings, json_option
from benchmarks.paired import median_ratio, time_in_turns
from fedml_dapper.config import Norm
from fedml_dapper.models import Backbone

_RATE = 0.01


@click.command()
@network_options
@click.option("--clients", "counts", multiple=True, type=int, default=(2, 10), show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--runs", default=5, show_default=True)
@click.option("--threads", default=1, show_default=True)
@json_option
def main(
    model: str, width: int | None, norm: Norm, input_size: int, batch: int, counts: tuple[int, ...], device: str,
    runs: int, threads: int, as_json: bool,
) -> None:  # fmt: skip
    """Milliseconds of a client's step, alone and in one pass with others. Skips a GPU that is not there."""
    if device == "cuda" and not torch.cuda.is_available():
        click.echo("skipped: torch finds no GPU on this machine", err=True)
        return
    torch.set_num_threads(threads)
    networks = Networks(model, width, norm, input_size, batch, device)
    rows = [_row(networks, count, runs) for count in counts]
    Findings(f"A client's step of {networks}, {device}", runs, rows).show(as_json)


def _row(networks: Networks, clients: int, runs: int) -> dict[str, Figure]:
    models = [networks.slim(0.0).train() for _ in range(clients)]
    steps = [networks.step(model, "fp32") for model in models]

    def one_after_another() -> None:
        for step in steps:
            step()
        _wait(networks.device)

    seconds = time_in_turns({"eager": one_after_another, "one pass": _together(networks, models)}, runs)
    return {
        "clients": clients,
        "eager, ms": 1e3 * min(seconds["eager"]) / clients,
        "one pass, of that": median_ratio(seconds["one pass"], seconds["eager"]),
    }


def _together(networks: Networks, models: list[Backbone]) -> Callable[[], None]:
    """A step of all ``models``, each on its own weights."""
    weights, buffers = stack_module_state(models)
    images = torch.randn(networks.batch, 3, networks.input_size, networks.input_size, device=networks.device)
    labels = torch.arange(networks.batch, device=networks.device) % 10

    def loss(own: dict[str, Tensor], statistics: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(functional_call(models[0], (own, statistics), images), labels)

    gradients = vmap(grad(loss))

    def step() -> None:
        found = gradients(weights, buffers)
        with torch.no_grad():
            for name, weight in weights.items():
                weight.sub_(found[name], alpha=_RATE)
        _wait(networks.device)

    return step


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
