"""``python -m docs.pictures``: draws every picture anew."""

from __future__ import annotations

from docs.pictures.gallery import DRAWINGS, FOLDER, drawn

if __name__ == "__main__":
    for name in DRAWINGS:
        (FOLDER / f"{name}.svg").write_text(drawn(name), encoding="utf-8")
