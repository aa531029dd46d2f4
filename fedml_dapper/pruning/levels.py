"""Who is how strong: capability levels 1 (strongest) to L, as pruning ratios."""

from __future__ import annotations

from fedml_dapper.config import LevelArgs
from fedml_dapper.seeding import Stream, numpy_generator


def assign_levels(args: LevelArgs, num_clients: int, seed: int) -> list[int]:
    """Capability level of every client, 1-based; level l prunes at ``args.ratios[l - 1]``.

    ``balanced`` deals the levels round-robin over a seeded shuffle of the clients, so that level and domain are
    independent; ``index_mod`` gives client i level i mod L, as the public code does.
    """
    order = list(range(num_clients))
    if args.assignment == "balanced":
        order = numpy_generator(seed, Stream.LEVELS).permutation(num_clients).tolist()
    levels = [0] * num_clients
    for position, client in enumerate(order):
        levels[client] = 1 + position % len(args.ratios)
    return levels
