"""``fedml-dapper-device`` alone: its wheel, in an environment with what it depends on and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ..platform.processes import ROOT, Silos
from .conftest import NUM_DEVICES, Devices

OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check")


def needed_by(distributions: list[str]) -> set[str]:
    """Names of what they depend on here, and so on, themselves included."""
    found = set[str]()
    while distributions:
        name = re.sub(r"[-_.]+", "-", distributions.pop()).lower()
        if name in found:
            continue
        found.add(name)
        wanted = map(Requirement, distribution(name).requires or ())
        distributions += [each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def link(name: str, folder: Path) -> None:
    """Put links to all that the distribution installed into ``folder``."""
    for file in distribution(name).files or ():
        top = Path(file).parts[0]
        place = Path(str(distribution(name).locate_file(top)))
        if top in ("..", "__pycache__") or not place.exists():
            continue
        if place.is_dir() and not (place / "__init__.py").exists() and not top.endswith(".dist-info"):
            target = folder / Path(file)  # a namespace that several distributions share: file by file
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.symlink_to(str(distribution(name).locate_file(file)))
        elif not (folder / top).exists():
            (folder / top).symlink_to(place)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and all that it depends on, for a Python that looks nowhere else."""
    tree, wheels, target = (tmp_path_factory.mktemp(name) for name in ("tree", "wheels", "target"))
    for folder in ("fedml_dapper", "config"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree)
    environment = os.environ | {"DAPPER_DISTRIBUTION": "device"}
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", ".", *OFFLINE, "--wheel-dir", wheels], cwd=tree, env=environment, check=True)
    [wheel] = wheels.iterdir()
    assert wheel.name.startswith("fedml_dapper_device-")
    subprocess.run([*pip, "install", *OFFLINE, "--target", target, wheel], cwd=tree, check=True)
    [info] = target.glob("fedml_dapper_device-*.dist-info")
    requirements = [Requirement(text).name for text in Distribution.at(info).requires or ()]
    for name in sorted(needed_by(requirements)):
        link(name, target)
    return target


@pytest.mark.long
def test_what_it_needs_is_enough_to_take_part(installed: Path, devices: Devices, server: Callable[[], Silos]) -> None:
    devices.write()
    here = {"PYTHONPATH": str(installed)}
    alone = [sys.executable, "-S", "-m", "fedml_dapper.device.entry"]  # -S: no other environment's packages
    names = ("fedml", "torch_pruning", "torchvision", "sklearn", "pandas", "rich", "wandb")
    absent = f"from importlib.util import find_spec; print([name for name in {names} if find_spec(name)])"
    looked = subprocess.run(
        [sys.executable, "-S", "-c", absent], env=os.environ | here, capture_output=True, text=True, check=True
    )
    assert looked.stdout == "[]\n"
    server_process = server()
    for rank in range(1, NUM_DEVICES + 1):
        devices.start(rank, command=alone, environment=here)
    assert server_process.wait(0) == 0, server_process.output(0) + devices.output(1)
    for rank, process in devices.processes.items():
        assert process.wait(300) == 0, devices.output(rank)
    export = [*alone, "export", "runs/silo-1", "--format", "torchscript", "-o", "exported"]
    subprocess.run(export, cwd=devices.folder, env=devices.environment | here, check=True)
    assert (devices.folder / "exported" / "model.torchscript").is_file()


@pytest.mark.long
def test_it_holds_neither_fedml_s_room_nor_pages(installed: Path) -> None:
    rooms = {path.name for path in (installed / "fedml_dapper").iterdir()} - {"__pycache__"}
    assert {"deployment", "device", "federation", "secure_grpc"} <= rooms
    assert rooms.isdisjoint({"platform", "evaluation", "commands", "benches", "search", "export", "cli.py", "runs.py"})
