"""A federation that sums under masks, whose silos and server die at steps of the protocol that a seed chooses.

    python -m tests.platform.secure_grpc.chaos_of_sums --seed 1 --rounds 20

Whoever dies is started again. Afterwards every round is either void, and says so, or the run's model is, bit for bit,
what the plain sums in fixed point of the clients that the ledger names come to. Every process writes down what it told
or opened, so that it shows if anything was opened twice.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.output import Figure, json_option
from fedml_dapper.config import SecureGrpcConfig, load_settings
from fedml_dapper.federation import RoundRecord, build_experiment

from ..processes import ROOT, Silos, free_port
from .conftest import make_certificates
from .experiment_file import experiment_file
from .replay import differences_to_replay
from .seeds import rounds_option, run_seeds, seeds_option

NUM_SILOS, THRESHOLD = 5, 3
SECONDS = 900.0
"""That a round may take on a busy machine."""
NOISE = "where: distributed, noise_multiplier: 0.1, delta: 1.0e-5, noise_seed: run, "
SMALL = (
    "method=fedavg", "norm=group", "width=8", "image_size=16", "epochs=1", "client_share=0.05", "batch_size=16",
    "threads=1", "aggregation_weights=uniform", f"client_num_in_total={NUM_SILOS}",
    f"client_num_per_round={NUM_SILOS}", "round_timeout_s=120",
)  # fmt: skip
DEATHS = {
    "before sharing": ("Deal", "before"),
    "after sharing": ("Deal", "after"),
    "before sending": ("Masked", "before"),
    "after sending": ("Masked", "after"),
    "before signing": ("Consent", "before"),
    "after signing": ("Consent", "after"),
    "before opening": ("Revealed", "before"),
    "after opening": ("Revealed", "after"),
}
"""Of silos: what they are asked for, and whether they die before they have sent it."""
SERVER_DEATHS = ("dealing", "masking", "told who is left", "agreeing", "opened")
"""At the end of a step of the sum; with clients about to be told who is left; or with it open, and nothing written."""

_SILO = """
import json, os, runpy, signal
from pathlib import Path
from fedml_dapper.federation import MaskedUpload
from fedml_dapper.device.conversation import Conversation
from fedml_dapper.federation.wire.vocabulary import SUM

plan, told = Path({plan!r}), Path({told!r})
answer, send = MaskedUpload.answer, Conversation._send_until_heard
latest = []

def die_if_planned(when):
    left, (round_, step, _, _) = json.loads(plan.read_text()), latest[-1]
    if left.get(str(round_)) == [step, when]:
        del left[str(round_)]
        plan.write_text(json.dumps(left))
        os.kill(os.getpid(), signal.SIGKILL)

def answer_and_note(upload, asked):
    said = answer(upload, asked)
    survivors = list(getattr(asked.content, "clients", ()))
    latest.append((asked.round, type(said.content).__name__, asked.sum_id, survivors))
    die_if_planned("before")
    with told.open("a") as log:
        log.write(json.dumps(latest[-1]) + "\\n")
    return said

def send_and_die(manager, message):
    send(manager, message)
    if message.get_type() == SUM and latest:
        die_if_planned("after")

MaskedUpload.answer = answer_and_note
Conversation._send_until_heard = send_and_die
runpy.run_module("fedml_dapper", run_name="__main__")
"""

_SERVER = """
import json, os, runpy, signal
from pathlib import Path
from fedml_dapper.federation import SumExchange
from fedml_dapper.federation.round.secret_sums import SecretSums

plan, told = Path({plan!r}), Path({told!r})
go_on, closing = SumExchange.go_on, SecretSums.closing

def die_if_planned(round_, step):
    left = json.loads(plan.read_text())
    if left.get(str(round_)) == step:
        del left[str(round_)]
        plan.write_text(json.dumps(left))
        os.kill(os.getpid(), signal.SIGKILL)

def go_on_or_die(exchange):
    step = exchange._step
    die_if_planned(exchange._round, step)
    messages = go_on(exchange)
    if step == "masking" and messages:
        die_if_planned(exchange._round, "told who is left")
    if exchange.opened is not None:
        with told.open("a") as log:
            log.write(json.dumps((exchange._round, exchange._sum_id, exchange.opened.clients)) + "\\n")
    return messages

def close_and_die(sums, opened, unfinished):
    void = closing(sums, opened, unfinished)
    if void is None:
        die_if_planned(opened.number, "opened")
    return void

