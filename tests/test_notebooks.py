"""The notebooks of docs/tutorials: they run from a bare install, and what is kept of them is what they show."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import nbformat
import pytest

from docs.tutorials.running import FOLDER, executed, shape, written

from .test_prose import broken, links

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
RING_OF = {"which_devices": pytest.mark.long}
"""The ring of the notebook that trains least; the others run at night."""
MOST_BYTES = 150_000


def kept(file: Path) -> Any:
    return nbformat.read(file, as_version=4)


def outputs(notebook: Any) -> list[str]:
    return [
        str(text)
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        for kind, text in {"text": output.get("text", ""), **output.get("data", {})}.items()
        if not kind.startswith("image/")
    ]


@pytest.mark.parametrize(
    "file", [pytest.param(file, marks=RING_OF.get(file.stem, pytest.mark.nightly), id=file.stem) for file in NOTEBOOKS]
)
def test_it_runs_and_shows_what_is_kept(file: Path) -> None:
    assert shape(executed(file)) == shape(kept(file)), f"run: python -m docs.tutorials {file.stem}"


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_it_is_kept_with_its_output_and_nothing_of_the_machine(file: Path) -> None:
    notebook = kept(file)
    assert [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"] == list(
        range(1, sum(cell.cell_type == "code" for cell in notebook.cells) + 1)
    )
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ()))
    assert file.stat().st_size < MOST_BYTES
    assert written(notebook) == file.read_text(encoding="utf-8"), f"run: python -m docs.tutorials {file.stem}"
    for text in outputs(notebook):
        assert not re.search(r"/(?:tmp|home|root|work|usr|Users)/|\d\d:\d\d:\d\d|20\d\d-\d\d-\d\d", text), text
        assert socket.gethostname() not in text


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_its_links_lead_somewhere(file: Path) -> None:
    text = "\n\n".join(cell.source for cell in kept(file).cells if cell.cell_type == "markdown")
    assert [wrong for link in links(text) if (wrong := broken(link, file))] == []


def test_numbers_may_differ_and_words_may_not() -> None:
    def notebook(text: str) -> Any:
        return nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell("x", outputs=[nbformat.v4.new_output("stream", text=text)])]
        )

    assert shape(notebook("accuracy  41.5 %")) == shape(notebook("accuracy 8 %"))
    assert shape(notebook("accuracy 41.5 %")) != shape(notebook("loss 41.5 %"))
    assert shape(notebook("accuracy 41.5 %")) != shape(notebook("accuracy 41.5 %\n1 warning"))
