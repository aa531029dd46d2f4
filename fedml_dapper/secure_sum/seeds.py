"""A client's own masks, which open from the top: the fewer drop out, the more coordinates open.

Where ``lost`` clients drop out, a coordinate that ``held`` were to send has at least ``held - lost`` left. It may open
where that is ``min_holders`` or more. So coordinates lie in layers by how many may be lost:

    layer = min(held - min_holders, sharers - threshold)

Each layer has a seed of its own, and the next one follows from it by a one-way function:

    seed 0 -> seed 1 -> ... -> seed of the last layer

Who learns seed ``lost`` of all survivors takes the masks off the layers from ``lost`` on, and off no layer before. A
client hands out shares of every seed, and tells its share of one of them, once.
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
    """The layer of each cell, where ``sharers`` have dealt shares; below 0 where too few hold it to be sent."""
    return np.minimum(cells.holders(sharers) - rules.min_holders, len(sharers) - rules.threshold)


def following(seed: bytes, count: int) -> list[bytes]:
    """``seed`` and those of the layers after it, ``count`` in all."""
    seeds = [seed]
    while len(seeds) < count:
        seeds.append(derived(seeds[-1], b"next layer"))
    return seeds


def mask_key(seed: bytes) -> bytes:
    """The key of the mask of a layer with this seed."""
    return derived(seed, b"own mask")


def commitment(last_seed: bytes) -> bytes:
    """By which a seed that was put together from shares is known to be the right one: of the last layer's."""
    return hashlib.sha256(b"fedml_dapper secure sum: commitment" + last_seed).digest()