SumExchange.go_on, SecretSums.closing = go_on_or_die, close_and_die
runpy.run_module("fedml_dapper", run_name="__main__")
"""


@dataclass(frozen=True)
class Report:
    """What a run of sums among deaths came to."""

    has_noise: bool
    seconds: float
    rounds: list[RoundRecord]
    deaths: Counter[str]
    opened: list[tuple[int, str, list[int]]]
    """Sums that a server opened, in all its lives: round, the sum's number, and whose it was."""
    told: Mapping[int, list[tuple[int, str, str, list[int]]]]
    """What each client answered, in all its lives: round, what, the sum's number, and the survivors of which it was
    told."""
    exit_codes: dict[int, int | None]
    """Of processes that were not killed at the end."""
    differing: list[str]
    """Tensors of the global model that the plain sums do not give."""


class SumsChaos:
    """One run of ``rounds`` rounds below ``folder``; a seed also says whether clients add noise."""

    def __init__(self, folder: Path, seed: int, rounds: int, say: Callable[[str], None]) -> None:
        chance = random.Random(seed)
        self._seed, self._rounds, self._say, self._folder = seed, rounds, say, folder
        self._has_noise = chance.random() < 0.5
        certificates = make_certificates(folder / "certs", NUM_SILOS)
        config = SecureGrpcConfig(server_address=f"localhost:{free_port()}", certificates=certificates)
        sums = f"secure_aggregation: {{threshold: {THRESHOLD}, min_holders: 2, step_timeout_s: {SECONDS}}}"
        privacy = f"dapper_args.privacy={{{NOISE if self._has_noise else ''}{sums}}}"
        digits = ROOT / "config" / "digits_offline.yaml"
        settings = load_settings([digits], [*SMALL, privacy, f"comm_round={rounds}", f"output_dir={folder}"])
        self._experiment = build_experiment(settings)
        self._write_plans(chance)
        programs = {rank: self._program(_SERVER if rank == 0 else _SILO, rank) for rank in range(NUM_SILOS + 1)}
        self._silos = Silos(folder, experiment_file(folder, settings, config), NUM_SILOS, programs=programs)
        self._deaths: Counter[str] = Counter()
        self._begun = time.monotonic()

    def run(self) -> Report:
        try:
            self._silos.start_all()
            self._start_the_dead_again()
            codes = {rank: self._silos.processes[rank].wait(SECONDS) for rank in self._silos.processes}
        except BaseException:
            self._say(f"seed {self._seed}:\n{self._silos.output(0)[-5000:]}")
            raise
        finally:
            self._silos.stop()
        return Report(
            self._has_noise, time.monotonic() - self._begun, self._silos.rounds(), self._deaths,
            [tuple(line) for line in self._lines(0)],
            {rank - 1: [tuple(line) for line in self._lines(rank)] for rank in range(1, NUM_SILOS + 1)},
            codes, differences_to_replay(self._experiment, self._silos),
        )  # fmt: skip

    def _write_plans(self, chance: random.Random) -> None:
        """Who dies in which round, where: mostly one or two silos, and now and then so many that too few are left."""
        plans: dict[int, dict[int, object]] = {rank: {} for rank in range(NUM_SILOS + 1)}
        for round_ in range(1, self._rounds + 1):
            dying = chance.choices((0, 1, 2, 3), (2, 4, 3, 1))[0]
            for rank in chance.sample(range(1, NUM_SILOS + 1), dying):
                plans[rank][round_] = DEATHS[chance.choice(sorted(DEATHS))]
            if chance.random() < 0.3:
                plans[0][round_] = chance.choice(SERVER_DEATHS)
        for rank, plan in plans.items():
            self._plan(rank).write_text(json.dumps(plan))

    def _start_the_dead_again(self) -> None:
        """Until the server has ended by itself."""
        until = time.monotonic() + SECONDS * self._rounds
        left = {rank: self._planned(rank) for rank in self._silos.processes}
        while (code := self._silos.processes[0].poll()) in (None, -signal.SIGKILL):
            assert time.monotonic() < until, "the run does not end"
            for rank, process in list(self._silos.processes.items()):
                if process.poll() == -signal.SIGKILL:
                    now = self._planned(rank)
                    for round_ in sorted(left[rank].keys() - now.keys()):
                        self._note(rank, round_, left[rank][round_])
                    left[rank] = now
                    self._silos.start(rank)
            time.sleep(0.1)  # between looks, which read files of all
        assert code == 0, self._silos.output(0)

    def _note(self, rank: int, round_: str, how: object) -> None:
        self._deaths["server" if rank == 0 else "silo"] += 1
        elapsed, done = time.monotonic() - self._begun, len(self._silos.rounds())
        self._say(f"{elapsed:5.0f} s, {done}/{self._rounds} rounds: rank {rank} died in round {round_}: {how}")

    def _program(self, text: str, rank: int) -> Path:
        program = self._folder / f"program_{rank}.py"
        program.write_text(text.format(plan=str(self._plan(rank)), told=str(self._told(rank))))
        return program

    def _planned(self, rank: int) -> dict[str, object]:
        """Deaths still to come, by round."""
        planned: dict[str, object] = json.loads(self._plan(rank).read_text())
        return planned

    def _plan(self, rank: int) -> Path:
        return self._folder / f"plan_{rank}.json"

    def _told(self, rank: int) -> Path:
        return self._folder / f"told_{rank}.jsonl"

    def _lines(self, rank: int) -> list[list[object]]:
        file = self._told(rank)
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def problems(report: Report, rounds: int) -> list[str]:
    """What speaks against the run, in words."""
    found = []
    if [record.round for record in report.rounds] != list(range(1, rounds + 1)):
        found.append(f"rounds in the ledger: {[record.round for record in report.rounds]}")
    found += [*_opened_twice(report), *_signed_twice(report)]
    found += [text for record in report.rounds if (text := _wrong_with(record, report))]
    found += [f"rank {rank} ended with {code}" for rank, code in report.exit_codes.items() if code != 0]
    if report.differing:
        found.append(f"{len(report.differing)} tensors are not the plain sums': {report.differing[:3]}")
    return found


