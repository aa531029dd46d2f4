"""Recurrent layers: their multiply-accumulates by hand, and budgets of networks that have some."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fedml_dapper.pruning import footprint, slim_model, solve_widths, trace_layout
from fedml_dapper.pruning.footprint import count_macs
from fedml_dapper.pruning.plan import plan_window

STEPS, FEATURES, HIDDEN, CLASSES = 12, 10, 16, 4
WORDS = torch.zeros(1, STEPS, dtype=torch.int64)
HEAD = HIDDEN * CLASSES


class Reader(nn.Module):
    """Words, a recurrent layer, and a head on its last output."""

    def __init__(self, layer: nn.Module, width: int = HIDDEN, read: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(50, FEATURES), layer, nn.Linear(width, CLASSES)
        self.read = read or (lambda layer, x: layer(x)[0][:, -1])

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.read(self.layer, self.words(words)))  # type: ignore[no-any-return]


def step_by_step(cell: Any, x: Tensor) -> Tensor:
    state = None
    for position in range(x.shape[1]):
        state = cell(x[:, position], state)
    return state if isinstance(state, Tensor) else state[0]  # type: ignore[index]


def packed(layer: Any, x: Tensor) -> Tensor:
    sequence = pack_padded_sequence(x, torch.full((len(x),), STEPS), batch_first=True)
    return pad_packed_sequence(layer(sequence)[0], batch_first=True)[0][:, -1]


def gates(number: int, inputs: int = FEATURES, outputs: int = HIDDEN, back: int = HIDDEN) -> int:
    """Of one layer and direction: each gate reads the inputs and what comes back of the step before."""
    return STEPS * number * outputs * (inputs + back)


LAYERS: Mapping[str, tuple[Callable[[], nn.Module], int]] = {
    "LSTM": (lambda: Reader(nn.LSTM(FEATURES, HIDDEN, batch_first=True)), gates(4) + HEAD),
    "GRU": (lambda: Reader(nn.GRU(FEATURES, HIDDEN, batch_first=True)), gates(3) + HEAD),
    "RNN": (lambda: Reader(nn.RNN(FEATURES, HIDDEN, batch_first=True)), gates(1) + HEAD),
    "RNN of rectifiers": (
        lambda: Reader(nn.RNN(FEATURES, HIDDEN, nonlinearity="relu", bias=False, batch_first=True)), gates(1) + HEAD
    ),
    "without biases": (lambda: Reader(nn.LSTM(FEATURES, HIDDEN, bias=False, batch_first=True)), gates(4) + HEAD),
    "steps first": (
        lambda: Reader(nn.LSTM(FEATURES, HIDDEN), read=lambda layer, x: layer(x.transpose(0, 1))[0][-1]),
        gates(4) + HEAD,
    ),
    "two layers": (
        lambda: Reader(nn.LSTM(FEATURES, HIDDEN, 2, batch_first=True, dropout=0.5)),
        gates(4) + gates(4, HIDDEN) + HEAD,
    ),
    "both directions": (
        lambda: Reader(nn.GRU(FEATURES, HIDDEN, bidirectional=True, batch_first=True), 2 * HIDDEN),
        2 * gates(3) + 2 * HEAD,
    ),
    "two layers in both directions": (
        lambda: Reader(nn.LSTM(FEATURES, HIDDEN, 2, bidirectional=True, batch_first=True), 2 * HIDDEN),
        2 * gates(4) + 2 * gates(4, 2 * HIDDEN) + 2 * HEAD,
    ),
    "projections": (
        lambda: Reader(nn.LSTM(FEATURES, HIDDEN, proj_size=6, batch_first=True), 6),
        gates(4, back=6) + STEPS * HIDDEN * 6 + 6 * CLASSES,
    ),
    "projections of two layers": (
        lambda: Reader(nn.LSTM(FEATURES, HIDDEN, 2, proj_size=6, batch_first=True), 6),
        gates(4, back=6) + gates(4, 6, back=6) + 2 * STEPS * HIDDEN * 6 + 6 * CLASSES,
    ),
    "packed": (lambda: Reader(nn.LSTM(FEATURES, HIDDEN, batch_first=True), read=packed), gates(4) + HEAD),
    "LSTM's cell": (lambda: Reader(nn.LSTMCell(FEATURES, HIDDEN), read=step_by_step), gates(4) + HEAD),
    "GRU's cell": (lambda: Reader(nn.GRUCell(FEATURES, HIDDEN), read=step_by_step), gates(3) + HEAD),
    "RNN's cell": (lambda: Reader(nn.RNNCell(FEATURES, HIDDEN), read=step_by_step), gates(1) + HEAD),
    "RNN's cell of rectifiers": (
        lambda: Reader(nn.RNNCell(FEATURES, HIDDEN, nonlinearity="relu"), read=step_by_step), gates(1) + HEAD
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("kind", LAYERS)
def test_every_gate_is_counted_once_a_step(kind: str) -> None:
    make, expected = LAYERS[kind]
    layout = trace_layout(make().eval(), WORDS, None)
    assert count_macs(layout, {}) == footprint(layout, {}).macs == expected


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("kind", ["LSTM", "projections", "GRU's cell"])
def test_what_recurrent_layers_read_stays_whole(kind: str) -> None:
    layout = trace_layout(LAYERS[kind][0](), WORDS, "grouped")
    assert not layout.groups
    assert layout.notes[0].startswith("`words` not cut: a recurrent layer keeps its inputs in")


class Tagger(nn.Module):
    """A recurrent layer behind wide layers, as of 208,200 multiply-accumulates only the head's 200 once counted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(54, 50, batch_first=True)
        self.head = nn.Linear(50, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])  # type: ignore[no-any-return]


def test_the_head_is_not_all() -> None:
    layout = trace_layout(Tagger(), torch.zeros(1, 10, 54), None)
    assert count_macs(layout, {}) == 208_200


def test_a_ratio_of_flops_is_met_where_there_is_a_recurrent_layer() -> None:
    layer = nn.LSTM(FEATURES, HIDDEN, batch_first=True)
    network = nn.Sequential(Reader(layer).eval(), nn.Linear(CLASSES, 300), nn.ReLU(), nn.Linear(300, 60))
    layout = trace_layout(network, WORDS, "grouped")
    dense = gates(4) + HEAD + CLASSES * 300 + 300 * 60
    assert count_macs(layout, {}) == dense
    widths = solve_widths(layout, 0.4, "flops")
    assert count_macs(layout, widths) == pytest.approx(0.6 * dense, rel=0.01)
    slim = slim_model(network, layout, plan_window(layout, widths))
    assert slim(WORDS).shape == (1, 60)


class Products(nn.Module):
    """Matrix products that no layer makes."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(6, 5)), nn.Parameter(torch.ones(5))
        self.pair, self.head = nn.Bilinear(5, 5, 7), nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.addmm(self.b, x, self.w)  # 6 * 5
        x = torch.baddbmm(x[:, None], x[:, :, None], x[:, None])[:, 0]  # 5 * 5 of one summand
        x = x + torch.mv(x, self.b)[:, None]  # 5
        return self.head(self.pair(x, x))  # type: ignore[no-any-return]  # 7 * 5 * 5, 7 * CLASSES


def test_other_products_are_counted_too() -> None:
    layout = trace_layout(Products(), torch.zeros(1, 6), None)
    assert count_macs(layout, {}) == 6 * 5 + 5 * 5 + 5 + 7 * 5 * 5 + 7 * CLASSES
