"""What levels need and who can run which, as tables for the terminal and as plain records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict
from rich.markup import escape
from rich.table import Table

from fedml_dapper.evaluation.cost import cost_cells, cost_headings, cost_reference
from fedml_dapper.evaluation.units import scale_of
from fedml_dapper.federation import LevelFootprint, level_footprints
from fedml_dapper.fleet import ClientFit, FleetPlan, demands
from fedml_dapper.methods import Method

_NAMED = 6
"""Most clients in one row that are listed; more are counted."""


class LevelNeeds(LevelFootprint):
    """Cost of a level's model, and what a client of it needs for a round; None where such clients do not train."""

    memory_bytes: int | None
    """Counted peak of training."""
    round_macs: int | None
    """Multiply-accumulates of a whole local round, for each sample of the client."""


class PlannedClient(BaseModel):
    """A client's device and the level that it can run."""

    model_config = ConfigDict(frozen=True)

    client: int
    domain: str
    device: str
    level: int | None
    """The level; None where it can run none, in which case the fields below are of the smallest one."""
    limited_by: tuple[str, ...]
    memory_mb: float
    memory_limit_mb: float
    network_s: float
    training_s: float
    speed_stretched: str


class PlannedMethod(BaseModel):
    """Levels that the clients can run under one method."""

    model_config = ConfigDict(frozen=True)

    method: str
    clients: tuple[PlannedClient, ...] = ()
    left_out: tuple[int, ...] = ()
    lost_domains: tuple[str, ...] = ()
    refused: str = ""
    """Why the method is not possible in this experiment; empty where it is."""

    @classmethod
    def of(cls, plan: FleetPlan) -> PlannedMethod:
        """Return ``plan`` in plain values."""
        return cls(
            method=plan.method,
            clients=tuple(_planned(one) for one in plan.clients),
            left_out=tuple(one.client.client_id for one in plan.left_out),
            lost_domains=plan.lost_domains,
        )


def _planned(one: ClientFit) -> PlannedClient:
    use = one.fit.use
    return PlannedClient(
        client=one.client.client_id,
        domain=one.client.domain,
        device=one.profile,
        level=one.fit.level,
        limited_by=one.fit.limited_by,
        memory_mb=use.memory_mb,
        memory_limit_mb=use.memory_limit_mb,
        network_s=use.network_s,
        training_s=use.training_s,
        speed_stretched=one.stretch,
    )


def level_needs(method: Method[Any]) -> list[LevelNeeds]:
    """Return the needs of every capability level, strongest first."""
    needed = {demand.level: demand for demand in demands(method)}
    rows = []
    for footprint in level_footprints(method):
        demand = needed.get(footprint.level)
        memory, macs = (None, None) if demand is None else (demand.memory_bytes, demand.round_macs)
        rows.append(LevelNeeds(**footprint.model_dump(), memory_bytes=memory, round_macs=macs))
    return rows


def needs_table(needs: Sequence[LevelNeeds], title: str) -> Table:
    """Return a table with a row per level.

    The first column of MACs is of one sample's forward pass, the last of a sample's share of a round.
    """
    reference = cost_reference(needs)
    memory, memory_prefix = scale_of(max(row.memory_bytes or 0 for row in needs), "M")
    work, work_prefix = scale_of(max(row.round_macs or 0 for row in needs), "G")
    table = Table(title=escape(title))
    for heading in (*cost_headings(reference), f"peak memory ({memory_prefix}B)", f"round ({work_prefix}MACs)"):
        table.add_column(heading, justify="right")
    for row in needs:
        table.add_row(
            *cost_cells(row, reference),
            "does not train" if row.memory_bytes is None else f"{row.memory_bytes / memory:.0f}",
            "" if row.round_macs is None else f"{row.round_macs / work:.2f}",
        )
    return table


def plan_table(planned: PlannedMethod) -> Table:
    """Return a table of which levels the clients can run under one method; clients that are alike share a row."""
    table = Table(title=escape(f"Who can run what under {planned.method}"))
    for heading in ("clients", "domain", "device"):
        table.add_column(heading)
    for heading in ("level", "limited by", "memory (MB)", "training (s)", "network (s)"):
        table.add_column(heading, justify="right")
    rows: dict[PlannedClient, list[int]] = {}
    for one in planned.clients:
        rows.setdefault(one.model_copy(update={"client": 0}), []).append(one.client)
    for one, ids in rows.items():
        table.add_row(
            ", ".join(map(str, ids)) if len(ids) <= _NAMED else f"{len(ids)} clients",
            escape(one.domain),
            escape(one.device),
            "left out" if one.level is None else str(one.level),
            ", ".join(one.limited_by) or "nothing",
            f"{one.memory_mb:.0f} of {one.memory_limit_mb:.0f}",
            f"{one.training_s:.1f}",
            f"{one.network_s:.1f}",
            style="red" if one.level is None else None,
        )
    return table


def methods_table(planned: Sequence[PlannedMethod], round_s: float) -> Table:
    """Return a table with a row per method: how many clients take part, and which do not."""
    table = Table(title=f"Under each method, in rounds of {round_s:g} s")
    for heading in ("method", "take part", "mean level", "left out", "domains lost"):
        table.add_column(heading, justify="left" if heading in ("method", "left out", "domains lost") else "right")
    for one in planned:
        if one.refused:
            table.add_row(one.method, "", "", escape(one.refused), "")
            continue
        levels = [client.level for client in one.clients if client.level is not None]
        table.add_row(
            one.method,
            f"{len(levels)} of {len(one.clients)}",
            f"{sum(levels) / len(levels):.1f}" if levels else "",
            ", ".join(map(str, one.left_out)) or "nobody",
            escape(", ".join(one.lost_domains)) or "none",
        )
    return table


def speeds_table(plan: FleetPlan) -> Table:
    """Return a table of the network that each device's speed was measured on, beside the experiment's."""
    table = Table(title=escape(f"Speeds, and how far they are stretched to {plan.network} ({plan.family})"))
    for heading in ("device", "measured on", "family", "mark", "stretched"):
        table.add_column(heading)
    for name, (speed, stretch) in {one.profile: (one.speed, one.stretch) for one in plan.clients}.items():
        table.add_row(escape(name), escape(speed.network), speed.family, speed.mark, stretch)
    return table
