"""Style of all figures: size, colours, markers, headings, the axis of rounds.

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

# Okabe and Ito's colours, without black, which the most important line has, and yellow, which is faint on white
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SHARES = LinearSegmentedColormap.from_list("shares", [(PALETTE[0], 0.0), (PALETTE[0], 1.0)])
"""Colours from 0 to 1, transparent to opaque."""
WIDTH = 5.6
HEIGHT = 4.0
"""Size in inches of figures that are files too."""
PANEL_WIDTH = 4.4
PANEL_HEIGHT = 3.4
"""Size in inches of charts inside pages: on a phone, 10 pt labels are 11 pixels high."""
_MARKED_ROUNDS = 20
_LEGEND_COLUMNS, _LETTERS_PER_INCH, _HANDLE_LETTERS = 5, 12, 7  # what fits side by side below a figure
_NOTE_LETTERS_PER_INCH = 14


def canvas(heading: str, subtitle: str, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes below a heading, and a line on what it was drawn from."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(heading, loc="left", fontweight="bold", pad=20)
    axes.annotate(subtitle, (0, 1), (0, 5), "axes fraction", "offset points", color="0.3")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def panel(height: float = PANEL_HEIGHT) -> tuple[Figure, Axes]:
    """Return a figure for a page, whose caption is in the page."""
    figure = Figure(figsize=(PANEL_WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def multiples(
    heading: str, subtitle: str, count: int, height: float = 2.4, **subplots: Any
) -> tuple[Figure, list[Axes]]:
    """Return ``count`` small axes, two in a row, each row ``height`` inches; ``subplots`` are passed to matplotlib."""
    across = min(2, count)
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
    """Add a legend below everything, under a note if there is one; the figure grows by what it needs."""
    width, height = figure.get_size_inches()
    letters = int(width * _LETTERS_PER_INCH) // (max(map(len, labels), default=0) + _HANDLE_LETTERS)
    across = max(1, min(_LEGEND_COLUMNS, letters))
    down = ceil(len(labels) / across)
    lines = wrap(note, int(width * _NOTE_LETTERS_PER_INCH))
    figure.set_size_inches(width, height + 0.1 + 0.15 * len(lines) + 0.21 * down)
    legend = figure.legend(
        handles=handles,
        labels=labels,
        loc="outside lower center",
        ncols=across,
        frameon=False,
        title="\n".join(lines),
        title_fontsize="small",
        columnspacing=1.2,
        handletextpad=0.5,
    )
    legend.get_title().set_horizontalalignment("center")


@contextmanager
def names_as_text(figure: Figure) -> Iterator[None]:
    """Let ``figure`` be drawn inside with dollar signs in names as text, and without warnings on scripts of names.

    LaTeX has no part in it, whatever this machine's ``matplotlibrc`` says. Powers of ten, which a logarithmic axis
    writes as formulas, stay formulas.
    """
    powers = set[Text]()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = axis.get_ticklabels(which="both")  # creates the labels, which otherwise happens in drawing
            powers |= set(labels) if axis.get_scale() == "log" else set()
    for text in figure.findobj(Text):
        text.set_usetex(False)
        if text not in powers:
            text.set_parse_math(False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from")
        warnings.filterwarnings("ignore", r"Matplotlib currently does not support .* natively")  # before 3.11
        yield


def label_once(grid: Sequence[Axes]) -> None:
    """Keep the label that the y axes of ``grid`` share at the first axes of each row alone."""
    for axes in grid:
        place = axes.get_subplotspec()
        if place is not None and not place.is_first_col():
            axes.set_ylabel("")


def label_rounds(axes: Axes, last_round: int, unit: str) -> None:
    """Label the x axis with rounds, and the y axis with ``unit``."""
    axes.set_xlim(0.5, last_round + 0.5)
    axes.set_xlabel("round")
    axes.set_ylabel(unit)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.grid(alpha=0.3)


def markers(place: int, count: int) -> dict[str, Any]:
    """Return the arguments of ``plot`` that mark some of ``count`` points, for the ``place``-th line of a figure."""
    every = max(1, count // _MARKED_ROUNDS)
    return {"marker": MARKERS[place % len(MARKERS)], "markersize": 4, "markevery": every}
