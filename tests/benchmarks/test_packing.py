"""Packs of cells: whole or absent, small, never worse than what was there, and taken up on another machine."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import threading
import zipfile
from pathlib import Path

import pytest

from benchmarks.packing import Pack, Progress, found_packs, pack_cell, progress_of, unpack
from fedml_dapper.benches.diagnosis import DIAGNOSIS_NAME
from fedml_dapper.benches.results import CELLS_NAME
from fedml_dapper.errors import DataError
from fedml_dapper.federation import CHECKPOINTS_NAME, LEDGER_NAME

NAME = "digits-dapperfl-0123456789-seed1"
CHECKPOINT_BYTES = 5000


def make_cell(cell: Path, rounds: int, *, finished: bool = False) -> Path:
    """A cell's folder after so many rounds; its files hold lines and bytes that stand for a run's."""
    cell.mkdir(parents=True, exist_ok=True)
    (cell / "settings.yaml").write_text("common_args: {}\n")
    (cell / LEDGER_NAME).write_text("run\n" + "".join(f"round {number}\n" for number in range(1, rounds + 1)))
    (cell / "log.txt").write_text("a note\n")
    (cell / "lock").touch()
    (cell / "global_model.safetensors").write_bytes(b"model" * 1000)
    shutil.rmtree(cell / CHECKPOINTS_NAME, ignore_errors=True)
    if finished:
        (cell / DIAGNOSIS_NAME).write_text("{}\n")
        return cell
    for number in (rounds - 1, rounds):
        save_checkpoint(cell, number)
    return cell


def save_checkpoint(cell: Path, number: int) -> None:
    file = cell / CHECKPOINTS_NAME / f"round_{number:05d}.safetensors"
    file.parent.mkdir(exist_ok=True)
    unfinished = file.with_suffix(".new")
    unfinished.write_bytes(random.Random(number).randbytes(CHECKPOINT_BYTES))
    unfinished.replace(file)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def taken_up(packs: Path, store: Path) -> tuple[dict[str, bytes], list[str]]:
    """A cell's files after its pack was taken into ``store``, and what was complained of."""
    complaints: list[str] = []
    unpack(packs, store, complaints.append)
    return files_of(store / CELLS_NAME / NAME), complaints


def test_a_begun_cell_goes_on_from_its_latest_checkpoint(tmp_path: Path) -> None:
    cell = make_cell(tmp_path / NAME, rounds=10)
    pack = pack_cell(cell, tmp_path / "packs")
    assert pack is not None
    assert pack.progress == Progress(False, 10)
    found, complaints = taken_up(tmp_path / "packs", tmp_path / "store")
    assert complaints == []
    latest = f"{CHECKPOINTS_NAME}/round_00010.safetensors"
    needed = {"settings.yaml", LEDGER_NAME, "log.txt", latest}
    assert found == {name: content for name, content in files_of(cell).items() if name in needed}


def test_a_cell_without_a_checkpoint_keeps_its_log_and_begins_anew(tmp_path: Path) -> None:
    cell = make_cell(tmp_path / NAME, rounds=3)
    shutil.rmtree(cell / CHECKPOINTS_NAME)
    pack_cell(cell, tmp_path / "packs")
    assert found_packs(tmp_path / "packs")[0].progress == Progress(False, 0)
    assert taken_up(tmp_path / "packs", tmp_path / "store")[0].keys() == set()  # nothing to go on from
    [piece] = (tmp_path / "packs").iterdir()
    with zipfile.ZipFile(piece) as archive:
        assert archive.namelist() == ["log.txt", "settings.yaml"]


def test_a_finished_cell_keeps_what_its_results_are_read_from(tmp_path: Path) -> None:
    cell = make_cell(tmp_path / NAME, rounds=10, finished=True)
    pack_cell(cell, tmp_path / "packs")
    found, _ = taken_up(tmp_path / "packs", tmp_path / "store")
    assert found.keys() == {"settings.yaml", LEDGER_NAME, "log.txt", DIAGNOSIS_NAME}
    assert progress_of(tmp_path / "store" / CELLS_NAME / NAME).is_finished


