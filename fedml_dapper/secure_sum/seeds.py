"""Seeds of a client's own masks, one per layer of coordinates: the fewer clients drop out, the more layers open.

Where ``lost`` clients drop out, a coordinate with ``held`` holders keeps at least ``held - lost`` of them. It may be
opened where these are ``min_holders`` or more. So coordinates lie in layers by the number of clients that may be lost:

    layer = min(held - min_holders, sharers - threshold)

Each layer has a seed of its own, and the next one follows from it by a one-way function:

    seed 0 -> seed 1 -> ... -> seed of the last layer

With seed number ``lost`` of all survivors, the masks of the layers from ``lost`` on can be removed, and those of no
layer before. A client deals shares of every seed, and later reveals its share of one of them, once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from fedml_dapper.secure_sum.cells import Cells
from fedml_dapper.secure_sum.keys import derived
from fedml_dapper.secure_sum.protocol import Rules


def layers(cells: Cells, sharers: Collection[int], rules: Rules) -> NDArray[np.int64]:
    """Return the layer of each cell among ``sharers``, who have dealt shares, shape (cells,).

    It is negative where too few hold the cell for it to be sent.
    """
    return np.minimum(cells.holders(sharers) - rules.min_holders, len(sharers) - rules.threshold)


def following(seed: bytes, count: int) -> list[bytes]:
    """Return ``seed`` and those of the layers after it, ``count`` in all."""
    seeds = [seed]
    while len(seeds) < count:
        seeds.append(derived(seeds[-1], b"next layer"))
    return seeds


def mask_key(seed: bytes) -> bytes:
    """Return the key of the mask of the layer with this seed."""
    return derived(seed, b"own mask")


def commitment(last_seed: bytes) -> bytes:
    """Return the commitment to a client's seeds, a digest of the last layer's, which verifies recombined seeds."""
    return hashlib.sha256(b"fedml_dapper secure sum: commitment" + last_seed).digest()
