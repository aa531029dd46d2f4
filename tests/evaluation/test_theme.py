"""Charts in both themes: every colour stands out from the page, and order stays order."""

from __future__ import annotations

import pytest
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from fedml_dapper.evaluation.chart import inline_svg
from fedml_dapper.evaluation.style import PALETTE
from fedml_dapper.evaluation.theme import colour_variables, dark_variant, themed

PAGE = "15191d"


def luminance(colour: str) -> float:
    """Relative, as WCAG defines it."""
    channels = [value / 255 for value in bytes.fromhex(colour.removeprefix("#"))]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colour", [*PALETTE, "#440154", "#000000", "#4d4d4d"])
def test_lines_and_letters_stand_out_in_the_dark(colour: str) -> None:
    assert contrast(dark_variant(colour[1:].lower()), PAGE) > 3


def test_white_becomes_the_dark_page_and_black_its_ink() -> None:
    assert dark_variant("ffffff") == f"#{PAGE}"
    assert contrast(dark_variant("000000"), PAGE) > 12


def test_levels_go_from_dark_to_light_in_both_themes() -> None:
    levels = [to_hex(colormaps["viridis"](0.88 * place / 4))[1:] for place in range(5)]
    for shown in (levels, [dark_variant(colour) for colour in levels]):
        assert [luminance(colour) for colour in shown] == sorted(luminance(colour) for colour in shown)


def test_every_colour_in_use_is_defined_and_no_other() -> None:
    css = colour_variables(f'<circle fill="{themed("#0072B2")}"/>')
    assert css.count("--c") == 2
    assert "--c0072b2:#0072b2;" in css
    assert colour_variables("<p>no chart</p>") == ""


def test_charts_of_one_page_do_not_share_names() -> None:
    drawn = []
    for value in (1, 2):
        figure = Figure()
        figure.add_subplot().plot([0, value], marker="o")
        drawn.append(inline_svg(figure))
    names = [{part.split('"')[0] for part in svg.split(' id="')[1:]} for svg in drawn]
    assert names[0]
    assert not names[0] & names[1]
    for svg, known in zip(drawn, names, strict=True):
        assert {part.split('"')[0] for part in svg.split('href="#')[1:]} <= known
