"""A bench by quarters of an hour, on a CPU: real cells, killed in their midst, and gone on with elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from benchmarks.packing import Progress, found_packs, unpack
from fedml_dapper.benches.diagnosis import DIAGNOSIS_NAME
from fedml_dapper.benches.grid import Cell, cells, load_bench
from fedml_dapper.benches.queue import run_queue
from fedml_dapper.benches.results import CELLS_NAME
from fedml_dapper.federation import LEDGER_NAME
from fedml_dapper.federation.run_folder.ledger import count_rounds

from ..benches.test_queue import TINY, without_seconds
from ..holding import held_before
from ..waiting import wait_until

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_queue.sh"
WHEELS = ROOT / "benchmarks" / "gpu_queue_wheels.txt"
ON_THE_MACHINE = (
    "torch", "torchvision", "numpy", "scipy", "scikit-learn", "matplotlib", "safetensors", "grpcio", "jinja2",
)  # fmt: skip
"""What the machine has, with what these need."""
NO_EXTRA = {"extra": ""}
PATIENCE_S = 1200
"""Several processes in turns load torch, on a machine that may be busy."""
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """A cell of one round, then one of three."""
    path = tmp_path / "tiny.yaml"
    values = {
        "title": "tiny",
        "source": "none",
        "experiment": "digits_offline.yaml",
        "profiles": {"small": {"seeds": [1], "note": "tiny", "settings": TINY}},
        "reference": "FedAvg",
        "variants": [
            {"label": "FedAvg", "method": "fedavg", "settings": {"train_args": {"comm_round": 1}}},
            {"label": "DapperFL", "method": "dapperfl"},
        ],
    }
    path.write_text(yaml.safe_dump(values))
    return path


def quarter(bench: Path, out: Path, site: str, *options: str) -> subprocess.Popen[str]:
    """Someone's machine: ``site`` is what each of its processes begins with."""
    folder = out.parent / f"{out.name}-machine"
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(site)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(folder), "TMPDIR": str(folder), "PATH": path}
    environment.pop("DAPPER_WHEELS", None)
    command = ["bash", str(SCRIPT), str(bench), "600", str(out), "--device", "cpu", "--jobs", "1", *options]
    return subprocess.Popen(
        command, env=environment, start_new_session=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def cells_of(bench: Path) -> list[Cell]:
    return cells(load_bench(str(bench)), "small")


def whole_run(bench: Path, store: Path) -> dict[str, tuple[Any, str]]:
    """Ledger and diagnosis of cells that nobody interrupted."""
    run_queue(cells_of(bench), store, jobs=1, max_seconds=None, tell=lambda _: None)
    return results(bench, store)


def results(bench: Path, store: Path) -> dict[str, tuple[Any, str]]:
    folders = [store / cell.folder for cell in cells_of(bench)]
    return {
        folder.name: (without_seconds(folder / LEDGER_NAME), (folder / DIAGNOSIS_NAME).read_text())
        for folder in folders
    }


@pytest.mark.long
def test_a_machine_that_is_gone_takes_nothing_along_that_was_finished(
    bench: Path, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    fedavg, dapperfl = (cell.folder for cell in cells_of(bench))
    first = tmp_path / "first"
    killed = quarter(bench, first, held_before(3), "--pack-every", "0")
    started.append(killed)
    ready = {fedavg: Progress(True, 0), dapperfl: Progress(False, 2)}

    def is_ready() -> bool:
        return {pack.cell: pack.progress for pack in found_packs(first)} == ready

    wait_until(lambda: is_ready() or killed.poll() is not None, PATIENCE_S)
    os.killpg(killed.pid, signal.SIGKILL)  # the machine
    killed.communicate()
    of_fedavg = [pack for pack in found_packs(first) if pack.cell == fedavg]

    second = tmp_path / "elsewhere" / "second"
    shutil.copytree(first, second)
    last = quarter(bench, second, without_strangers())
    started.append(last)
    said, _ = last.communicate()
    assert last.returncode == 0, said
    assert f"goes on: {dapperfl}, round00002" in said
    packed = found_packs(second)
    assert {pack.cell: pack.progress for pack in packed} == dict.fromkeys(ready, Progress(True, 0))
    assert [pack for pack in packed if pack.cell == fedavg] == of_fedavg  # not run again
    assert all(file.stat().st_size < 16 << 20 for file in second.iterdir())
    machine = second.with_name("second-machine")
    assert not list(machine.glob("gpu_queue-*"))  # nothing is left but the packs

    unpack(second, tmp_path / "store", pytest.fail)
    assert results(bench, tmp_path / "store" / CELLS_NAME) == whole_run(bench, tmp_path / "whole")


def without_strangers() -> str:
    """A beginning of processes that have nothing but what the machine has, and the wheels that it is given."""
    listed = {name for line in WHEELS.read_text().splitlines() if (name := line.partition("#")[0].strip())}
    known = {_normal(name) for name in listed} | _with_needs(ON_THE_MACHINE) | {"fedml-dapper", "setuptools"}
    strangers = {
        module
        for module, owners in packages_distributions().items()
        if not known & {_normal(owner) for owner in owners} and not (ROOT / module).exists()
    }
    assert {"fedml", "pytest", "wandb"} <= strangers
    return WITHOUT.replace("{missing}", repr(strangers))


def _with_needs(names: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    waiting = [_normal(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            needs = map(Requirement, distribution(name).requires or ())
            waiting += [_normal(need.name) for need in needs if need.marker is None or need.marker.evaluate(NO_EXTRA)]
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.long
def test_who_is_asked_to_end_packs_what_was_begun(
    bench: Path, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    out = tmp_path / "out"
    asked = quarter(bench, out, held_before(3))
    started.append(asked)
    machine = tmp_path / "out-machine"
    _, dapperfl = (cell.folder for cell in cells_of(bench))

    def has_begun() -> bool:
        ledgers = list(machine.glob(f"gpu_queue-*/{CELLS_NAME}/{dapperfl}/{LEDGER_NAME}"))
        return any(count_rounds(ledger)[1] >= 2 for ledger in ledgers)

    wait_until(lambda: has_begun() or asked.poll() is not None, PATIENCE_S)
    asked.terminate()
    said, _ = asked.communicate()
    assert asked.returncode == 130, said
    progress = {pack.cell: pack.progress for pack in found_packs(out)}
    assert len(progress) == 2
    assert progress[dapperfl].rounds in {1, 2}  # the second checkpoint comes right after the ledger's line
    assert not list(machine.glob("gpu_queue-*"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tabel2", "1", "OUT"], "did you mean `table2`"),
        (["table2", "1", "OUT", "--output=here"], "--output=here: MINUTES and OUT say"),
        (["table2", "0", "OUT"], "0.0 is not in the range x>0"),
        (["table2", "1", "OUT", "--proflie", "paper"], "No such option"),
    ],
)
def test_mistakes_end_it_before_it_begins(arguments: list[str], message: str, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.gpu_queue", *arguments]
    asked = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert asked.returncode == 2
    assert message in asked.stderr
    assert "Traceback" not in asked.stderr
    assert list(tmp_path.iterdir()) == []