def _opened_twice(report: Report) -> Iterator[str]:
    """By a server, or with the help of one client."""
    for round_, count in Counter(round_ for round_, _, _ in report.opened).items():
        if count > 1:
            yield f"round {round_} was opened twice"
    for client, answers in report.told.items():
        sums = {(round_, number) for round_, what, number, _ in answers if what == "Revealed"}
        for round_, count in Counter(round_ for round_, _ in sums).items():
            if count > 1:
                yield f"client {client} told shares of two sums of round {round_}"


def _signed_twice(report: Report) -> Iterator[str]:
    """By one client, in all its lives: two lists of survivors of one round."""
    for client, answers in report.told.items():
        lists = {(round_, number, *left) for round_, what, number, left in answers if what == "Consent"}
        for round_, count in Counter(round_ for round_, *_ in lists).items():
            if count > 1:
                yield f"client {client} signed {count} lists of survivors of round {round_}"


def _wrong_with(record: RoundRecord, report: Report) -> str:
    """With a round's line; empty where nothing is."""
    opened = {round_: tuple(clients) for round_, _, clients in report.opened}.get(record.round)
    named, void = tuple(client.client for client in record.clients), record.rolled_back
    if sorted([*named, *record.absent]) != list(range(NUM_SILOS)):
        return f"round {record.round} accounts for {named} and absent {record.absent}"
    if void is None:
        is_right = len(named) >= THRESHOLD and opened == named and record.opened_share is not None
    else:
        may_be_open = "nothing is opened twice" in void
        is_right = void.startswith("the sum is void: ") and not named and (opened is None or may_be_open)
    return "" if is_right else f"round {record.round} names {named}, opened were {opened}, and void it is by: {void}"


@click.command()
@seeds_option
@rounds_option
@json_option
def main(seeds: tuple[int, ...], rounds: int, as_json: bool) -> None:
    """A run of ROUNDS rounds per seed; exit code 1 where one does not hold, and then its folder is kept."""

    def run(folder: Path, seed: int) -> tuple[Mapping[str, Figure], list[str]]:
        report = SumsChaos(folder, seed, rounds, lambda text: click.echo(text, err=True)).run()
        void = [record.rolled_back for record in report.rounds if record.rolled_back is not None]
        figures: dict[str, Figure] = {
            "noise": report.has_noise,
            "rounds closed": len(report.rounds),
            "silos died": report.deaths["silo"],
            "server died": report.deaths["server"],
            "sums opened": len(report.opened),
            "void": len(void),
            "of them asked to open before": sum("opened twice" in reason for reason in void),
            "replay equal": not report.differing,
            "seconds": round(report.seconds),
        }
        return figures, problems(report, rounds)

    run_seeds(f"{NUM_SILOS} silos that sum under masks, {rounds} rounds among deaths", seeds, run, as_json)


if __name__ == "__main__":
    main()
