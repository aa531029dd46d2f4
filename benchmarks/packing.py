"""Packs of a bench's cells: small files, from which another machine goes on where this one was.

A pack is one state of one cell, finished or begun: a zip archive that is cut into pieces. The pieces' names hold the
cell, its round, the archive's digest and how many they are. So a pack whose pieces are not all there is noticed, and
pieces of two states never count as one.

    python -m benchmarks.packing PACKS STORE    # take what is packed into a store of benches, e.g. benches/paper
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import click

from fedml_dapper.benches.cell import LOCK_NAME, is_finished
from fedml_dapper.benches.diagnosis import DIAGNOSIS_NAME
from fedml_dapper.benches.results import CELLS_NAME
from fedml_dapper.errors import DataError
from fedml_dapper.federation import CHECKPOINTS_NAME, LEDGER_NAME
from fedml_dapper.federation.run_folder.file_names import MODEL_NAME
from fedml_dapper.files.atomic import explained, scratch_folder, written_whole
from fedml_dapper.files.locks import locked
from fedml_dapper.process.complaint import complaining

PIECE_BYTES = 15 << 20
"""Most bytes of a file: what takes files from a machine may take none of 16 MiB."""
_CHUNK_BYTES = 1 << 20
_ROUND = re.compile(r"round_(\d+)\.safetensors")
_MEMBER = re.compile(rf"\w[\w.-]*|{CHECKPOINTS_NAME}/{_ROUND.pattern}")
_PIECE = re.compile(
    r"(?P<cell>\w[\w.-]*)\.(?P<state>finished|round\d+)\.(?P<digest>[0-9a-f]{16})\.\d+-of-(?P<count>\d+)\.pack"
)
_EVERY_DATE = (1980, 1, 1, 0, 0, 0)
"""Date of each file in an archive, so that equal states have equal archives."""


@dataclass(frozen=True)
class Progress:
    """How far a cell is."""

    is_finished: bool
    rounds: int
    """Rounds after which it goes on: those of its latest checkpoint. 0 where there is none, or it is finished."""

    def is_behind(self, other: Progress) -> bool:
        """Whether ``other`` is further."""
        return (self.is_finished, self.rounds) < (other.is_finished, other.rounds)

    def __str__(self) -> str:
        return "finished" if self.is_finished else f"round{self.rounds:05d}"


@dataclass(frozen=True)
class Pack:
    """One state of a cell."""

    cell: str
    """Name of its folder."""
    progress: Progress
    digest: str
    """Beginning of the archive's SHA-256, in hexadecimal digits."""
    count: int
    """Number of pieces."""

    def pieces(self, folder: Path) -> list[Path]:
        """Return the places of the pieces, in order, whether they are there or not."""
        name = f"{self.cell}.{self.progress}.{self.digest}"
        return [folder / f"{name}.{number}-of-{self.count}.pack" for number in range(1, self.count + 1)]


