"""The global model on disk, as safetensors: whole or not there at all."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors.torch import save_file

from fedml_dapper.pruning import Tensors


def save_weights(weights: Tensors, path: Path, round_: int) -> None:
    """Write the global model after ``round_``; an older file at ``path`` stays until the new one is complete."""
    scratch = path.with_name(f".{path.name}.part")
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    save_file(contiguous, scratch, metadata={"round": str(round_)})
    with scratch.open("rb") as file:
        os.fsync(file.fileno())
    scratch.replace(path)
