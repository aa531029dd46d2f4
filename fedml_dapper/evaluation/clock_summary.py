"""Summary of a run on its fleet's virtual clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedml_dapper.federation import RoundRecord, RunRecord
from fedml_dapper.federation.run_folder.records import Record, RoundOnClock

_TARGETS = (50.0, 60.0, 70.0)


class Participation(Record):
    """How often a domain's clients began a round, and how often their uploads counted."""

    began: int
    counted: int
    """Uploads that counted in their own round or in a later one."""
    counted_later: int
    """Uploads that counted in a later round than their own."""
    late: int
    gone: int
    """Clients whose device went off before they were done."""
    refused: int
    offline: int
    """How often a client could not be chosen because its device was off."""


class ClockSummary(Record):
    """Time and energy of a fleet."""

    elapsed_s: float
    joules: float | None
    """Energy of training, without radio; None where a device's profile has no watts."""
    waiting: float
    """Share of a round's time in which a client, on average, had nothing to do."""
    reached: dict[float, float | None]
    """Percent -> virtual seconds until the global model first reached them, None where it never did; empty where the
    headline is not in percent."""
    by_domain: dict[str, Participation]
    keeps_late: bool
    """Whether any upload counted in a later round than its own."""
    last_round: int
    """The last round with a clock."""


def summarise_clock(run: RunRecord, rounds: Sequence[RoundRecord]) -> ClockSummary | None:
    """Summarise the rounds that have a clock; None where none has."""
    clocks = [record.clock for record in rounds if record.clock is not None]
    if not clocks:
        return None
    domains = {client.client: client.domain for client in run.clients}
    began = [(domains[one.client], one.outcome) for clock in clocks for one in clock.clients]
    later = [domains[one.client] for clock in clocks for one in clock.arrived]
    work = [seconds for clock in clocks for seconds in _work(clock)]
    busy, spent = (sum(seconds) for seconds in zip(*work, strict=True)) if work else (0.0, 0.0)
    return ClockSummary(
        elapsed_s=clocks[-1].elapsed_s,
        joules=clocks[-1].joules,
        waiting=1 - busy / spent if spent else 0.0,
        reached={target: _time_to(target, rounds) for target in _TARGETS} if _are_shares_to_reach(run) else {},
        by_domain={
            domain: Participation(
                began=sum(where == domain for where, _ in began),
                counted=began.count((domain, "in time")) + later.count(domain),
                counted_later=later.count(domain),
                late=began.count((domain, "late")),
                gone=began.count((domain, "gone")),
                refused=began.count((domain, "refused")),
                offline=sum(domains[client] == domain for clock in clocks for client in clock.offline),
            )
            for domain in run.domains
        },
        keeps_late=bool(later),
        last_round=max(record.round for record in rounds if record.clock is not None),
    )


def _are_shares_to_reach(run: RunRecord) -> bool:
    """Whether the headline is a share in percent of which more is better."""
    return run.metric.unit == "%" and run.metric.higher_is_better


def _work(clock: RoundOnClock) -> Iterator[tuple[float, float]]:
    """Seconds that each client at work in a round was busy, and seconds of the round."""
    opened_s = clock.elapsed_s - clock.round_s
    began = {one.client for one in clock.clients}
    for one in clock.clients:
        yield min(clock.round_s, one.download_s + one.training_s + one.upload_s), clock.round_s
    for earlier in (*clock.arrived, *clock.under_way):
        if earlier.client not in began:
            yield min(clock.round_s, max(0.0, earlier.arrives_s - opened_s)), clock.round_s


def _time_to(target: float, rounds: Sequence[RoundRecord]) -> float | None:
    return next(
        (
            record.clock.elapsed_s
            for record in rounds
            if record.clock is not None and record.scores is not None and record.scores.global_accuracy >= target
        ),
        None,
    )
