from __future__ import annotations

import torch
from torch import nn

from fedml_dapper.methods.parts.activations import observed


def test_inputs_and_outputs_are_seen_while_observed_and_carry_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.randn(4, 2)
    with observed(model, ["0", "2"]) as seen:
        y = model(x)
        assert seen["0"].input is not None
        torch.testing.assert_close(seen["2"].input, model[1](model[0](x)).detach())
        assert torch.equal(seen["2"].output, y)
        assert not seen["2"].output.requires_grad
    last = seen["2"].output
    model(x + 1)
    assert seen["2"].output is last


def test_what_a_later_layer_overwrites_is_seen_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True), nn.Linear(3, 2))
    x = torch.randn(16, 2)
    with observed(model, ["0"]) as seen:
        model(x)
    torch.testing.assert_close(seen["0"].output, model[0](x).detach())
    assert seen["0"].output.min() < 0