def pack_cell(cell: Path, packs: Path, piece_bytes: int = PIECE_BYTES) -> Pack | None:
    """Pack the cell in the folder ``cell``, which may be running, into files of at most ``piece_bytes`` in ``packs``.

    Packed is what it needs to go on, or what results are read from if it is finished: its files but for the model, and
    the latest checkpoint. Earlier packs of the cell are removed once the new one is whole.

    Returns:
        The pack; None where one is there that is further.

    Raises:
        DataError: The disk does not take it.
    """
    with explained(packs), tempfile.TemporaryFile() as archive:
        progress = _archived(cell, archive)
        size = archive.tell()
        pack = Pack(cell.name, progress, _digest(archive), -(-size // piece_bytes))
        earlier = [other for other in found_packs(packs) if other.cell == cell.name and other != pack]
        if any(progress.is_behind(other.progress) and not _problem(other, packs) for other in earlier):
            return None
        if _problem(pack, packs):
            _write_pieces(archive, pack.pieces(packs), piece_bytes)
    for other in earlier:
        for piece in other.pieces(packs):
            piece.unlink(missing_ok=True)
    return pack


def unpack(packs: Path, store: Path, complain: Callable[[str], None]) -> list[Pack]:
    """Put what is in ``packs`` into the cells of ``store``, each cell's furthest pack that is whole.

    A cell that is as far in ``store`` stays as it is.

    Args:
        packs: Folder of :func:`pack_cell`'s files.
        store: Folder of benches.
        complain: Called with one line for each pack that cannot be used.

    Returns:
        The packs whose cells are in ``store`` now.

    Raises:
        DataError: The disk does not take a cell, or another process is running it.
    """
    by_cell = defaultdict[str, list[Pack]](list)
    for pack in found_packs(packs):
        by_cell[pack.cell].append(pack)
    taken = []
    for name, known in sorted(by_cell.items()):
        folder = store / CELLS_NAME / name
        for pack in sorted(known, key=lambda one: (one.progress.is_finished, one.progress.rounds), reverse=True):
            if not progress_of(folder).is_behind(pack.progress):
                break
            if problem := _problem(pack, packs):
                complain(f"{pack.pieces(packs)[0]}: {problem}; the cell goes on from an earlier pack, or begins anew")
                continue
            _extract(pack, packs, folder)
            taken.append(pack)
            break
    return taken


def progress_of(cell: Path) -> Progress:
    """Return how far the cell in the folder ``cell`` is."""
    if is_finished(cell):
        return Progress(True, 0)
    checkpoint = _latest_checkpoint(cell)
    return Progress(False, 0 if checkpoint is None else _round_of(checkpoint))


def found_packs(folder: Path) -> list[Pack]:
    """Return the packs of which a piece is in ``folder``."""
    found = set()
    for piece in folder.glob("*.pack"):
        if named := _PIECE.fullmatch(piece.name):
            finished = named["state"] == "finished"
            progress = Progress(finished, 0 if finished else int(named["state"].removeprefix("round")))
            found.add(Pack(named["cell"], progress, named["digest"], int(named["count"])))
    return sorted(found, key=str)


def _archived(cell: Path, archive: IO[bytes]) -> Progress:
    """Write the archive of ``cell``, which meanwhile goes on."""
    while True:
        archive.seek(0)
        archive.truncate()
        before = progress_of(cell)
        try:
            _write_archive(cell, before, archive)
        except FileNotFoundError:  # a checkpoint that a later one replaced, or all of them at the cell's end
            if progress_of(cell) == before:
                raise
            continue
        if before.is_finished or not is_finished(cell):
            return before


def _write_archive(cell: Path, progress: Progress, archive: IO[bytes]) -> None:
    checkpoint = None if progress.is_finished else _latest_checkpoint(cell)
    left_out = {MODEL_NAME, LOCK_NAME}
    if not progress.is_finished and checkpoint is None:
        left_out.add(LEDGER_NAME)  # of rounds that have to be run again
    with zipfile.ZipFile(archive, "w") as zipped:
        if checkpoint is not None:  # before the ledger, which then has all of its rounds
            _add(zipped, checkpoint, f"{CHECKPOINTS_NAME}/{checkpoint.name}", zipfile.ZIP_STORED)
        for file in sorted(cell.iterdir()):
            if file.is_file() and file.name not in left_out and _MEMBER.fullmatch(file.name):
                _add(zipped, file, file.name, zipfile.ZIP_LZMA)


def _add(zipped: zipfile.ZipFile, file: Path, name: str, compression: int) -> None:
    member = zipfile.ZipInfo(name, _EVERY_DATE)
    member.compress_type = compression
    with file.open("rb") as source, zipped.open(member, "w", force_zip64=True) as target:
        shutil.copyfileobj(source, target, _CHUNK_BYTES)


def _write_pieces(archive: IO[bytes], pieces: Sequence[Path], piece_bytes: int) -> None:
    archive.seek(0)
    for piece in pieces:
        with written_whole(piece) as scratch:
            scratch.write_bytes(archive.read(piece_bytes))


def _extract(pack: Pack, packs: Path, folder: Path) -> None:
    """Put the cell of a whole pack into ``folder``, in place of what is there."""
    with (
        explained(folder),
        scratch_folder(folder.parent) as scratch,
        tempfile.TemporaryFile() as archive,
    ):
        _join(pack, packs, archive)
        with zipfile.ZipFile(archive) as zipped:
            for name in zipped.namelist():
                if not _MEMBER.fullmatch(name):
                    raise DataError(f"{pack.pieces(packs)[0]}: holds `{name}`, which is none of a cell's files")
                zipped.extract(name, scratch)
        folder.mkdir(exist_ok=True)
        with locked(folder / LOCK_NAME):
            for file in folder.iterdir():
                if file.is_dir():
                    shutil.rmtree(file)
                elif file.name != LOCK_NAME:
                    file.unlink()
            for file in sorted(scratch.iterdir(), key=lambda one: one.name.startswith(DIAGNOSIS_NAME)):
                file.replace(folder / file.name)  # the diagnosis comes last: it says that the cell is finished


def _problem(pack: Pack, folder: Path) -> str:
    """Return why a pack cannot be used; empty if it can."""
    missing = [piece.name for piece in pack.pieces(folder) if not piece.is_file()]
    if missing:
        return f"{len(missing)} of {pack.count} pieces are missing"
    with tempfile.TemporaryFile() as archive:
        _join(pack, folder, archive)
        return "" if _digest(archive) == pack.digest else "it is damaged: its digest is another"


def _join(pack: Pack, folder: Path, archive: IO[bytes]) -> None:
    for piece in pack.pieces(folder):
        archive.write(piece.read_bytes())


def _digest(archive: IO[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(archive):
        digest.update(chunk)
    return digest.hexdigest()[:16]


def _chunks(archive: IO[bytes]) -> Iterator[bytes]:
    archive.seek(0)
    while chunk := archive.read(_CHUNK_BYTES):
        yield chunk


def _latest_checkpoint(cell: Path) -> Path | None:
    found = (path for path in (cell / CHECKPOINTS_NAME).glob("round_*") if _ROUND.fullmatch(path.name))
    return max(found, key=_round_of, default=None)


def _round_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.removeprefix("round_"))


@click.command()
@click.argument("packs", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("store", type=click.Path(file_okay=False, path_type=Path))
def main(packs: Path, store: Path) -> None:
    """Take the cells that are packed in PACKS into STORE, where `fedml-dapper bench --output STORE` goes on."""
    with complaining("packing"):
        for pack in unpack(packs, store, lambda line: click.echo(f"packing: {line}", err=True)):
            click.echo(f"{pack.cell}: {pack.progress}")


if __name__ == "__main__":
    main()
