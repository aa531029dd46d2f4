"""Six silos over DAPPER_GRPC, one of them ten times slower: rounds that wait for it, and buffered ones.

    python -m tests.platform.secure_grpc.buffered --seed 1 --seed 2 --seed 3

The synchronous run goes first, the buffered one of the same seed closes ``--times`` as many rounds. Then the buffered
run's ledger is replayed in this process.
"""

from __future__ import annotations

import itertools
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click
import torch

from benchmarks.output import Findings, json_option
from fedml_dapper.config import SecureGrpcConfig, load_settings
from fedml_dapper.federation import RoundRecord, build_experiment

from ..processes import ROOT, Silos, free_port
from ..slow_silo import slow_program
from .experiment_file import experiment_file
from .replay import differences_to_replay

NUM_SILOS = 6
SMALL = (
    "width=8", "epochs=3", "client_share=0.2", "batch_size=16", "threads=1", "dapper_args.evaluation.devices=false",
    f"client_num_in_total={NUM_SILOS}", f"client_num_per_round={NUM_SILOS}",
)  # fmt: skip


def federation(folder: Path, seed: int, rounds: int, buffer_size: int | None) -> Silos:
    """A finished run, and what is left of it below ``folder``."""
    folder.mkdir()
    make = ["bash", ROOT / "run" / "make_certs.sh", folder / "certs", str(NUM_SILOS)]
    subprocess.run(make, check=True, capture_output=True)
    config = SecureGrpcConfig(server_address=f"localhost:{free_port()}", certificates=folder / "certs")
    overrides = [*SMALL, f"random_seed={seed}", f"comm_round={rounds}", f"output_dir={folder}"]
    settings = load_settings([ROOT / "config" / "quickstart.yaml"], overrides)
    file = experiment_file(folder, settings, config, buffer_size)
    silos = Silos(folder, file, NUM_SILOS, programs={NUM_SILOS: slow_program(folder)})
    try:
        silos.start_all()
        for rank in range(NUM_SILOS + 1):
            assert silos.wait(rank, 1800) == 0, silos.output(rank)[-3000:]
    finally:
        silos.stop()
    return silos


def compared(seed: int, rounds: int, times: int, buffer_size: int) -> Mapping[str, float | int | bool]:
    """A row of the table: both runs of one seed."""
    with tempfile.TemporaryDirectory() as folder:
        waiting = federation(Path(folder, "waiting"), seed, rounds, None).rounds()
        silos = federation(Path(folder, "buffered"), seed, times * rounds, buffer_size)
        buffered = silos.rounds()
        differing = differences_to_replay(build_experiment(load_settings([silos.config])), silos)
    seconds = sum(record.seconds.total for record in waiting)
    passed = list(itertools.accumulate(record.seconds.total for record in buffered))
    in_time = sum(at <= seconds for at in passed)
    from_earlier = sum(one.begun is not None for record in buffered for one in record.clients)
    return {
        "seed": seed,
        "synchronous rounds": len(waiting),
        "seconds": seconds,
        "accuracy": _accuracy(waiting[-1]),
        "buffered rounds in that time": in_time,
        "their accuracy": _accuracy(buffered[in_time - 1]),
        "rounds in all": len(buffered),
        "their seconds": passed[-1],
        "uploads from earlier rounds": from_earlier,
        "of the slow silo": sum(one.client == NUM_SILOS - 1 for record in buffered for one in record.clients),
        "replay equal": not differing,
    }


def _accuracy(record: RoundRecord) -> float:
    assert record.scores is not None
    return record.scores.global_accuracy


@click.command()
@click.option("--seed", "seeds", multiple=True, type=int, default=[1], show_default=True, help="Several are allowed.")
@click.option("--rounds", default=6, show_default=True, help="Of the synchronous run.")
@click.option("--times", default=4, show_default=True, help="So many times as many rounds are buffered.")
@click.option("--buffer-size", default=3, show_default=True)
@json_option
def main(seeds: tuple[int, ...], rounds: int, times: int, buffer_size: int, as_json: bool) -> None:
    """Both runs of every seed; exit code 1 where a replay does not give the model."""
    torch.set_num_threads(1)  # as silos have it: other numbers give other bits
    rows = [compared(seed, rounds, times, buffer_size) for seed in seeds]
    Findings(f"{NUM_SILOS} silos over DAPPER_GRPC, one ten times slower; buffers of {buffer_size}", 1, rows).show(
        as_json
    )
    raise SystemExit(int(not all(row["replay equal"] for row in rows)))


if __name__ == "__main__":
    main()
