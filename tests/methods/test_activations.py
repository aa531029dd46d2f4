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
