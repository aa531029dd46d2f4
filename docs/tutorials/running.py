"""A notebook run as a reader runs it, and what of it is kept."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
_ROOT = FOLDER.parents[1]
_COLUMNS = "110"
_TIMEOUT_S = 900
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")


def executed(file: Path) -> Any:
    """The notebook after a run of all its cells, in a clone that is new but for what is installed.

    Raises ``nbclient.exceptions.CellExecutionError`` for the first cell that fails.
    """
    notebook = nbformat.read(file, as_version=4)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "docs" / "tutorials"
        place.mkdir(parents=True)
        for name in ("run", "config", "examples", ".venv"):
            (Path(scratch) / name).symlink_to(_ROOT / name)
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": scratch, "COLUMNS": _COLUMNS,
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        client = NotebookClient(
            notebook, timeout=_TIMEOUT_S, resources={"metadata": {"path": str(place)}},
            coalesce_streams=True,  # what a command prints comes in as many pieces as the machine likes
        )  # fmt: skip
        kernel = client.create_kernel_manager()
        kernel.transport, kernel.ip = "ipc", f"{scratch}/kernel"  # no port, which others on this machine could reach
        client.execute(env=environment)
    return notebook


def written(notebook: Any) -> str:
    """The file's text: without what differs from run to run, or says in words what a table or picture shows."""
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        for output in cell.get("outputs", ()):
            if "metadata" in output:
                output.metadata = {}
            if output.get("data", {}).keys() & {"text/html", "image/png"}:
                output.data.pop("text/plain", None)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return f"{nbformat.writes(notebook)}\n"


def shape(notebook: Any) -> list[list[str]]:
    """Each cell's output but for its numbers and pictures: what has to be there again in another run."""
    return [
        [_in_words(output) for output in cell.get("outputs", ())] for cell in notebook.cells if cell.cell_type == "code"
    ]


def _in_words(output: Any) -> str:
    if output.output_type == "stream":
        return f"{output.name}: {_without_numbers(output.text)}"
    return "; ".join(
        kind if kind.startswith("image/") else f"{kind}: {_without_numbers(text)}"
        for kind, text in sorted(output.data.items())
        if kind != "text/plain" or len(output.data) == 1
    )


def _without_numbers(text: str) -> str:
    """Numbers and the width of columns may differ between machines."""
    return re.sub(r"[\s─━═-]+", " ", _NUMBER.sub("0", text)).strip()
