"""A federation whose silos and server are killed, halted, revoked, started again and impersonated by a seeded hand.

    python -m tests.platform.secure_grpc.chaos --seed 1 --rounds 20
    python -m tests.platform.secure_grpc.chaos --seed 1 --rounds 40 --buffer-size 3    # one silo is ten times slower

Afterwards the ledger is replayed in this process: whoever it names as a round's clients trains honestly, nobody else.
Only if that gives the run's global model bit for bit has nothing else gone into it.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click
import grpc

from benchmarks.output import Figure, json_option
from fedml_dapper.config import SecureGrpcConfig, load_settings
from fedml_dapper.federation import RoundRecord, build_experiment
from fedml_dapper.operations import Certificate, add_members, read_certificate, revoke_members
from fedml_dapper.operations.credentials import read_credentials

from ..processes import ROOT, Silos, free_port
from ..slow_silo import slow_program
from .experiment_file import experiment_file
from .impostor import Impostor, garbage
from .raw_silo import DELIVER, FETCH, OWN_CONNECTION, TRY_DOWN, TRY_UP, RawSilo
from .replay import differences_to_replay
from .seeds import rounds_option, run_seeds, seeds_option

NUM_SILOS, NUM_IMPAIRED = 6, 2
"""How many silos there are, and how many of them are impaired at a time."""
ROUND_SECONDS = 60.0
"""When a round closes without those that do not answer, and how long silos look for a server: longer than one takes to
start on a busy machine."""
ROUNDS_MISSED = (0, 0, 0, 1, 2)
"""How many rounds close before a silo that is impaired is well again: one of these. The first waits for it in vain."""
SMALL = (
    "width=8", "epochs=6", "client_share=0.2", "batch_size=16", "threads=1", "checkpoint_every=2",
    f"client_num_in_total={NUM_SILOS}", f"client_num_per_round={NUM_SILOS}", f"round_timeout_s={ROUND_SECONDS}",
)  # fmt: skip
EVENTS = {
    "killed": 4, "halted": 3, "sends garbage": 4, "repeats itself": 2, "floods": 2, "gets a twin": 1,
    "revoked": 2, "server killed": 1, "server halted": 1, "strangers call": 1,
}  # fmt: skip
"""What happens, and how often relative to the rest."""
LONGEST_PAUSE = 5.0
"""Between two events there are so many seconds at most, or as many as a round took, which a fast machine makes few."""
FLOOD_SECONDS = 3.0
CUT_OFF_SECONDS = 300.0
"""How long a silo's process may take to end once nobody takes its certificate: it may be training."""


@dataclass(frozen=True)
class Report:
    """What a chaotic run came to."""

    seconds: float
    rounds: list[RoundRecord]
    events: Counter[str]
    garbage: Counter[str]
    exit_codes: dict[int, int | None]
    """Of the server, and of the silos that took part in the last round."""
    differing: list[str]
    """Tensors of the global model that the replay does not give."""
    code_ran: bool
    """Whether the crafted pickle was loaded."""


