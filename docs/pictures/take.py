"""``python -m docs.pictures.take FOLDER``: runs the quickstart in a folder, records what it prints, and photographs its
report in both themes, on a phone and on a desk. Takes a minute or two, and wants Chromium."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path

from PIL import Image

from docs.pictures.browser import Page, Theme, browser
from docs.pictures.recording import CAST, COLUMNS
from fedml_dapper.config import SHIPPED

PHOTOGRAPHS: dict[str, tuple[int, int, Theme]] = {
    f"report_{theme}_{width}": (width, height, theme)
    for width, height in ((1280, 1500), (390, 1500))
    for theme in ("light", "dark")
}
"""By the name of its file: width and height in pixels, and theme."""
_SHADES = 96
_COMMAND = "fedml-dapper run -c config/quickstart.yaml --set comm_round=5 --output runs/first"


def record(folder: Path) -> None:
    """Run the command in ``folder``, and write what it prints, and when."""
    (folder / "config").mkdir(parents=True, exist_ok=True)
    shutil.copy(SHIPPED / "quickstart.yaml", folder / "config")
    shutil.rmtree(folder / "runs", ignore_errors=True)
    words = _COMMAND.split()
    command = [sys.executable, "-m", "fedml_dapper.entry", *words[1:]]
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1"}
    head = {"version": 2, "width": COLUMNS, "height": 32, "command": _COMMAND}
    events, began = [json.dumps(head)], time.monotonic()
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            at_s = round(time.monotonic() - began, 2)
            events.append(json.dumps([at_s, "o", line.rstrip() + "\r\n"], ensure_ascii=False))
    if running.returncode:
        raise SystemExit("\n".join(events))
    CAST.write_text("\n".join(events) + "\n", encoding="utf-8")


def photograph(page: Page, file: Path, name: str) -> None:
    """Write the top of ``file`` as the PNG that is called ``name``."""
    width, height, theme = PHOTOGRAPHS[name]
    page.show(file, width, theme, height=height)
    picture = Image.open(BytesIO(page.screenshot(width, height))).convert("RGB")
    picture.quantize(_SHADES, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        CAST.parent / f"{name}.png", optimize=True
    )


if __name__ == "__main__":
    record(Path(sys.argv[1]))
    with browser() as page:
        for name in PHOTOGRAPHS:
            photograph(page, Path(sys.argv[1]) / "runs" / "first" / "report.html", name)
