"""What becomes of an open round that has lost a client, in words for the log."""

from __future__ import annotations


def outlook(possible: int, fewest: int, timeout_s: float) -> str:
    """Return what a server does next, in words that go on after what happened to a client.

    Args:
        possible: Uploads of the open round that have come or may still come.
        fewest: Uploads that it asks for (``min_clients_per_round``).
        timeout_s: How long a round may take.
    """
    if possible >= fewest:
        return "the round goes on without it"
    return (
        f"{possible} of the {fewest} uploads that min_clients_per_round asks for can come now,"
        f" and where no more do within the round's {timeout_s:g} s, the run ends"
    )