def test_no_piece_is_larger_than_asked_for(tmp_path: Path) -> None:
    cell = make_cell(tmp_path / NAME, rounds=10)
    pack = pack_cell(cell, tmp_path / "packs", piece_bytes=1000)
    assert pack is not None
    sizes = [piece.stat().st_size for piece in pack.pieces(tmp_path / "packs")]
    assert len(sizes) == len(list((tmp_path / "packs").iterdir())) > CHECKPOINT_BYTES / 1000
    assert max(sizes) == 1000
    assert taken_up(tmp_path / "packs", tmp_path / "store")[0][LEDGER_NAME] == (cell / LEDGER_NAME).read_bytes()


def test_the_next_pack_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    packs = tmp_path / "packs"
    for rounds in (5, 10):
        pack_cell(make_cell(tmp_path / NAME, rounds), packs, piece_bytes=1000)
    assert [pack.progress.rounds for pack in found_packs(packs)] == [10]
    pack_cell(make_cell(tmp_path / NAME, 12, finished=True), packs)
    assert [pack.progress.is_finished for pack in found_packs(packs)] == [True]


def test_equal_states_are_equal_files(tmp_path: Path) -> None:
    """So that what was taken up and has not gone on is not written again."""
    cell = make_cell(tmp_path / NAME, rounds=10)
    pack_cell(cell, tmp_path / "packs")
    written = {file: file.stat().st_mtime_ns for file in (tmp_path / "packs").iterdir()}
    for file in cell.rglob("*"):
        os.utime(file, (1, 1))
    pack_cell(cell, tmp_path / "packs")
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "packs").iterdir()} == written


def test_packing_that_ends_in_its_midst_leaves_the_pack_before(tmp_path: Path) -> None:
    packs = tmp_path / "packs"
    pack_cell(make_cell(tmp_path / NAME, 5), packs, piece_bytes=1000)
    cell = make_cell(tmp_path / NAME, 10)
    pack = pack_cell(cell, tmp_path / "elsewhere", piece_bytes=1000)
    assert pack is not None
    last = pack.pieces(packs)[-1]
    last.mkdir()  # so that the disk takes all but the last piece
    with pytest.raises(DataError, match="cannot write"):
        pack_cell(cell, packs, piece_bytes=1000)
    found, [complaint] = taken_up(packs, tmp_path / "store")
    assert f"{CHECKPOINTS_NAME}/round_00005.safetensors" in found
    assert "1 of 6 pieces are missing" in complaint
    last.rmdir()
    pack_cell(cell, packs, piece_bytes=1000)
    assert found_packs(packs) == [pack]
    assert f"{CHECKPOINTS_NAME}/round_00010.safetensors" in taken_up(packs, tmp_path / "store")[0]


def test_a_damaged_pack_is_passed_over(tmp_path: Path) -> None:
    packs = tmp_path / "packs"
    pack_cell(make_cell(tmp_path / NAME, 5), packs, piece_bytes=1000)
    before = {file: file.read_bytes() for file in packs.iterdir()}
    pack = pack_cell(make_cell(tmp_path / NAME, 10), packs, piece_bytes=1000)
    assert pack is not None
    for file, content in before.items():
        file.write_bytes(content)
    piece = pack.pieces(packs)[2]
    piece.write_bytes(bytes([piece.read_bytes()[0] ^ 1]) + piece.read_bytes()[1:])
    found, [complaint] = taken_up(packs, tmp_path / "store")
    assert f"{CHECKPOINTS_NAME}/round_00005.safetensors" in found
    assert "is damaged" in complaint


