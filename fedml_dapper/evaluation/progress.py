"""How a run shows itself while it goes: a live line on a terminal and in notebooks, plain log lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from importlib.util import find_spec

from pydantic import JsonValue
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fedml_dapper.evaluation.units import duration
from fedml_dapper.federation import Experiment, RoundRecord, RunObserver, RunRecord


def progress_for(console: Console, experiment: Experiment) -> RunObserver:
    """The observer that suits ``console``: live on a terminal, and in a notebook that has widgets."""
    is_live = find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
    return LiveProgress(console, experiment) if is_live else LogProgress(console, experiment)


class LogProgress(RunObserver):
    """One line a round, with the time to go."""

    def __init__(self, console: Console, experiment: Experiment) -> None:
        self._console = console
        self._rounds = experiment.settings.train_args.comm_round
        self._metric = experiment.method.problem.task.headline
        self._resumed_after = 0
        self._started = time.monotonic()

    def run_started(self, record: RunRecord) -> None:
        self._started = time.monotonic()

    def run_resumed(self, record: RunRecord, rounds: Sequence[RoundRecord]) -> None:
        self._resumed_after = len(rounds)
        if rounds:
            self._console.print(f"going on after round {len(rounds)}/{self._rounds}", highlight=False)
        self.run_started(record)

    def round_finished(self, record: RoundRecord) -> None:
        self._console.print(self._line(record), highlight=False, soft_wrap=True)

    def _line(self, record: RoundRecord) -> str:
        metric, text = self._metric, f"round {record.round}/{self._rounds}"
        if record.scores is not None:
            domains = "  ".join(
                f"{name} {metric.number(value)}" for name, value in record.scores.domain_accuracy.items()
            )
            best = metric.number(record.scores.best_global_accuracy)
            text += f"  global {metric.text(record.scores.global_accuracy)} (best {best})  {domains}"
        own = record.personal
        if own is not None:
            text += f"  clients' own {metric.text(own.overall)} (worst {metric.number(own.worst)})"
        if record.devices is not None and record.devices.sent.accuracy is not None:
            found = record.devices.own_statistics
            own_statistics = found.accuracy if found is not None else None
            text += f"  devices {metric.text(record.devices.sent.accuracy)}"
            text += "" if own_statistics is None else f" (own statistics {metric.number(own_statistics)})"
        if record.privacy is not None and record.privacy.epsilon is not None:
            text += f"  epsilon {record.privacy.epsilon:.3g}"
        text += "" if record.opened_share is None else f"  opened {100 * record.opened_share:.3g} % of the weights"
        text += "" if record.rolled_back is None else f"  model as before: {record.rolled_back}"
        text += "".join(f"  {name} {_plain(value)}" for name, value in record.notes.items())
        if record.clock is not None:
            late = sum(client.outcome == "late" for client in record.clock.clients)
            text += f"  clock {duration(record.clock.elapsed_s)}" + (f" ({late} late)" if late else "")
        earlier = sum(client.begun is not None for client in record.clients)
        text += f"  {earlier} of {len(record.clients)} uploads from earlier rounds" if earlier else ""
        text += f"  refused clients {', '.join(map(str, record.refused))}" if record.refused else ""
        text += f"  left out clients {', '.join(map(str, record.left_out))}" if record.left_out else ""
        return f"{text}  {record.seconds.total:.1f} s  ETA {self._to_go(record.round)}"

    def _to_go(self, finished_rounds: float) -> timedelta:
        spent = time.monotonic() - self._started
        share = (self._rounds - finished_rounds) / (finished_rounds - self._resumed_after)
        return timedelta(seconds=round(spent * share))


class LiveProgress(LogProgress):
    """The same lines, and below them where the round is: client, step, time to go."""

    def __init__(self, console: Console, experiment: Experiment) -> None:
        super().__init__(console, experiment)
        self._profiles = experiment.profiles
        self._progress = Progress(
            TextColumn("round {task.fields[round]}"),
            BarColumn(),
            TextColumn("{task.fields[client]}  ETA {task.fields[eta]}"),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("run", total=self._rounds, round="", client="", eta="-")
        self._round = 0
        self._shares: dict[int, float] = {}
        """How far each client of the round is."""

    def run_started(self, record: RunRecord) -> None:
        super().run_started(record)
        self._progress.start()

    def round_started(self, round_: int, client_ids: Sequence[int]) -> None:
        self._round = round_
        self._shares = dict.fromkeys(client_ids, 0.0)
        self._progress.update(self._task, round=f"{round_}/{self._rounds}")

    def client_stepped(self, client_id: int, done: int, total: int) -> None:
        profile = self._profiles[client_id]
        self._shares[client_id] = done / total
        finished = self._round - 1 + sum(self._shares.values()) / len(self._shares)
        where = f"client {client_id} (level {profile.level}, {profile.domain}) step {done}/{total}"
        self._progress.update(self._task, completed=finished, client=where, eta=str(self._to_go(finished)))

    def run_finished(self) -> None:
        self._progress.stop()


def _plain(value: JsonValue) -> str:
    """A method's note as a word or two, without JSON's signs."""
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key} {_plain(item)}" for key, item in value.items()) + ")"
    return str(value)
