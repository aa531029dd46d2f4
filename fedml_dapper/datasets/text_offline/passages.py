"""Passages of equal length from documents: every paragraph once, and every document in one part alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fedml_dapper.datasets.padding import NOT_A_TARGET, PADDING
from fedml_dapper.datasets.text_offline.documents import Kind
from fedml_dapper.errors import DataError

VOCABULARY = 128
"""Tokens: the ASCII numbers of letters."""
_PARTS = ("train", "test", "validation")
_MOST_OF_PART = 4
"""A document gives at most this part of a part's passages, so that each is of several documents."""
_SHORTEST = 4
"""A passage at the end of a document has at least this part of the full length."""
_FEWEST_LETTERS = 15
_UNREADABLE = re.compile(r"[^\n -~]+")
"""All but lines and letters that ASCII can print."""


def passages(name: str, kind: Kind, length: int, sizes: Sequence[int]) -> list[TensorDataset]:
    """Return passages for training, testing and validation.

    A passage is ``length`` tokens, int64, and its target the tokens that follow each. Documents go, one after another,
    to the part that lacks most; what an earlier document has said already, word by word, is left out of a later one. So
    no part holds a paragraph of another.

    Args:
        name: Name of the domain in errors.
        kind: Documents to take them from; no more are read than needed.
        length: Tokens of a passage.
        sizes: Numbers of passages for training, testing and validation.

    Raises:
        DataError: The documents are too few.
    """
    parts: list[list[Tensor]] = [[] for _ in sizes]
    said = set[str]()
    for document in kind.documents():
        lacking = [1 - len(part) / size for part, size in zip(parts, sizes, strict=True)]
        if max(lacking) <= 0:
            break
        place = lacking.index(max(lacking))
        found = _cut(_new_paragraphs(document.read(), said), length)
        room = sizes[place] - len(parts[place])
        parts[place] += found[: min(room, -(-sizes[place] // _MOST_OF_PART))]
    for part, size, held in zip(_PARTS, sizes, parts, strict=True):
        if len(held) < size:
            raise DataError(
                f"text_offline: domain {name} has {len(held)} passages of {length} letters for {part}, and {size} are"
                " asked for; lower data_args.arguments.samples"
            )
    return [_data_set(torch.stack(part)) for part in parts]


def _new_paragraphs(text: str, said: set[str]) -> str:
    """Return the paragraphs of ``text`` that are not in ``said``, and add them to it."""
    kept = []
    for paragraph in re.split(r"\n\s*\n", text):
        words = " ".join(paragraph.split()).lower()
        if len(words) >= _FEWEST_LETTERS and words not in said:
            said.add(words)
            kept.append(paragraph.strip("\n"))
    return "\n\n".join(kept)


def _cut(text: str, length: int) -> list[Tensor]:
    """Cut a text into passages int64 (length + 1,), each of which begins with the last letter of the one before."""
    letters = _UNREADABLE.sub(" ", text).encode("ascii")
    tokens = torch.tensor(list(letters), dtype=torch.int64)
    starts = range(0, len(tokens) - length // _SHORTEST, length)
    pieces = (tokens[start : start + length + 1] for start in starts)
    return [F.pad(piece, (0, length + 1 - len(piece)), value=PADDING) for piece in pieces]


def _data_set(rows: Tensor) -> TensorDataset:
    following = rows[:, 1:]
    return TensorDataset(rows[:, :-1].clone(), following.masked_fill(following == PADDING, NOT_A_TARGET))
