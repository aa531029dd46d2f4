"""Every failure is a real one: a broken file on the path, an empty PATH, an occupied port."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedml_dapper.cli import main
from fedml_dapper.commands import doctor

from ..platform.processes import free_port


@pytest.mark.nightly
def test_this_machine_passes_without_importing_fedml_or_touching_the_network(tmp_path: Path) -> None:
    (tmp_path / "fedml.py").write_text("raise SystemError('imported')")
    (tmp_path / "sitecustomize.py").write_text(
        "import socket\n"
        "def refuse(*_):\n    raise SystemError('network')\n"
        "socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse\n"
    )
    without_data = {name: value for name, value in os.environ.items() if name != "DAPPER_DATA"}
    finished = subprocess.run(
        [sys.executable, "-m", "fedml_dapper.doctor", "--json"],
        env=without_data | {"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    rows = {row["check"]: row for row in json.loads(finished.stdout)}
    ports = rows.pop("gRPC ports")  # another run may hold them at this moment
    assert [row for row in rows.values() if row["status"] == "failed"] == []
    assert finished.returncode == (2 if ports["status"] == "failed" else 0)
    assert set(rows) == {
        "Python", "requirements of fedml", "requirements of fedml-dapper", "extras", "pkg_resources",
        "torch and torchvision", "masks",
        "MPI", "FedML's gRPC", "data", "data: digits_offline", "data of other suites", "mosquitto", "moto", "disk",
        "memory",
    }  # fmt: skip
    assert all(row["found"] for row in rows.values())
    assert rows["data: digits_offline"]["status"] == "ok"
    assert "office_caltech10" in rows["data of other suites"]["found"]
    assert rows["data of other suites"]["todo"]


@pytest.mark.nightly
def test_the_command_prints_a_table_and_exits_with_2_when_something_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAPPER_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("COLUMNS", "300")
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 2
    [line] = [line for line in result.stdout.splitlines() if "no folder" in line]
    assert "failed" in line
    assert str(tmp_path / "nowhere") in line


def test_the_table_shows_brackets_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    doctor.print_table([doctor.Row(check="MPI", status="warning", found="-", todo="pip install 'fedml-dapper[mpi]'")])
    assert "pip install 'fedml-dapper[mpi]'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 11), "ok"), ((3, 10), "warning"), ((3, 12), "warning"), ((3, 9), "failed"), ((3, 13), "failed")],
)
def test_python(version: tuple[int, int], status: str) -> None:
    row = doctor.check_python(version)
    assert row.status == status
    assert bool(row.todo) == (status != "ok")


def install(folder: Path, name: str, version: str, *requires: str, extras: Sequence[str] = ()) -> None:
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
        *(f"Provides-Extra: {extra}" for extra in extras),
    ]
    (metadata / "METADATA").write_text("\n".join(lines) + "\n")


def test_each_violated_pin_of_fedml_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "numpy", "2.4.0")
    install(tmp_path, "protobuf", "5.29.0")
    monkeypatch.syspath_prepend(tmp_path)
    rows = list(doctor.check_requirements("fedml"))
    assert {row.status for row in rows} == {"failed"}
    assert [row.found for row in rows] == ["numpy 2.4.0; needed: <2.0.0", "protobuf 5.29.0; needed: <4.0dev,>=3.20.2"]
    assert rows[0].todo == "pip install -c constraints.txt 'numpy<2.0.0'"


def test_missing_distributions_and_requirements_of_other_platforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "some-plugin", "1.0", "not-there>=2", "nor-this ; extra == 'all'", "nor-that ; os_name == 'vms'")
    monkeypatch.syspath_prepend(tmp_path)
    [row] = doctor.check_requirements("some-plugin")
    assert row.found == "not-there is not installed; needed: >=2"
    [row] = doctor.check_requirements("not-there")
    assert (row.status, row.found) == ("failed", "not-there is not installed")


def test_extras_that_are_there_and_that_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        tmp_path, "some-plugin", "1.0", "not-there>=2", "nor-this ; extra == 'far'", "click ; extra == 'near'",
        "nor-that ; extra == 'dev'", extras=("near", "far", "dev"),
    )  # fmt: skip
    monkeypatch.syspath_prepend(tmp_path)
    row = doctor.look_for_extras("some-plugin")
    assert (row.status, row.found) == ("info", "installed: near; missing: far")
    assert row.todo.endswith("pip install 'some-plugin[far]'")
    assert doctor.look_for_extras("not-there").found == "unknown: not-there is not installed"


def shadow(monkeypatch: pytest.MonkeyPatch, folder: Path, **modules: str) -> None:
    """Put broken modules before the real ones, for this process and those it starts."""
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_without_pkg_resources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shadow(monkeypatch, tmp_path, pkg_resources="raise ModuleNotFoundError('No module named pkg_resources')")
    row = doctor.check_pkg_resources()
    assert row.status == "failed"
    assert "No module named pkg_resources" in row.found
    assert row.todo == "pip install 'setuptools<81'"


TORCH = "__version__ = '2.15.0+cpu'\nzeros = lambda *shape: shape\n"


@pytest.mark.parametrize(
    ("torchvision", "found"),
    [
        ("raise RuntimeError('operator torchvision::nms does not exist')", "torchvision::nms does not exist"),
        ("class ops:\n    def nms(*_): raise NotImplementedError('no kernel for nms')\n", "no kernel for nms"),
        ("__version__ = '0.29.2+cu132'\nclass ops:\n    nms = print\n", "different builds"),
    ],
)
def test_torch_and_torchvision_of_different_builds(
    torchvision: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow(monkeypatch, tmp_path, torch=TORCH, torchvision=torchvision)
    row = doctor.check_torch()
    assert row.status == "failed"
    assert found in row.found
    assert "same index" in row.todo


def test_data_sets_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision = "__version__ = '0.30.0+cpu'\nclass ops:\n    nms = print\n"
    shadow(monkeypatch, tmp_path, torch=TORCH, torchvision=torchvision)
    torch, [data] = doctor.check_torch(), doctor.check_data()
    assert (torch.status, torch.found) == ("ok", "torch 2.15.0+cpu, torchvision 0.30.0+cpu")
    assert (data.check, data.status) == ("data", "failed")
    assert "torch" in data.found


@pytest.fixture
def lonely_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This interpreter, in a folder with no mpiexec beside it and none on PATH; returns the folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", "")
    return folder


mpi = pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")


@mpi
def test_mpi_without_a_launcher(lonely_python: Path) -> None:
    row = doctor.check_mpi()
    assert (row.status, row.todo) == ("failed", "pip install mpich")
    assert str(lonely_python) in row.found


@mpi
@pytest.mark.parametrize(
    ("script", "timeout_s", "found"),
    [
        ('shift 2; "$@"; "$@"', 120.0, "each rank sees 1 of 2 ranks"),  # what a launcher of another MPI amounts to
        ("echo no slots >&2; exit 1", 120.0, "no slots"),
        ("/bin/sleep 600", 1.0, "no answer within 1 s"),
    ],
)
def test_mpi_with_a_launcher_that_does_not_work(script: str, timeout_s: float, found: str, lonely_python: Path) -> None:
    launcher = lonely_python / "mpiexec"
    launcher.write_text(f"#!/bin/sh\n{script}\n")
    launcher.chmod(0o755)
    row = doctor.check_mpi(timeout_s=timeout_s)
    assert row.status == "failed"
    assert found in row.found


@mpi
def test_mpi_with_a_broken_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shadow(monkeypatch, tmp_path, mpi4py="raise ImportError('libmpi.so.12: cannot open shared object file')")
    row = doctor.check_mpi()
    assert row.status == "failed"
    assert "libmpi.so.12" in row.found


@pytest.mark.nightly
def test_data_that_is_there_and_data_that_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAPPER_DATA", raising=False)
    data, *_ = doctor.check_data()
    assert (data.check, data.status) == ("data", "warning")
    for name in ("caltech", "amazon", "webcam"):
        (tmp_path / "data" / "office_caltech10" / name).mkdir(parents=True)
    rows = {row.check: row for row in doctor.check_data()}
    assert rows["data"].status == "ok"
    assert rows["data: digits_offline"].status == "ok"
    assert (rows["data: office_caltech10"].status, rows["data: office_caltech10"].found) == ("warning", "missing: dslr")


def test_an_occupied_port_is_named() -> None:
    port = free_port()  # which nobody else takes when it is free again
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen(1)
        row = doctor.check_ports(port, 1)
    assert row.status == "failed"
    assert f"{port}: Address already in use" in row.found
    assert doctor.check_ports(port, 1).status == "ok"


def test_the_ports_are_fedmls() -> None:
    fedml = find_spec("fedml")
    if fedml is None or fedml.origin is None:
        pytest.skip("fedml is not installed")
    constants = Path(fedml.origin).parent / "core" / "distributed" / "communication" / "constants.py"
    [port] = re.findall(r"GRPC_BASE_PORT = (\d+)", constants.read_text())
    assert int(port) == doctor.GRPC_BASE_PORT


def test_optional_tools_are_information(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mosquitto").write_text("#!/bin/sh\n")
    (tmp_path / "mosquitto").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    mosquitto, moto = doctor.look_for_mqtt_tools()
    assert mosquitto.found == str(tmp_path / "mosquitto")
    assert {mosquitto.status, moto.status} == {"info"}
