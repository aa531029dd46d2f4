"""Clients and domains of runs whose silos hold data of their own, and are in no list beforehand."""

from __future__ import annotations

from collections.abc import Sequence

from fedml_dapper.federation import RoundRecord, RunRecord
from fedml_dapper.federation.run_folder.records import ClientSummary


def as_announced(run: RunRecord, rounds: Sequence[RoundRecord]) -> RunRecord:
    """Return ``run`` with the clients and domains of its ``rounds``, each client as it was last.

    A run that lists its clients is returned unchanged.
    """
    if run.clients:
        return run
    last = {
        client.client: ClientSummary(**{name: getattr(client, name) for name in ClientSummary.model_fields})
        for record in rounds
        for client in record.clients
    }
    clients = tuple(last[client] for client in sorted(last))
    scored = (domain for record in rounds if record.scores is not None for domain in record.scores.domain_accuracy)
    domains = tuple(dict.fromkeys((*(client.domain for client in clients), *scored)))
    return run.model_copy(update={"clients": clients, "domains": domains})
