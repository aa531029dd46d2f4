"""Rows of a table of a run's clients, and how good the models are that they carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fedml_dapper.evaluation.summary import RunSummary
from fedml_dapper.federation import RunRecord
from fedml_dapper.federation.run_folder.records import ClientSummary, RoundRecord

MOST_ROWS = 100
"""Most clients that get a row each; with more, those of one domain and level share a row."""


@dataclass(frozen=True)
class ClientRow:
    """One client, or the mean of several of one domain and level. A figure is None where it is not measured."""

    clients: tuple[int, ...]
    domain: str
    level: int
    ratio: float
    num_samples: int
    """Samples of all of them together."""
    carried: float | None
    """Figure of the model of the client's level, as sent, on the client's domain."""
    own_statistics: float | None
    """Figure of that model with statistics of the device's own images."""
    own_model: float | None
    """Figure of the client's own model on its own samples."""


def client_rows(run: RunRecord, summary: RunSummary) -> list[ClientRow]:
    """Return the rows in the order of clients, or of domains and levels where there are many."""
    devices = summary.devices
    personal = summary.personal
    tested = [client.client for client in run.clients if client.domain in summary.domain_accuracy]
    sent = _by_client(tested, devices.last.sent.clients if devices else ())
    measured = devices.last.own_statistics if devices else None
    own_statistics = _by_client(tested, measured.clients if measured else ())
    own = _by_client([client.client for client in run.clients], personal.last.accuracy if personal else ())
    groups: dict[object, list[ClientSummary]] = {}
    for client in run.clients:
        key = client.client if len(run.clients) <= MOST_ROWS else (client.domain, client.level)
        groups.setdefault(key, []).append(client)
    rows = []
    for members in groups.values():
        ids = tuple(member.client for member in members)
        rows.append(
            ClientRow(
                ids,
                members[0].domain,
                members[0].level,
                members[0].ratio,
                sum(one.num_samples for one in members),
                *(_mean([found.get(client) for client in ids]) for found in (sent, own_statistics, own)),
            )
        )
    return rows if len(run.clients) <= MOST_ROWS else sorted(rows, key=lambda row: (row.domain, row.level))


def levels_changed(run: RunRecord, rounds: Sequence[RoundRecord]) -> bool:
    """Return whether a client trained at another level than its row says, as a rule of the user's can have it."""
    levels = {client.client: client.level for client in run.clients}
    trained = (client for record in rounds for client in record.clients)
    return any(client.level != levels.get(client.client, client.level) for client in trained)


def _by_client(clients: Sequence[int], figures: Sequence[float | None]) -> dict[int, float | None]:
    return dict(zip(clients, figures, strict=True)) if len(clients) == len(figures) else {}


def _mean(figures: Sequence[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return fmean(known) if known else None