def test_pieces_of_two_states_of_a_round_are_not_mixed(tmp_path: Path) -> None:
    """A round that is run again on a GPU may give other bits."""
    cell = make_cell(tmp_path / NAME, rounds=10)
    first = pack_cell(cell, tmp_path / "first", piece_bytes=1000)
    (cell / CHECKPOINTS_NAME / "round_00010.safetensors").write_bytes(random.Random(0).randbytes(CHECKPOINT_BYTES))
    second = pack_cell(cell, tmp_path / "second", piece_bytes=1000)
    assert first is not None
    assert second is not None
    first.pieces(tmp_path / "first")[1].unlink()
    second.pieces(tmp_path / "second")[0].unlink()
    shutil.copytree(tmp_path / "first", tmp_path / "second", dirs_exist_ok=True)
    found, complaints = taken_up(tmp_path / "second", tmp_path / "store")
    assert (len(found), len(complaints)) == (0, 2)


@pytest.mark.parametrize("rounds", [4, 12])
def test_a_finished_cell_is_not_replaced_by_one_that_began_anew(tmp_path: Path, rounds: int) -> None:
    packs = tmp_path / "packs"
    finished = pack_cell(make_cell(tmp_path / NAME, 10, finished=True), packs)
    shutil.rmtree(tmp_path / NAME)
    assert pack_cell(make_cell(tmp_path / NAME, rounds), packs) is None
    assert found_packs(packs) == [finished]


def test_what_the_store_has_further_stays(tmp_path: Path) -> None:
    pack_cell(make_cell(tmp_path / NAME, 5), tmp_path / "packs")
    store = tmp_path / "store"
    there = make_cell(store / CELLS_NAME / NAME, 7)
    before = files_of(there)
    assert taken_up(tmp_path / "packs", store) == (before, [])
    make_cell(there, 4)
    found, _ = taken_up(tmp_path / "packs", store)
    kept = [name for name in found if name.startswith(CHECKPOINTS_NAME)]
    assert kept == [f"{CHECKPOINTS_NAME}/round_00005.safetensors"]


def test_a_cell_that_goes_on_is_packed_as_it_was_at_one_moment(tmp_path: Path) -> None:
    cell = make_cell(tmp_path / NAME, rounds=2)
    packed_once = threading.Event()

    def go_on() -> None:
        with (cell / LEDGER_NAME).open("a") as ledger:
            for number in range(3, 400):
                ledger.write(f"round {number}\n")
                ledger.flush()
                save_checkpoint(cell, number)
                (cell / CHECKPOINTS_NAME / f"round_{number - 1:05d}.safetensors").unlink(missing_ok=True)
        packed_once.wait()
        (cell / DIAGNOSIS_NAME).write_text("{}\n")
        shutil.rmtree(cell / CHECKPOINTS_NAME)

    running = threading.Thread(target=go_on)
    running.start()
    packs = tmp_path / "packs"
    number = 0
    pack = None
    while pack is None or not pack.progress.is_finished:
        number += 1
        pack = pack_cell(cell, packs)
        assert pack is not None
        packed_once.set()
        found, complaints = taken_up(packs, tmp_path / f"store{number}")
        assert complaints == []
        assert len(found[LEDGER_NAME].splitlines()) > pack.progress.rounds
    running.join()
    assert len(found[LEDGER_NAME].splitlines()) == 400


def test_an_archive_with_other_files_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "foreign.zip", "w") as archive:
        archive.writestr("../settings.yaml", "")
    digest = hashlib.sha256((tmp_path / "foreign.zip").read_bytes()).hexdigest()[:16]
    foreign = Pack(NAME, Progress(False, 2), digest, 1)
    (tmp_path / "packs").mkdir()
    shutil.copy(tmp_path / "foreign.zip", foreign.pieces(tmp_path / "packs")[0])
    with pytest.raises(DataError, match=r"holds `\.\./settings\.yaml`"):
        taken_up(tmp_path / "packs", tmp_path / "store")
    assert not (tmp_path / "store" / CELLS_NAME / NAME).exists()


def test_a_disk_that_takes_nothing_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "packs").write_text("a file")
    with pytest.raises(DataError, match="cannot write"):
        pack_cell(make_cell(tmp_path / NAME, rounds=2), tmp_path / "packs")
