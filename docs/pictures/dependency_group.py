"""Channels that go together in a residual block; the package finds the group, ranks its channels and cuts them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from docs.pictures.canvas import Colour, Picture
from fedml_dapper.pruning import ChannelLayout, PruningPlan, importance, plan_by_importance, slim_tensors, trace_layout

_INPUTS, _CHANNELS, _KEPT = 3, 6, 4
_CELL = 22
_GROUP = "first"


class _Block(nn.Module):
    """conv -> norm, a shortcut beside it, add, conv; and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(_INPUTS, _CHANNELS, 1, bias=False)
        self.norm = nn.BatchNorm2d(_CHANNELS)
        self.shortcut = nn.Conv2d(_INPUTS, _CHANNELS, 1, bias=False)
        self.last = nn.Conv2d(_CHANNELS, _KEPT, 1, bias=False)
        self.predictor = nn.Linear(_KEPT, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.last((self.norm(self.first(x)) + self.shortcut(x)).relu())
        return self.predictor(z.mean((2, 3)))  # type: ignore[no-any-return]  # torch types calls of layers so


def _network() -> _Block:
    block = _Block()
    with torch.no_grad():
        block.first.weight.copy_(torch.tensor([3, 1, 4, 1, 2, 5]).view(-1, 1, 1, 1))
        block.shortcut.weight.copy_(torch.tensor([1, 1, 2, 4, 0, 2]).view(-1, 1, 1, 1))
    return block


def picture() -> Picture:
    block = _network()
    layout = trace_layout(block, torch.zeros(1, _INPUTS, 4, 4), "grouped")
    [group] = [name for name, one in layout.groups.items() if f"{_GROUP}.weight" in one.producers]
    plan = plan_by_importance(layout, block.state_dict(), {group: _KEPT})
    scores = [int(score) for score in importance(layout, group, block.state_dict()).tolist()]
    kept = set(plan.kept[group].tolist())
    shapes = _shapes(block, layout, plan)
    drawn = Picture(
        "Cutting channels along a dependency group",
        "A convolution and its norm, and a shortcut convolution, are added; another convolution reads the sum. A"
        " channel is a row of both convolutions, an entry of the norm and a column of the reader. It is cut in all of"
        f" them or in none. Of {_CHANNELS} channels, the {_KEPT} with the largest l1 norm over both convolutions stay.",
        height=476,
    )
    drawn.text(16, 216, "input", size=15, bold=True)
    drawn.text(16, 236, f"{_INPUTS} channels", size=13)
    drawn.arrow((60, 196), (60, 122), (118, 122))
    drawn.arrow((60, 246), (60, 340), (118, 340))
    _matrix(drawn, 124, 56, "conv: rows", shapes["first.weight"], rows=kept, colour="orange")
    drawn.arrow((196, 122), (292, 122))
    _matrix(drawn, 298, 56, "norm: entries", shapes["norm.weight"], rows=kept, colour="green")
    _matrix(drawn, 124, 274, "shortcut conv: rows", shapes["shortcut.weight"], rows=kept, colour="orange")
    drawn.arrow((326, 122), (420, 122), (420, 214))
    drawn.arrow((196, 340), (420, 340), (420, 246))
    drawn.circle(420, 230, 14, colour="ink", fill="tint")
    drawn.text(420, 236, "+", size=18, anchor="middle", bold=True)
    drawn.arrow((436, 230), (480, 230))

    drawn.text(486, 138, "channel", size=12, colour="soft")
    drawn.text(548, 138, "l1 norm", size=12, colour="soft")
    for channel, score in enumerate(scores):
        y = 164 + channel * 26
        stays = channel in kept
        drawn.circle(500, y, 8, colour="blue" if stays else "soft", fill="full" if stays else "dash")
        drawn.text(518, y + 5, str(channel), size=13)
        drawn.text(574, y + 5, str(score), size=14, anchor="middle", bold=True)
        if not stays:
            drawn.text(596, y + 5, "cut", size=13, colour="soft")
    drawn.lines(486, 332, "sum over all filters", "that make the channel", size=12, colour="soft")
    drawn.arrow((624, 230), (676, 230))
    _matrix(drawn, 684, 186, "next conv: columns", shapes["last.weight"], columns=kept, colour="purple")
    drawn.text(16, 462, "A dashed cell is cut. What is left is a smaller tensor: nothing is masked.", size=13)
    return drawn


def _shapes(block: nn.Module, layout: ChannelLayout, plan: PruningPlan) -> dict[str, tuple[Tensor, Tensor]]:
    """Each tensor as it was and as it is cut."""
    dense = block.state_dict()
    slim = slim_tensors(dense, layout, plan)
    return {name: (dense[name], slim[name]) for name in dense}


def _matrix(
    drawn: Picture, left: float, top: float, name: str, tensors: tuple[Tensor, Tensor], *, colour: Colour,
    rows: set[int] | None = None, columns: set[int] | None = None,
) -> None:  # fmt: skip
    """A tensor's first two axes as cells, its name above and its shapes, dense and slim, below."""
    dense, slim = tensors
    height, width = (*dense.shape, 1)[:2]
    for row in range(height):
        for column in range(width):
            stays = (rows is None or row in rows) and (columns is None or column in columns)
            x, y = left + column * _CELL, top + row * _CELL
            drawn.box(x + 1, y + 1, _CELL - 2, _CELL - 2, colour=colour if stays else "soft",
                      fill="full" if stays else "dash", round_by=3)  # fmt: skip
    drawn.text(left, top - 12, name, size=14, bold=True)
    drawn.text(left, top + height * _CELL + 20, f"{_shape(dense)} → {_shape(slim)}", size=13)


def _shape(tensor: Tensor) -> str:
    return "×".join(str(size) for size in tensor.shape[:2])
