"""Progress of a run: a live line on a terminal and in notebooks, plain log lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from importlib.util import find_spec
from threading import Event, Thread

from pydantic import JsonValue
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fedml_dapper.evaluation.divergence import divergence_of
from fedml_dapper.evaluation.terminal import flowed
from fedml_dapper.evaluation.units import duration
from fedml_dapper.federation import Experiment, RoundRecord, RunObserver, RunRecord

_EVERY_S = 30.0
"""Longest silence of a log within a round, in seconds."""


def progress_for(console: Console, experiment: Experiment) -> RunObserver:
    """Return the observer that suits ``console``: live on a terminal, and in a notebook that has widgets."""
    is_live = find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
    return LiveProgress(console, experiment) if is_live else LogProgress(console, experiment)


class LogProgress(RunObserver):
    """Prints the result of each round with the time to go, and every ``every_s`` seconds how far a long round is."""

    def __init__(self, console: Console, experiment: Experiment, every_s: float = _EVERY_S) -> None:
        self._console = console
        self._rounds = experiment.settings.train_args.comm_round
        self._metric = experiment.method.problem.task.headline
        self._profiles = experiment.profiles
        self._every_s = every_s
        self._resumed_after = 0
        self._started = self._printed = self._round_began = time.monotonic()
        self._round = 0
        self._shares: dict[int, float] = {}
        """Share of its steps that each client of the round has done."""
        self._last_step = ""
        self._over = Event()

    def run_started(self, record: RunRecord) -> None:
        self._started = self._printed = time.monotonic()
        Thread(target=self._print_regularly, daemon=True).start()

    def run_resumed(self, record: RunRecord, rounds: Sequence[RoundRecord]) -> None:
        self._resumed_after = len(rounds)
        if rounds:
            self._console.print(f"going on after round {len(rounds)}/{self._rounds}", highlight=False)
        self.run_started(record)

    def round_started(self, round_: int, client_ids: Sequence[int]) -> None:
        self._round = round_
        self._round_began = time.monotonic()
        self._last_step = ""
        self._shares = dict.fromkeys(client_ids, 0.0)

    def client_stepped(self, client_id: int, done: int, total: int) -> None:
        self._shares[client_id] = done / total
        self._last_step = f"client {client_id} (level {self._profiles[client_id].level}) step {done}/{total}"

    def round_finished(self, record: RoundRecord) -> None:
        self._round = 0
        self._print(self._lines(record))

    def run_finished(self) -> None:
        self._over.set()

    def _print_regularly(self) -> None:
        while not self._over.wait(self._printed + self._every_s - time.monotonic()):
            if time.monotonic() - self._printed >= self._every_s:
                self._print(self._within_round() if self._round else None)

    def _print(self, lines: str | None) -> None:
        self._printed = time.monotonic()
        if lines is not None:
            self._console.print(lines, highlight=False, markup=False, soft_wrap=True)

    def _within_round(self) -> str:
        head = f"round {self._round}/{self._rounds}"
        shares = list(self._shares.values())
        if not self._last_step:  # no step yet, or across silos, where steps are not reported
            return f"{head}  {len(shares)} clients at work, {duration(time.monotonic() - self._round_began)} so far"
        done = f"{sum(share == 1 for share in shares)} of {len(shares)} trained"
        return flowed([head, done, self._last_step, f"ETA {self._to_go(self._finished_rounds)}"], self._console.width)

    @property
    def _finished_rounds(self) -> float:
        """Rounds that are closed, and what clients have done of the open one."""
        return self._round - 1 + sum(self._shares.values()) / len(self._shares)

    def _lines(self, record: RoundRecord) -> str:
        """One line if everything fits; else the domains get lines of their own."""
        head = f"round {record.round}/{self._rounds}"
        parts = [head, *self._parts(record), f"{record.seconds.total:.1f} s", f"ETA {self._to_go(record.round)}"]
        if record.scores is None:
            return flowed(parts, self._console.width)
        metric = self._metric
        accuracies = record.scores.domain_accuracy
        domains = [f"{name} {metric.number(value)}" for name, value in accuracies.items()]
        together = flowed([*parts, *domains], self._console.width)
        if "\n" not in together:
            return together
        indent = " " * (len(head) + 2)
        return "\n".join((flowed(parts, self._console.width), flowed(domains, self._console.width, indent)))

    def _parts(self, record: RoundRecord) -> Iterator[str]:
        metric = self._metric
        own = record.personal
        yield from divergence_of(record)
        if record.scores is not None:
            best = metric.number(record.scores.best_global_accuracy)
            yield f"global {metric.text(record.scores.global_accuracy)} (best {best})"
        if own is not None:
            yield f"clients' own {metric.text(own.overall)} (worst {metric.number(own.worst)})"
        if record.devices is not None and record.devices.sent.accuracy is not None:
            found = record.devices.own_statistics
            measured = found.accuracy if found is not None else None
            own_statistics = "" if measured is None else f" (own statistics {metric.number(measured)})"
            yield f"devices {metric.text(record.devices.sent.accuracy)}{own_statistics}"
        if record.privacy is not None and record.privacy.epsilon is not None:
            yield f"epsilon {record.privacy.epsilon:.3g}"
        if record.opened_share is not None:
            yield f"opened {100 * record.opened_share:.3g} % of the weights"
        if record.rolled_back is not None:
            yield f"model as before: {record.rolled_back}"
        yield from (f"{name} {_plain(value)}" for name, value in record.notes.items())
        if record.clock is not None:
            late = sum(client.outcome == "late" for client in record.clock.clients)
            yield f"clock {duration(record.clock.elapsed_s)}" + (f" ({late} late)" if late else "")
        earlier = sum(client.begun is not None for client in record.clients)
        if earlier:
            yield f"{earlier} of {len(record.clients)} uploads from earlier rounds"
        if record.refused:
            yield f"refused clients {', '.join(map(str, record.refused))}"
        if record.left_out:
            yield f"left out clients {', '.join(map(str, record.left_out))}"

    def _to_go(self, finished_rounds: float) -> timedelta:
        spent = time.monotonic() - self._started
        share = (self._rounds - finished_rounds) / (finished_rounds - self._resumed_after)
        return timedelta(seconds=round(spent * share))


class LiveProgress(LogProgress):
    """Prints the result of each round, and below it a live line: client, step, time to go."""

    def __init__(self, console: Console, experiment: Experiment) -> None:
        super().__init__(console, experiment)
        self._progress = Progress(
            TextColumn("round {task.fields[round]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[client]}  ETA {task.fields[eta]}"),
            console=console,
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task("run", total=self._rounds, round="", client="", eta="-")

    def run_started(self, record: RunRecord) -> None:
        self._started = time.monotonic()
        self._progress.start()

    def round_started(self, round_: int, client_ids: Sequence[int]) -> None:
        super().round_started(round_, client_ids)
        self._progress.update(self._task, round=f"{round_}/{self._rounds}")

    def client_stepped(self, client_id: int, done: int, total: int) -> None:
        super().client_stepped(client_id, done, total)
        finished = self._finished_rounds
        self._progress.update(self._task, completed=finished, client=self._last_step, eta=str(self._to_go(finished)))

    def run_finished(self) -> None:
        self._progress.stop()


def _plain(value: JsonValue) -> str:
    """Write a method's note as a word or two, without JSON's quotes."""
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key} {_plain(item)}" for key, item in value.items()) + ")"
    return str(value)