class Chaos:
    """One run of ``rounds`` rounds below ``folder``; with a ``buffer_size`` the last silo is ten times slower."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        rounds: int,
        say: Callable[[str], None],
        rounds_missed: Sequence[int] = ROUNDS_MISSED,
        buffer_size: int | None = None,
    ) -> None:
        self._chance = random.Random(seed)
        self._rounds, self._say, self._rounds_missed = rounds, say, rounds_missed
        self._certificates, self._members = folder / "certs", folder / "members" / "members.json"
        self._make_certificates(str(NUM_SILOS + 1))
        self._members.parent.mkdir()
        add_members(self._members, [self._certificate(rank) for rank in range(1, NUM_SILOS + 1)])
        self._config = SecureGrpcConfig(
            server_address=f"localhost:{free_port()}", certificates=self._certificates, members_file=self._members,
            max_message_mb=4,
        )  # fmt: skip
        digits = ROOT / "config" / "digits_offline.yaml"
        settings = load_settings([digits], [*SMALL, f"comm_round={rounds}", f"output_dir={folder}"])
        file = experiment_file(folder, settings, self._config, buffer_size)
        programs: Mapping[int, Path] = {} if buffer_size is None else {NUM_SILOS: slow_program(folder)}
        self._experiment = build_experiment(load_settings([file]))
        self._silos = Silos(folder, file, NUM_SILOS, programs=programs)
        self._made = folder / "made"
        self._garbage = garbage(self._made, NUM_SILOS)
        self._impaired: dict[int, tuple[float, int, Callable[[], object]]] = {}
        """Until when and up to which round, and what then; by rank."""
        self._events: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._begun = time.monotonic()

    def run(self) -> Report:
        try:
            self._silos.start_all()
            self._silos.wait_for_round(1)
            self._disturb()
            codes: dict[int, int | None] = {0: self._silos.wait(0, 10 * ROUND_SECONDS)}
            for client in self._silos.rounds()[-1].clients:
                codes[1 + client.client] = self._silos.wait(1 + client.client, 5 * ROUND_SECONDS)
        except BaseException:
            self._say(self._silos.output(0)[-5000:])
            raise
        finally:
            self._silos.stop()
        return Report(
            time.monotonic() - self._begun, self._silos.rounds(), self._events, self._sent, codes,
            differences_to_replay(self._experiment, self._silos), self._made.exists(),
        )  # fmt: skip

    # What happens

    def _disturb(self) -> None:
        """Until the last round but one has closed."""
        deadline = time.monotonic() + (5 + 3 * self._rounds) * ROUND_SECONDS
        while len(self._silos.rounds()) < self._rounds - 1:
            assert time.monotonic() < deadline, "the run does not come to its end"
            assert self._silos.processes[0].poll() is None, f"the server left with {self._silos.processes[0].poll()}"
            self._restore_those_due()
            [event] = self._chance.choices(list(EVENTS), list(EVENTS.values()))
            well = sorted(set(range(1, NUM_SILOS + 1)) - self._impaired.keys())
            rank, missed = self._chance.choice(well), self._chance.choice(self._rounds_missed)
            if event == "server killed":
                self._note("rank 0", event)
                self._kill_the_server(self._chance.uniform(0, 5))
            elif event == "server halted":
                self._note("rank 0", event)
                self._halt_the_server(self._chance.uniform(0, 5))
            elif event == "strangers call":
                self._note("a stranger", event)
                self._let_strangers_call()
            elif event == "gets a twin":
                self._note(f"rank {rank}", event)
                self._start_twice(rank)
            elif event == "floods":
                self._note(f"rank {rank}", event)
                self._flood(rank)
            elif len(self._impaired) < NUM_IMPAIRED:
                self._note(f"rank {rank}", event)
                self._impair(event, rank, missed)
            # between two events, so that rounds go on; nothing is to depend on how long
            time.sleep(self._chance.uniform(0.2, 1) * min(LONGEST_PAUSE, self._silos.rounds()[-1].seconds.total))
        for rank in list(self._impaired):
            self._restore(rank)

    def _impair(self, event: str, rank: int, missed: int) -> None:
        process = self._silos.processes[rank]
        until, round_ = time.monotonic() + self._chance.uniform(0, 10), len(self._silos.rounds()) + missed
        if event == "halted":
            process.send_signal(signal.SIGSTOP)
            self._impaired[rank] = (until, round_, lambda: process.send_signal(signal.SIGCONT))
            return
        if event == "revoked":
            revoke_members(self._members, f"silo-{rank}", "chaos")
            assert process.wait(CUT_OFF_SECONDS) != 0, f"rank {rank} went on without a certificate that counts"
            self._impaired[rank] = (until, round_, lambda: self._let_in_again(rank))
            return
        self._silos.kill(rank)
        self._impaired[rank] = (until, round_, lambda: self._silos.start(rank))
        if event != "killed":
            try:
                self._impersonate(rank, honest=event == "repeats itself")
            except grpc.RpcError as error:
                self._say(f"the impostor of silo {rank} was cut off: {error.code()}")
            self._restore(rank)

    def _let_in_again(self, rank: int) -> None:
        """A silo that was revoked comes back by a new certificate."""
        self._make_certificates("--renew", f"silo-{rank}")
        add_members(self._members, [self._certificate(rank)])
        self._silos.start(rank)

    def _make_certificates(self, *arguments: str) -> None:
        make = ["bash", ROOT / "run" / "make_certs.sh", self._certificates, *arguments]
        subprocess.run(make, check=True, capture_output=True)

    def _certificate(self, rank: int) -> Certificate:
        return read_certificate(self._certificates / f"silo-{rank}.pem")

    def _impersonate(self, rank: int, honest: bool) -> None:
        impostor = Impostor(self._config, rank, self._experiment)
        impostor.come_online()
        downlink = impostor.model(ROUND_SECONDS / 2)
        if downlink is None:
            return
        upload = impostor.trained(downlink)
        if honest:
            for _ in range(3):
                impostor.answer(impostor.encoded(upload))
            return
        for kind in self._chance.sample(sorted(self._garbage), 3):
            impostor.answer(self._garbage[kind](self._chance, impostor, upload))
            self._sent[kind] += 1

    def _flood(self, rank: int) -> None:
        """Somebody with a running silo's certificate says that it starts, and sends noise, as fast as it can."""
        impostor = Impostor(self._config, rank, self._experiment)
        until = time.monotonic() + FLOOD_SECONDS
        while time.monotonic() < until:
            with suppress(grpc.RpcError):  # it calls too often, or the run is over
                impostor.come_online(life=self._chance.randbytes(8).hex())
                impostor.answer(self._chance.randbytes(1000))

    def _start_twice(self, rank: int) -> None:
        """The newer of a silo's processes takes its place."""
        first = self._silos.processes[rank]
        self._silos.start(rank)
        code = first.wait(5 * ROUND_SECONDS)
        assert code != 0, f"the first process of rank {rank} ended with {code}"

    def _let_strangers_call(self) -> None:
        """Calls that say nothing, by certificates that are no silo's, more than the server has threads."""
        nobody = read_credentials(self._config, NUM_SILOS + 1)
        for peer in [RawSilo(self._config, nobody, options=OWN_CONNECTION) for _ in range(8)]:
            for method in (DELIVER, FETCH, TRY_UP, TRY_DOWN) * 2:
                peer.begin_wordless(method)

    def _halt_the_server(self, seconds: float) -> None:
        self._silos.processes[0].send_signal(signal.SIGSTOP)
        time.sleep(seconds)  # silos run on meanwhile, and find nobody
        self._silos.processes[0].send_signal(signal.SIGCONT)

    def _kill_the_server(self, seconds: float) -> None:
        done = len(self._silos.rounds())
        self._silos.kill(0)
        time.sleep(seconds)  # silos run on meanwhile, and look for it
        self._silos.start(0)
        self._silos.wait_for_round(done + 1, 4 * ROUND_SECONDS)  # or a server that starts slowly would do nothing else

    def _restore_those_due(self) -> None:
        for rank, (until, round_, _) in list(self._impaired.items()):
            if time.monotonic() >= until and len(self._silos.rounds()) >= round_:
                self._restore(rank)

    def _restore(self, rank: int) -> None:
        _, _, restore = self._impaired.pop(rank)
        restore()

    def _note(self, who: str, event: str) -> None:
        self._events[event] += 1
        done, elapsed = len(self._silos.rounds()), time.monotonic() - self._begun
        self._say(f"{elapsed:5.0f} s, {done}/{self._rounds} rounds: {who} {event}")


