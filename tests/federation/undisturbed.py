"""The undisturbed run of a method: trained once for all tests that disturb one and compare."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from filelock import FileLock

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.federation import build_experiment, simulate
from fedml_dapper.process.provenance import commit

from .interruptions import FEW, Ended

DIGITS = Path(__file__).parents[2] / "config" / "digits_offline.yaml"
THREE_ROUNDS = (
    *FEW, "client_share=0.02", "comm_round=3", "learning_rate_decay=0.9", "frequency_of_the_test=2",
    "checkpoint_every=9", "workers=1",
)  # fmt: skip
"""Tested in the last two, so that a run of two rounds is the beginning of one of three."""


@dataclass(frozen=True)
class Undisturbed(Ended):
    """The run that was not disturbed, and the settings of any that shall end as it did."""

    settings: Settings


UndisturbedRuns = Callable[..., Undisturbed]
"""``undisturbed(method, *overrides)``, of three rounds unless they say otherwise."""


def undisturbed_in(folder: Path, method: str, *overrides: str) -> Undisturbed:
    """The run in ``folder``, which tests in other processes share; trained by who asks first."""
    settings = load_settings([DIGITS], [*THREE_ROUNDS, f"method={method}", *overrides, f"output_dir={folder}"])
    made_of = f"{settings.as_yaml()}{commit()}"  # which the model's file names
    run_dir = folder / f"{method}-{sha256(made_of.encode()).hexdigest()[:12]}"
    held = run_dir.with_suffix(".held")
    with FileLock(run_dir.with_suffix(".lock")):
        if not held.exists():
            shutil.rmtree(run_dir, ignore_errors=True)  # what one left that failed
            server, _ = simulate(build_experiment(settings), run_dir=run_dir)
            held.write_bytes(pickle.dumps(server.checkpoint()))
    return Undisturbed(pickle.loads(held.read_bytes()), run_dir, settings)
