"""How every figure looks: size, colours, markers, headings, the axis of rounds.

Figures are built without pyplot, so that drawing one leaves no global state behind.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from textwrap import wrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's colours, without the black of the most important line and the yellow that white paper swallows.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SHARES = LinearSegmentedColormap.from_list("shares", [(PALETTE[0], 0.0), (PALETTE[0], 1.0)])
"""From nothing to all, over whatever lies behind."""
WIDTH = 5.6
HEIGHT = 4.0
"""Inches, of figures that are files too."""
PANEL_WIDTH = 4.4
PANEL_HEIGHT = 3.4
"""Inches, of charts inside pages: on a phone, 10 pt labels are 11 pixels high."""
_MARKED_ROUNDS = 20
_LEGEND_COLUMNS, _LETTERS_PER_INCH, _HANDLE_LETTERS = 5, 12, 7  # what fits side by side below a figure
_NOTE_LETTERS_PER_INCH = 14


def canvas(heading: str, subtitle: str, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """A figure with one pair of axes below a heading and a line of what it was drawn from."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(heading, loc="left", fontweight="bold", pad=20)
    axes.annotate(subtitle, (0, 1), (0, 5), "axes fraction", "offset points", color="0.3")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def panel(height: float = PANEL_HEIGHT) -> tuple[Figure, Axes]:
    """A figure for a page, which says below it what it shows."""
    figure = Figure(figsize=(PANEL_WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def multiples(
    heading: str, subtitle: str, count: int, across: int = 2, height: float = 2.4, **subplots: Any
) -> tuple[Figure, list[Axes]]:
    """``count`` small axes, ``across`` in a row, each row ``height`` inches; further arguments are ``subplots``'s."""
    across = min(across, count)
    down = ceil(count / across)
    figure = Figure(figsize=(WIDTH, 0.7 + height * down), layout="constrained")
    title = figure.suptitle(f"{heading}\n ", x=0.02, ha="left", fontsize="large", fontweight="bold")
    figure.add_artist(Annotation(subtitle, (0, 0), xycoords=title, va="bottom", color="0.3", annotation_clip=False))
    grid = list(figure.subplots(down, across, squeeze=False, **subplots).flat)
    for unused in grid[count:]:
        unused.remove()
    for axes in grid[:count]:
        axes.tick_params(labelsize="small")
        axes.xaxis.label.set_fontsize("small")
        axes.yaxis.label.set_fontsize("small")
        if axes.name == "rectilinear":
            axes.spines[["top", "right"]].set_visible(False)
    return figure, grid[:count]


def below_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], note: str = "") -> None:
    """A legend below everything, under a line that explains it if there is one; the figure grows by what it needs."""
    width, height = figure.get_size_inches()
    letters = int(width * _LETTERS_PER_INCH) // (max(map(len, labels), default=0) + _HANDLE_LETTERS)
    across = max(1, min(_LEGEND_COLUMNS, letters))
    down = ceil(len(labels) / across)
    lines = wrap(note, int(width * _NOTE_LETTERS_PER_INCH))
    figure.set_size_inches(width, height + 0.1 + 0.15 * len(lines) + 0.21 * down)
    legend = figure.legend(
        handles=handles, labels=labels, loc="outside lower center", ncols=across, frameon=False,
        title="\n".join(lines), title_fontsize="small", columnspacing=1.2, handletextpad=0.5,
    )  # fmt: skip
    legend.get_title().set_horizontalalignment("center")


@contextmanager
def names_as_text(figure: Figure) -> Iterator[None]:
    """For drawing ``figure`` inside: a dollar sign in somebody's name begins no formula, and letters that matplotlib's
    font lacks are no news. Powers of ten, which a logarithmic axis writes as formulas, stay such."""
    powers = set[Text]()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = axis.get_ticklabels(which="both")  # which makes them, and not only when they are drawn
            powers |= set(labels) if axis.get_scale() == "log" else set()
    for text in figure.findobj(Text):
        if text not in powers:
            text.set_parse_math(False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from")
        yield


def label_once(grid: Sequence[Axes]) -> None:
    """Leave the unit that all of ``grid`` share to the first axes of each row."""
    for axes in grid:
        place = axes.get_subplotspec()
        if place is not None and not place.is_first_col():
            axes.set_ylabel("")


def label_rounds(axes: Axes, last_round: int, unit: str) -> None:
    """Rounds across, ``unit`` up."""
    axes.set_xlim(0.5, last_round + 0.5)
    axes.set_xlabel("round")
    axes.set_ylabel(unit)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.grid(alpha=0.3)


def markers(place: int, count: int) -> dict[str, Any]:
    """What ``plot`` needs to mark a line of ``count`` points, the ``place``-th of its figure, now and then."""
    every = max(1, count // _MARKED_ROUNDS)
    return {"marker": MARKERS[place % len(MARKERS)], "markersize": 4, "markevery": every}
