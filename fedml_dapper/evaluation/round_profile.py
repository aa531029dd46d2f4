"""Profile of a run: the seconds of each round by part, as a file and as a table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from pydantic import BaseModel, ConfigDict
from rich.table import Table

from fedml_dapper.federation import RoundRecord, RunObserver, RunRecord
from fedml_dapper.files.atomic import written_whole
from fedml_dapper.process.profiling import PARTS, Part, Profiler

OTHER = "other"
PROFILE_NAME = "profile.json"


class ProfiledRound(BaseModel):
    """Seconds of one round; ``parts`` add up to ``worked``, with unnamed ones under ``other``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    round: int
    total: float
    """Seconds from its beginning to its end."""
    worked: float
    """Seconds of all processes that worked on it: more than ``total`` with workers, else the same."""
    parts: dict[str, float]


class RunProfile(BaseModel):
    """Seconds of a run's rounds by part, in this process and in its workers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str
    workers: int
    threads: int
    """Threads of each process."""
    torch: str
    precision: str
    rounds: tuple[ProfiledRound, ...]

    def save(self, path: Path) -> None:
        """Write the profile as JSON."""
        with written_whole(path) as scratch:
            scratch.write_text(self.model_dump_json(indent=1), encoding="utf-8")

    def table(self) -> Table:
        """Return medians over the rounds, without the first, which warms up, unless it is the only one."""
        rounds = self.rounds[1:] or self.rounds
        several = f"{self.workers} workers, whose seconds add up, " if self.workers > 1 else ""
        table = Table(
            title="Where a round went",
            caption=f"median of {len(rounds)}; {self.device}, {several}{self.threads} threads, {self.precision}",
        )
        for heading in ("part", "seconds", "of all" if self.workers > 1 else "of the round"):
            table.add_column(heading, justify="left" if heading == "part" else "right")
        for name in [*PARTS, OTHER]:
            seconds = median(one.parts[name] for one in rounds)
            share = median(one.parts[name] / one.worked for one in rounds)
            table.add_row(name, f"{seconds:.3f}", f"{share:.1%}")
        if self.workers > 1:
            table.add_row("all processes", f"{median(one.worked for one in rounds):.3f}", "")
        whole = "round, begin to end" if self.workers > 1 else "round"
        table.add_row(whole, f"{median(one.total for one in rounds):.3f}", "", style="bold")
        return table


class RoundProfiler(RunObserver):
    """Reads a profiler at the end of each round."""

    def __init__(self, profiler: Profiler, precision: str) -> None:
        self._profiler = profiler
        self._precision = precision
        self._rounds: list[ProfiledRound] = []
        self._workers = 1
        self._threads = torch.get_num_threads()
        self._opened = 0.0
        self._elsewhere = 0.0
        self._before: dict[Part, float] = {}

    def run_started(self, record: RunRecord) -> None:
        self._workers = record.workers
        self._threads = torch.get_num_threads()

    def round_started(self, round_: int, client_ids: Sequence[int]) -> None:
        self._opened = time.perf_counter()
        self._elsewhere = self._profiler.elsewhere
        self._before = dict(self._profiler.seconds)

    def round_finished(self, record: RoundRecord) -> None:
        total = time.perf_counter() - self._opened
        worked = total + self._profiler.elsewhere - self._elsewhere
        parts: dict[str, float] = {
            name: seconds - self._before[name] for name, seconds in self._profiler.seconds.items()
        }
        parts[OTHER] = worked - sum(parts.values())
        self._rounds.append(ProfiledRound(round=record.round, total=total, worked=worked, parts=parts))

    def profile(self) -> RunProfile | None:
        """Return the profile so far; None where no round was finished."""
        if not self._rounds:
            return None
        device = self._profiler.device
        return RunProfile(
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
            workers=self._workers,
            threads=self._threads,
            torch=torch.__version__,
            precision=self._precision,
            rounds=tuple(self._rounds),
        )
