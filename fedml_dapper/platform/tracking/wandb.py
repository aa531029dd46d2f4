"""Tracking with Weights & Biases: recorded in the run's folder, and uploaded at the end where the user has a key.

It is never online while training: wandb 0.13.2 waits without a limit, at its start and at its end, for a server that it
cannot reach.
"""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedml_dapper.config import TrackingArgs
from fedml_dapper.federation import RoundRecord, RunObserver, RunRecord, metrics_of

UPLOAD_TIMEOUT_S = 60.0


class WandbSink(RunObserver):
    """Records one offline wandb run in ``<run>/wandb``.

    It is uploaded at the end where wandb finds a key (``wandb login``, ``WANDB_API_KEY``), unless ``WANDB_MODE`` says
    otherwise. The user is never asked for a key.
    """

    def __init__(self, args: TrackingArgs, record: RunRecord, run_dir: Path) -> None:
        # Without these, crash reports go to wandb's makers, and a helper process with a socket of its own is started.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_DISABLE_SERVICE", "true")
        import wandb  # noqa: PLC0415  # slow to import

        wandb.require("service")  # reads WANDB_DISABLE_SERVICE again, as FedML imports wandb before we can set it
        self._uploads = wandb.api.api_key is not None and os.environ.get("WANDB_MODE", "online") == "online"
        settings = wandb.Settings(
            start_method="thread", console="off", disable_git=True, disable_code=True, silent=True
        )
        wandb.setup(settings=settings)  # wandb.init alone is too late for `silent`
        run = wandb.init(
            project=args.wandb_project,
            entity=args.wandb_entity,
            name=args.run_name or run_dir.name,
            dir=str(run_dir),
            config=record.model_dump(mode="json"),
            mode="offline",
            reinit=True,
            settings=settings,
        )
        assert run is not None, "wandb.init gives a run or raises"
        self._run = run

    def round_finished(self, record: RoundRecord) -> None:
        self._run.log(metrics_of(record), step=record.round)

    def run_finished(self) -> None:
        folder = Path(self._run.dir).parent
        self._run.finish()
        if self._uploads:
            _upload(folder)


def _upload(folder: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "wandb", "sync", str(folder)]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=UPLOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise ConnectionError(f"no upload within {UPLOAD_TIMEOUT_S:g} s; try later: wandb sync {folder}") from error
    except subprocess.CalledProcessError as error:
        raise ConnectionError(f"no upload: {error.stderr}; try later: wandb sync {folder}") from error


@contextmanager
def without_fedmls_wandb(args: Namespace) -> Iterator[None]:
    """Keep ``fedml.init`` within this block from starting a wandb run of its own.

    It would be a second run, and raises without a key.
    """
    enabled = args.enable_wandb
    args.enable_wandb = False
    try:
        yield
    finally:
        args.enable_wandb = enabled
