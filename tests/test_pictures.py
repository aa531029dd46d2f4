"""The pictures of the pages: what the code draws is what is committed, and can be read."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from PIL import Image, ImageFont

from docs.pictures import levels, memory, recording, rooms
from docs.pictures.canvas import WIDTH
from docs.pictures.gallery import DRAWINGS, FOLDER, PICTURES, drawn
from docs.pictures.take import PHOTOGRAPHS

from .test_architecture import FLOORS, PACKAGE

FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans-Bold.ttf"
"""Wider than what browsers show: where its texts fit, others do."""
SVG = "{http://www.w3.org/2000/svg}"
MOST_BYTES = 80_000
MOST_BYTES_OF_PHOTOGRAPHS = 500_000


def committed(name: str) -> str:
    return (FOLDER / f"{name}.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name == "memory" else name for name in DRAWINGS]
)
def test_what_is_committed_is_what_the_code_draws(name: str) -> None:
    assert drawn(name) == committed(name), "run: python -m docs.pictures"


def test_every_file_has_code_that_makes_it() -> None:
    assert sorted(file.stem for file in FOLDER.glob("*.svg")) == sorted(DRAWINGS)
    assert sorted(file.stem for file in FOLDER.glob("*.png")) == sorted(PHOTOGRAPHS)


@pytest.mark.parametrize("name", DRAWINGS)
def test_screen_readers_have_something_to_say_and_the_file_is_small(name: str) -> None:
    root = ElementTree.fromstring(committed(name))
    assert root.findtext(f"{SVG}title")
    assert len(root.findtext(f"{SVG}desc") or "") > 80
    assert len(committed(name).encode()) < MOST_BYTES


@pytest.mark.parametrize("name", PICTURES)
def test_texts_are_large_enough_and_none_is_cut_off(name: str) -> None:
    root = ElementTree.fromstring(committed(name))
    height = float(root.attrib["height"])
    for text in root.iter(f"{SVG}text"):
        size, x, y = (float(text.attrib[key]) for key in ("font-size", "x", "y"))
        length = ImageFont.truetype(str(FONT), int(size)).getlength(text.text or "")
        left = x - {"start": 0, "middle": length / 2, "end": length}[text.attrib.get("text-anchor", "start")]
        assert size >= 12, text.text
        assert left >= 0, text.text
        assert left + length <= WIDTH, text.text
        assert size <= y <= height - size / 4, text.text


@pytest.mark.parametrize("name", PICTURES)
def test_no_box_is_without_an_area(name: str) -> None:
    for box in ElementTree.fromstring(committed(name)).iter(f"{SVG}rect"):
        assert min(float(box.attrib[side]) for side in ("width", "height")) > 0


@pytest.mark.parametrize("name", [*(f"{name}.svg" for name in DRAWINGS), *(f"{name}.png" for name in PHOTOGRAPHS)])
def test_a_page_shows_it_and_says_what_it_shows(name: str) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in FOLDER.parent.glob("*.md"))
    [alt] = set(re.findall(rf"!\[([^]]*)\]\(pictures/{re.escape(name)}\)", pages))
    assert len(alt) > 20


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_photographs_have_the_size_that_is_asked_for_and_are_small(name: str) -> None:
    file = FOLDER / f"{name}.png"
    with Image.open(file) as picture:
        assert picture.size == PHOTOGRAPHS[name][:2]
    assert file.stat().st_size < MOST_BYTES_OF_PHOTOGRAPHS / len(PHOTOGRAPHS)


def test_what_the_quickstart_prints_fits_80_columns_and_tells_no_place_of_anybody() -> None:
    command, printed = recording.lines()
    assert command.startswith("fedml-dapper run -c config/quickstart.yaml")
    assert max(len(line.text) for line in printed) <= recording.COLUMNS
    assert [line.at_s for line in printed] == sorted(line.at_s for line in printed)
    texts = [line.text.strip() for line in printed]
    levels, first_round = (
        next(n for n, text in enumerate(texts) if text.startswith(s)) for s in ("Levels:", "round 1/")
    )
    assert levels < first_round < next(n for n, text in enumerate(texts) if "What each device gets" in text)
    assert texts[-1] == "Report: /tmp/demo/runs/first/report.html"


def test_the_house_has_all_rooms_on_their_floors() -> None:
    height = {name: floor for floor, names in enumerate(FLOORS) for name in names}
    drawn = [[height[name.rstrip("/")] for name, _ in floor] for _, floor in rooms.FLOORS]
    folders = {file.parent.name for file in PACKAGE.glob("*/__init__.py")}
    assert {name.rstrip("/") for _, floor in rooms.FLOORS for name, _ in floor} == folders
    assert all(len(set(floor)) == 1 for floor in drawn)
    assert [floor[0] for floor in drawn] == sorted((floor[0] for floor in drawn), reverse=True)


@pytest.mark.long
@pytest.mark.parametrize("method", ["dapperfl", "dapperfl_slim"])
def test_the_tallest_bar_is_the_peak_that_the_footprint_says(method: str) -> None:
    held = memory.held(method)
    assert len(held.epochs) == 5
    assert max(map(sum, held.epochs)) == held.peak


def test_all_rows_of_the_adapters_table_are_read() -> None:
    names, rows = levels.table("adapters_on_digits", levels=3)
    assert names[0] == "level 1 (rank 8)"
    assert {len(values) for _, values in rows} == {len(names)} == {3}


def test_all_rows_of_the_levels_table_are_read() -> None:
    names, rows = levels.table()
    assert names[0].startswith("level 1")
    assert {len(values) for _, values in rows} == {len(names)} == {5}
    assert any("dapperfl_slim" in name for name, _ in rows)
