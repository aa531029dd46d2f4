"""Rounds of a simulation on the virtual clock of its fleet."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.round.feature import RoundFeature
from fedml_dapper.federation.round.late_uploads import LateUpload, arriving, late_upload
from fedml_dapper.federation.round.open_round import OpenRound
from fedml_dapper.federation.run_folder.records import ClientOnClock, RoundOnClock, RoundRecord, UnderWay
from fedml_dapper.fleet import RoundTimes, VirtualClock
from fedml_dapper.methods import ServerState, Upload


class VirtualTime(RoundFeature):
    """Keeps the virtual clock: which devices are online, which uploads come late or never, and the ledger's record."""

    def __init__(self, experiment: Experiment, clock: VirtualClock, state: ServerState) -> None:
        settings = experiment.settings
        self._clock = clock
        self._state = state
        self._layout = experiment.method.problem.layout
        self._wanted = settings.train_args.client_num_per_round
        self._fewest = settings.dapper_args.min_clients_per_round
        self._before: RoundRecord | None = None
        self._reckoned: RoundTimes | None = None
        self._offline: tuple[int, ...] = ()
        self._opened = OpenRound(number=0)
        self.late: dict[int, LateUpload] = {}
        """Uploads that will count in a later round, by client id."""

    def available(self, client_ids: Sequence[int]) -> Sequence[int]:
        """Return the clients whose devices are on, and not at work, when the coming round begins.

        Raises:
            ConfigError: Fewer than ``min_clients_per_round`` devices are on or at work.
        """
        round_ = self._state.round + 1
        before = self._before
        at_work = {one.client for one in at_work_after(before)}
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

    @property
    def _times(self) -> RoundTimes:
        assert self._reckoned is not None, "no round was opened"
        return self._reckoned

    def wanted(self, number: int) -> int:
        return self._clock.chosen(number) - len(at_work_after(self._before))

    def opening(self, client_ids: Sequence[int]) -> Collection[int]:
        """Return the clients that began in earlier rounds and whose uploads count in this one.

        Raises:
            ConfigError: Fewer than ``min_clients_per_round`` clients would be done in time.
        """
        round_ = self._state.round + 1
        before = self._before
        at_work = at_work_after(before)
        self._reckoned = times = self._clock.times(round_, _elapsed_s(before), client_ids, self._wanted, at_work)
        num_done = len(times.in_time) + len(times.arrived)
        num_at_work = len(client_ids) + len(at_work)
        if num_done < min(self._fewest, num_at_work):
            # The arrival that would make it enough, to say in the error how long that takes.
            arrivals = [(one.arrives_s, one.client) for one in times.clients]
            arrivals = sorted(arrivals + [(one.arrives_s - _elapsed_s(before), one.client) for one in at_work])
            arrives_s, client = arrivals[min(self._fewest, num_at_work) - 1]
            raise ConfigError(
                f"dapper_args.fleet.clock: in round {round_} {num_done} of {num_at_work} clients are done in time and"
                f" with their device on, dapper_args.min_clients_per_round is {self._fewest}; client {client} would"
                f" take {arrives_s:.1f} s. Raise deadline_s, or change the profiles' availability"
            )
        return times.arrived

    def opened(self, opened: OpenRound) -> None:
        """Fold in the late uploads that count in this round."""
        self._opened = opened
        arrived = {client_id: self.late.pop(client_id) for client_id in sorted(self._times.arrived)}
        opened.bytes_down |= {client_id: late.bytes_down for client_id, late in arrived.items()}
        opened.begun |= {client_id: late.change.round for client_id, late in arrived.items()}
        weights = self._state.weights
        opened.take(*(arriving(late, opened.number, weights, self._layout) for late in arrived.values()))

    def drops(self, client_id: int) -> bool:
        return client_id not in self._times.in_time and client_id not in self._times.under_way

    def received(self, upload: Upload) -> Upload | None:
        if upload.client_id not in self._times.under_way:
            return upload
        bytes_down = self._opened.bytes_down.pop(upload.client_id, 0)
        self.late[upload.client_id] = late_upload(upload, self._state.weights, self._layout, bytes_down)
        return None

    def closed(self, record: RoundRecord) -> RoundRecord:
        self._before = record.model_copy(update={"clock": self._on_clock(record)})
        return self._before

    def resumed(self, record: RoundRecord) -> None:
        self._before = record

    def _on_clock(self, record: RoundRecord) -> RoundOnClock:
        """Return the ledger's record of the round on the clock."""
        times = self._times
        before = self._before
        previous, now = (None, 1) if before is None else (before.clock, before.round + 1)
        spent = [one.joules for one in times.clients]
        joules = None if None in spent else sum(value for value in spent if value is not None)
        if previous is not None and joules is not None:
            joules = None if previous.joules is None else previous.joules + joules
        elapsed_s = _elapsed_s(before)
        at_work = at_work_after(before)
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
                    outcome="refused" if one.client in record.refused else times.outcome(one.client),
                )
                for one in times.clients
            ),
            arrived=tuple(one for one in at_work if one.client in times.arrived),
            under_way=(
                *(one for one in at_work if one.client not in times.arrived),
                *(one for one in begun if one.client in times.under_way and one.client in self.late),
            ),
        )


def at_work_after(before: RoundRecord | None) -> tuple[UnderWay, ...]:
    """Return the clients that are at work when the round after ``before`` begins."""
    return () if before is None or before.clock is None else before.clock.under_way


def _elapsed_s(before: RoundRecord | None) -> float:
    """Return the virtual seconds from the run's beginning to the end of the round ``before``."""
    return 0.0 if before is None or before.clock is None else before.clock.elapsed_s
