"""A simulation's rounds on the virtual clock of its fleet, if it has one."""

from __future__ import annotations

from collections.abc import Container, Sequence

from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.records import ClientOnClock, RoundOnClock, RoundRecord
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
        """How many clients are to begin a round."""
        return self._wanted if self._clock is None else self._clock.chosen(self._wanted)

    def online(self, round_: int, before: RoundRecord | None, client_ids: Sequence[int]) -> Sequence[int]:
        """Those whose devices are on where ``round_``, which follows ``before``, begins.

        Raises :class:`ConfigError` where these are fewer than ``min_clients_per_round``.
        """
        if self._clock is None:
            return client_ids
        at_s = _elapsed_s(before)
        online = self._clock.online(round_, at_s, client_ids)
        self._offline = tuple(sorted(set(client_ids) - set(online)))
        if len(online) < min(self._fewest, len(client_ids)):
            raise ConfigError(
                f"dapper_args.fleet.devices: {len(online)} of {len(client_ids)} clients' devices are on where round"
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
        self._times = self._clock.times(round_, _elapsed_s(before), client_ids, self._wanted)
        if len(self._times.in_time) < min(self._fewest, len(client_ids)):
            arrivals = sorted((one.arrives_s, one.client) for one in self._times.clients)
            arrives_s, client = arrivals[min(self._fewest, len(arrivals)) - 1]
            raise ConfigError(
                f"dapper_args.fleet.clock: in round {round_} {len(self._times.in_time)} of {len(arrivals)} clients are"
                f" done in time and with their device on, dapper_args.min_clients_per_round is {self._fewest}; client"
                f" {client} would take {arrives_s:.1f} s. Raise deadline_s, or change the profiles' availability"
            )

    def drops(self, client_id: int) -> bool:
        """Whether the upload of ``client_id`` does not count in the open round."""
        return self._times is not None and client_id not in self._times.in_time

    def close(self, before: RoundRecord | None, refused: Container[int]) -> RoundOnClock | None:
        """The open round, which follows ``before``, as the ledger has it; uploads of ``refused`` did not count."""
        times = self._times
        if times is None:
            return None
        previous = None if before is None else before.clock
        spent = [one.joules for one in times.clients]
        joules = None if None in spent else sum(value for value in spent if value is not None)
        if previous is not None and joules is not None:
            joules = None if previous.joules is None else previous.joules + joules
        return RoundOnClock(
            round_s=times.round_s,
            elapsed_s=_elapsed_s(before) + times.round_s,
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
        )


def _elapsed_s(before: RoundRecord | None) -> float:
    """Virtual seconds from the run's beginning to the end of a round."""
    return 0.0 if before is None or before.clock is None else before.clock.elapsed_s
