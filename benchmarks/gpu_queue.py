"""A bench by quarters of an hour: what is finished and what was begun is packed while it runs, and gone on with.

``benchmarks/gpu_queue.sh`` calls it. Cells run in a folder of their own, which begins with what is packed already.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from pathlib import Path

import click

from benchmarks.packing import Progress, found_packs, pack_cell, progress_of, unpack
from fedml_dapper.benches.queue import LOG_NAME
from fedml_dapper.benches.results import CELLS_NAME
from fedml_dapper.commands.bench import bench as bench_command
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.process.complaint import complaining
from fedml_dapper.process.interruption import ending_in_order, take_time

_LOOK_EVERY_S = 1.0
_MOST_RESERVED_S = 60.0
_OURS = ("--output", "--max-minutes", "--report", "--list")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("bench")
@click.argument("minutes", type=click.FloatRange(min=0, min_open=True))
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--pack-every",
    type=click.FloatRange(min=0),
    default=120.0,
    show_default=True,
    help="Seconds between two packs of a cell that goes on: what a machine takes along that is gone at once.",
)
@click.option("--began", type=float, hidden=True, help="When the command began, in seconds since 1970.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(
    bench: str, minutes: float, out: Path, pack_every: float, began: float | None, options: tuple[str, ...]
) -> None:
    """Run BENCH for MINUTES on a GPU, going on from the packs in OUT, where what it comes to is packed.

    MINUTES count from the beginning of the command, installation included. OPTIONS are those of `fedml-dapper bench`.
    """
    past = 0.0 if began is None else max(0.0, time.time() - began)
    ends = time.monotonic() + 60 * minutes - past
    with complaining("gpu_queue"), ending_in_order("gpu_queue"):
        for option in options:
            if option.partition("=")[0] in _OURS:
                raise ConfigError(f"{option}: MINUTES and OUT say how long it runs, and where what it comes to is")
        run_for(bench, ends, out, pack_every, options)


def run_for(bench: str, ends: float, out: Path, pack_every: float, options: tuple[str, ...]) -> None:
    """Run the bench until ``ends``, of :func:`time.monotonic`. The last tenth of the time is for the last packs.

    Raises:
        DataError: The disk does not take a pack. The cells are left where they ran, and the message says where.
    """
    store = Path(tempfile.mkdtemp(prefix="gpu_queue-"))
    for pack in unpack(out, store, _say):
        _say(f"goes on: {pack.cell}, {pack.progress}")
    left = ends - time.monotonic()
    stops = ends - min(_MOST_RESERVED_S, left / 10)
    packer = Packer(store / CELLS_NAME, out, stops, pack_every)
    packer.start()
    arguments = [bench, "--device", "cuda", *options, "--output", str(store)]
    arguments += ["--max-minutes", str((stops - time.monotonic()) / 60)]
    try:
        with bench_command.make_context("fedml-dapper bench", arguments) as context:
            bench_command.invoke(context)
    except KeyboardInterrupt:
        take_time()  # to pack
        raise
    finally:
        packer.end()
        try:
            packer.pack(begun=True)
        except DataError as error:
            raise DataError(f"{error}; the cells are in {store}") from error
        for pack in found_packs(out):
            _say(f"packed: {pack.cell}, {pack.progress}")
        shutil.rmtree(store)


class Packer(threading.Thread):
    """Packs finished cells of the folder ``cells`` as they come, and begun ones now and then and when the queue stops.

    ``stops`` is when the queue does, by :func:`time.monotonic`, and ``every`` the seconds between begun cells' packs.
    """

    def __init__(self, cells: Path, packs: Path, stops: float, every: float) -> None:
        super().__init__(daemon=True)
        self._cells = cells
        self._packs = packs
        self._stops = stops
        self._every = every
        self._packed = dict[Path, tuple[Progress, int]]()
        """How far each cell was, and how long its log, when it was packed last."""
        self._over = threading.Event()

    def run(self) -> None:
        due = time.monotonic() + self._every
        while not self._over.wait(_LOOK_EVERY_S):
            now = time.monotonic()
            begun = now >= min(due, self._stops)
            if begun:
                due = now + self._every
            try:
                self.pack(begun=begun)
            except DataError as error:
                _say(str(error))  # the last packs, at the end, fail in the same way or make up for it

    def end(self) -> None:
        """Return once nothing is being packed any more."""
        self._over.set()
        self.join()

    def pack(self, *, begun: bool) -> None:
        """Pack cells that have changed since they were packed last: finished ones, then, with ``begun``, the others."""
        states = {
            log.parent: (progress_of(log.parent), log.stat().st_size) for log in self._cells.glob(f"*/{LOG_NAME}")
        }
        for cell, state in sorted(states.items(), key=lambda one: not one[1][0].is_finished):
            if self._packed.get(cell) != state and (begun or state[0].is_finished):
                pack_cell(cell, self._packs)
                self._packed[cell] = state


def _say(line: str) -> None:
    click.echo(f"gpu_queue: {line}", err=True)


if __name__ == "__main__":
    main()
