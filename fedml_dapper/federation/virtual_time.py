"""A simulation's rounds on the virtual clock of its fleet, if it has one."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence

from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.records import ClientOnClock, RoundOnClock, RoundRecord, UnderWay
from fedml_dapper.fleet import RoundTimes


class VirtualTime:
    """Who is chosen, whose uploads are dropped, and what the ledger says of it. Without a clock nothing changes."""

    def __init__(self, experiment: Experiment) -> None:
        self._clock, settings = experiment.clock, experiment.settings
        self._wanted = settings.train_args.client_num_per_round
        self._fewest = settings.dapper_args.min_clients_per_round
        self._times: RoundTimes | None = None
        self._offline: tuple[int, ...] = ()

    @property
    def chosen(self) -> int:
        """How many clients are to be at work in a round."""
        return self._wanted if self._clock is None else self._clock.chosen(self._wanted)

    def online(
        self, round_: int, before: RoundRecord | None, client_ids: Sequence[int], at_work: Collection[int] = ()
    ) -> Sequence[int]:
        """Those whose devices are on where ``round_``, which follows ``before``, begins, and who are not ``at_work``.

        Raises :class:`ConfigError` where fewer than ``min_clients_per_round`` devices are on or at work.
        """
        if self._clock is None:
            return client_ids
        at_s = _elapsed_s(before)
        idle = [client_id for client_id in client_ids if client_id not in at_work]
        online = self._clock.online(round_, at_s, idle)
        self._offline = tuple(sorted(set(idle) - set(online)))
        if len(online) + len(at_work) < min(self._fewest, len(client_ids)):
            raise ConfigError(
                f"dapper_args.fleet.devices: {len(online)} of {len(idle)} clients' devices are on where round"
                f" {round_} begins, {at_s:.0f} s into the run; dapper_args.min_clients_per_round is {self._fewest}."
                " Change the profiles' availability, or choose more devices"
            )
        return online

    def open(self, round_: int, before: RoundRecord | None, client_ids: Sequence[int]) -> None:
        """Reckon the times of ``round_``, which follows ``before``.

        Raises :class:`ConfigError` where fewer than ``min_clients_per_round`` would be done in time.
        """
        if self._clock is None:
            return
        at_work = at_work_after(before)
        self._times = times = self._clock.times(round_, _elapsed_s(before), client_ids, self._wanted, at_work)
        num_done, num_at_work = len(times.in_time) + len(times.arrived), len(client_ids) + len(at_work)
        if num_done < min(self._fewest, num_at_work):
            arrivals = [(one.arrives_s, one.client) for one in times.clients]
            arrivals = sorted(arrivals + [(one.arrives_s - _elapsed_s(before), one.client) for one in at_work])
            arrives_s, client = arrivals[min(self._fewest, num_at_work) - 1]
            raise ConfigError(
                f"dapper_args.fleet.clock: in round {round_} {num_done} of {num_at_work} clients are done in time and"
                f" with their device on, dapper_args.min_clients_per_round is {self._fewest}; client {client} would"
                f" take {arrives_s:.1f} s. Raise deadline_s, or change the profiles' availability"
            )

    @property
    def arrived(self) -> Sequence[int]:
        """Those who began in earlier rounds, and whose uploads count in the open one, ascending."""
        return () if self._times is None else sorted(self._times.arrived)

    def drops(self, client_id: int) -> bool:
        """Whether the upload of ``client_id`` does not count in the open round, nor in a later one."""
        times = self._times
        return times is not None and client_id not in times.in_time and client_id not in times.under_way

    def keeps(self, client_id: int) -> bool:
        """Whether the upload of ``client_id`` counts in a later round than the open one."""
        return self._times is not None and client_id in self._times.under_way

    def close(self, before: RoundRecord | None, refused: Container[int], kept: Container[int]) -> RoundOnClock | None:
        """The open round, which follows ``before``, as the ledger has it; uploads of ``refused`` did not count, those
        of ``kept`` will."""
        times = self._times
        if times is None:
            return None
        previous, now = (None, 1) if before is None else (before.clock, before.round + 1)
        spent = [one.joules for one in times.clients]
        joules = None if None in spent else sum(value for value in spent if value is not None)
        if previous is not None and joules is not None:
            joules = None if previous.joules is None else previous.joules + joules
        elapsed_s, at_work = _elapsed_s(before), at_work_after(before)
        begun = (UnderWay(client=one.client, begun=now, arrives_s=elapsed_s + one.arrives_s) for one in times.clients)
        return RoundOnClock(
            round_s=times.round_s,
            elapsed_s=elapsed_s + times.round_s,
            joules=joules,
            offline=self._offline,
            clients=tuple(
                ClientOnClock(
                    client=one.client,
                    download_s=one.download_s,
                    training_s=one.training_s,
                    upload_s=one.upload_s,
                    joules=one.joules,
                    outcome="refused" if one.client in refused else times.outcome(one.client),
                )
                for one in times.clients
            ),
            arrived=tuple(one for one in at_work if one.client in times.arrived),
            under_way=(
                *(one for one in at_work if one.client not in times.arrived),
                *(one for one in begun if one.client in times.under_way and one.client in kept),
            ),
        )


def at_work_after(before: RoundRecord | None) -> tuple[UnderWay, ...]:
    """Those whom a round that follows ``before`` finds at work."""
    return () if before is None or before.clock is None else before.clock.under_way


def _elapsed_s(before: RoundRecord | None) -> float:
    """Virtual seconds from the run's beginning to the end of a round."""
    return 0.0 if before is None or before.clock is None else before.clock.elapsed_s
