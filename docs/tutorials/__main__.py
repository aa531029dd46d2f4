"""``python -m docs.tutorials [NAME ...]``: runs the notebooks, all or those named, and keeps their output."""

from __future__ import annotations

import sys

from docs.tutorials.running import FOLDER, executed, written

if __name__ == "__main__":
    for file in sorted(FOLDER.glob("*.ipynb")):
        if not sys.argv[1:] or file.stem in sys.argv[1:]:
            print(file.stem, flush=True)
            file.write_text(written(executed(file)), encoding="utf-8")