def problems(report: Report, rounds: int) -> list[str]:
    """What speaks against the run, in words."""
    found = []
    if [record.round for record in report.rounds] != list(range(1, rounds + 1)):
        found.append(f"rounds in the ledger: {[record.round for record in report.rounds]}")
    at_work: Mapping[int, int] = {}
    for record in report.rounds:
        took_part = [client.client for client in record.clients]
        chosen = [client.client for client in record.clients if client.begun is None]
        named = [*chosen, *record.absent, *record.quarantined]
        if len(named) != len(set(named)) or {*named, *at_work} != set(range(NUM_SILOS)):
            found.append(f"round {record.round} accounts for {took_part} and absent {record.absent}")
        at_work = record.at_work
        if not all(client.bytes_up and client.bytes_down and client.steps for client in record.clients):
            found.append(f"round {record.round} does not say what was sent")
    found += [f"rank {rank} ended with {code}" for rank, code in report.exit_codes.items() if code != 0]
    if report.differing:
        found.append(
            f"{len(report.differing)} tensors are not what the ledger's clients trained: {report.differing[:3]}"
        )
    if report.code_ran:
        found.append("the crafted pickle was loaded")
    return found


@click.command()
@seeds_option
@rounds_option
@click.option("--buffer-size", type=int, help="Rounds close with so many uploads, and one silo is ten times slower.")
@json_option
def main(seeds: tuple[int, ...], rounds: int, buffer_size: int | None, as_json: bool) -> None:
    """A run of ROUNDS rounds per seed; exit code 1 where one does not hold, and then its folder is kept."""

    def run(folder: Path, seed: int) -> tuple[Mapping[str, Figure], list[str]]:
        report = Chaos(folder, seed, rounds, lambda text: click.echo(text, err=True), buffer_size=buffer_size).run()
        closed = report.rounds
        figures: dict[str, Figure] = {
            "rounds closed": len(closed),
            **{event: report.events[event] for event in EVENTS},
            "garbage messages": report.garbage.total(),
            "uploads taken": sum(len(record.clients) for record in closed),
            "from earlier rounds": sum(one.begun is not None for record in closed for one in record.clients),
            "absent": sum(len(record.absent) for record in closed),
            "of them refused": sum(len(record.refused) for record in closed),
            "replay equal": not report.differing,
            "seconds": round(report.seconds),
        }
        return figures, problems(report, rounds)

    run_seeds(f"{NUM_SILOS} silos over DAPPER_GRPC, disturbed for {rounds} rounds", seeds, run, as_json)


if __name__ == "__main__":
    main()
