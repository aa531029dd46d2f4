"""``python -m docs.pictures``: draws every picture anew."""

from __future__ import annotations

from docs.pictures.gallery import FOLDER, PICTURES

if __name__ == "__main__":
    for name, picture in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(picture().svg(), encoding="utf-8")
