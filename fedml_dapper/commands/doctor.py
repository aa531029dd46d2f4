"""``fedml-dapper doctor``: check that the shipped commands will work on this machine, and say what to do if not.

Nothing that may be broken is imported: torch, mpi4py and the rest are tried in processes of their own. So ``python -m
fedml_dapper.doctor`` works also where ``fedml-dapper`` itself cannot start. No check uses the network.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import click
from packaging.requirements import Requirement
from pydantic import BaseModel, ConfigDict, TypeAdapter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedml_dapper.commands.options import json_option
from fedml_dapper.config import FEDML_GRPC_HOLE

Status = Literal["ok", "info", "warning", "failed"]
"""``failed``: a shipped command will not work. ``warning``: something optional is missing, or untested."""

GRPC_BASE_PORT = 8890
"""FedML's ``CommunicationConstants.GRPC_BASE_PORT``: the process of rank r listens on this port plus r."""
GRPC_RANKS = 11
"""Processes of a usual run: the server and ten silos."""
MPI_TIMEOUT_S = 30.0

_COLOURS: dict[Status, str] = {"ok": "green", "info": "default", "warning": "yellow", "failed": "red"}


class Row(BaseModel):
    """Result of one check."""

    model_config = ConfigDict(frozen=True)

    check: str
    status: Status
    found: str
    todo: str = ""


def diagnose() -> Iterator[Row]:
    """Run all checks, and yield each row as soon as it is known."""
    yield check_python(sys.version_info[:2])
    for distribution in ("fedml", "fedml-dapper"):
        yield from check_requirements(distribution)
    with ThreadPoolExecutor(1) as aside:  # these run one after another while check_torch runs, which takes as long
        data = aside.submit(check_data)
        packages = aside.submit(check_pkg_resources)
        masks = aside.submit(check_masks)
        mpi = aside.submit(check_mpi)
        torch = check_torch()
    yield packages.result()
    yield torch
    if torch.status != "failed":  # data sets are loaded by torch
        yield from data.result()
    yield masks.result()
    yield mpi.result()
    yield check_ports(GRPC_BASE_PORT, GRPC_RANKS)
    yield about_fedml_grpc()
    yield from look_for_mqtt_tools()
    yield from measure_machine(Path.cwd())


def check_python(version: tuple[int, int]) -> Row:
    found = ".".join(map(str, version))
    todo = "use Python 3.11; run/setup.sh makes .venv with it"
    if version == (3, 11):
        return Row(check="Python", status="ok", found=found)
    if (3, 10) <= version <= (3, 12):
        return Row(check="Python", status="warning", found=f"{found}, not tested", todo=f"if anything fails, {todo}")
    return Row(check="Python", status="failed", found=found, todo=todo)


def check_requirements(distribution: str) -> Iterator[Row]:
    """Yield a row for each of ``distribution``'s own requirements that is not met, or one that says all are."""
    check = f"requirements of {distribution}"
    try:
        installed = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        yield Row(check=check, status="failed", found=f"{distribution} is not installed", todo="bash run/setup.sh")
        return
    requirements = [Requirement(text) for text in installed.requires or ()]
    wanted = [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    violations = [row for one in wanted if (row := _violation(check, one)) is not None]
    yield from violations
    if not violations:
        yield Row(check=check, status="ok", found=f"{installed.version}, all {len(wanted)} met")


def _violation(check: str, wanted: Requirement) -> Row | None:
    try:
        version = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        version = None
    if version is not None and wanted.specifier.contains(version, prereleases=True):
        return None
    pinned = Requirement(f"{wanted.name}{wanted.specifier}")
    return Row(
        check=check,
        status="failed",
        found=f"{wanted.name} {version or 'is not installed'}; needed: {wanted.specifier or 'any version'}",
        todo=f"pip install -c constraints.txt '{pinned}'",
    )


def check_pkg_resources() -> Row:
    """Check ``pkg_resources``, which ``import fedml`` and its wandb 0.13.2 need, and setuptools 81 dropped."""
    tried = _python("import pkg_resources")
    if tried.returncode == 0:
        return Row(check="pkg_resources", status="ok", found="importable")
    return Row(check="pkg_resources", status="failed", found=_reason(tried), todo="pip install 'setuptools<81'")


_TRY_TORCH = """
import torch, torchvision
torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
print(torch.__version__, torchvision.__version__)
"""
_LOOK_FOR_DATA = """
import json
from fedml_dapper.datasets import PUBLISHED, data_root, missing_domains
missing = {name: missing_domains(name, data_root(None)) for name in PUBLISHED}
absent = [name for name, suite in PUBLISHED.items() if len(missing[name]) == len(suite.domains)]
print(json.dumps({"root": str(data_root(None)), "missing": missing, "absent": absent}))
"""


class _FoundData(BaseModel):
    root: Path
    missing: dict[str, list[str]]
    """Missing domains by suite."""
    absent: list[str]
    """Suites without any domain."""


def check_torch() -> Row:
    """Check that torchvision loads, whose compiled operators need the torch they were built with."""
    tried = _python(_TRY_TORCH)
    todo = "install both from the same index: pip install --force-reinstall -c constraints.txt torch torchvision"
    if tried.returncode != 0:
        return Row(check="torch and torchvision", status="failed", found=_reason(tried), todo=todo)
    torch, torchvision = tried.stdout.splitlines()[-1].split()
    found = f"torch {torch}, torchvision {torchvision}"
    if torch.partition("+")[2] != torchvision.partition("+")[2]:
        return Row(check="torch and torchvision", status="failed", found=f"{found}: different builds", todo=todo)
    return Row(check="torch and torchvision", status="ok", found=found)


def check_data() -> list[Row]:
    """Check which suites have all their domains below the root of the data; no image is read."""
    looked = _python(_LOOK_FOR_DATA)
    if looked.returncode != 0:
        return [Row(check="data", status="failed", found=_reason(looked), todo="bash run/setup.sh")]
    return list(_judge(_FoundData.model_validate_json(looked.stdout.splitlines()[-1])))


def _judge(data: _FoundData) -> Iterator[Row]:
    where = str(data.root.absolute())
    todo = "data/README.md says how to get them; `fedml-dapper data check` reads what is there"
    if data.root.is_dir():
        yield Row(check="data", status="ok", found=where)
    elif "DAPPER_DATA" in os.environ:
        yield Row(
            check="data", status="failed", found=f"DAPPER_DATA: no folder {where}", todo="set it to the right one"
        )
    else:
        found = f"no folder {where}; digits_offline does without"
        yield Row(check="data", status="warning", found=found, todo="set DAPPER_DATA to your data")
    for name, missing in data.missing.items():
        if missing and name not in data.absent:
            yield Row(check=f"data: {name}", status="warning", found=f"missing: {', '.join(missing)}", todo=todo)
        elif not missing:
            yield Row(check=f"data: {name}", status="ok", found="all domains")
    if data.absent:
        found = f"nothing of: {', '.join(data.absent)}"
        yield Row(check="data of other suites", status="warning", found=found, todo=todo)


_TRY_MASKS = """
import os, time
import numpy as np
from fedml_dapper.secure_sum.cells import Places
from fedml_dapper.secure_sum.keys import KeyPair
from fedml_dapper.secure_sum.keystream import ChaCha20Stream, add
words, everywhere = np.zeros(2**22, dtype=np.uint32), Places(np.array([2**22]), np.array([True]))
one, other = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))
key = one.agreed(other.public, b"doctor")
begun = time.perf_counter()
add(words, everywhere, ChaCha20Stream(key))
print(f"{words.nbytes / 1e9 / (time.perf_counter() - begun):.2g}")
"""


def check_masks() -> Row:
    """Check secure aggregation's algorithms, which a `cryptography` built for FIPS lacks, and time them."""
    tried = _python(_TRY_MASKS)
    if tried.returncode != 0:
        todo = "only secure aggregation needs it: pip install -c constraints.txt cryptography"
        return Row(check="masks", status="warning", found=_reason(tried), todo=todo)
    return Row(check="masks", status="ok", found=f"secure aggregation masks {tried.stdout.split()[-1]} GB/s")


_BE_ONE_OF_TWO = """
import sys
from mpi4py import MPI
size = MPI.COMM_WORLD.size
sys.exit(None if size == 2 else f"each rank sees {size} of 2 ranks")
"""


def check_mpi(timeout_s: float = MPI_TIMEOUT_S) -> Row:
    """Check that two MPI ranks see each other; a launcher and a library of different MPIs give one rank twice."""
    check = "MPI"
    if importlib.util.find_spec("mpi4py") is None:
        todo = "only run/mpi.sh needs it: pip install 'fedml-dapper[mpi]'"
        return Row(check=check, status="warning", found="mpi4py is not installed", todo=todo)
    imported = _python("from mpi4py import MPI")
    if imported.returncode != 0:
        return Row(
            check=check, status="failed", found=_reason(imported), todo="pip install mpich, or your system's MPI"
        )
    mpiexec = find_mpiexec()
    if mpiexec is None:
        found = f"no mpiexec in {Path(sys.executable).parent} or on PATH"
        return Row(check=check, status="failed", found=found, todo="pip install mpich")
    tried = _run([mpiexec, "-n", "2", sys.executable, "-c", _BE_ONE_OF_TWO], timeout_s)
    if tried.returncode == 0:
        return Row(check=check, status="ok", found=f"2 ranks with {mpiexec}")
    todo = "mpiexec and mpi4py must be of one MPI: pip install --force-reinstall mpi4py mpich"
    return Row(check=check, status="failed", found=f"{mpiexec} -n 2: {_reason(tried)}", todo=todo)


def find_mpiexec() -> str | None:
    """Find mpiexec, beside the interpreter, where pip puts it, or else on PATH."""
    places = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    return shutil.which("mpiexec", path=places)


def check_ports(base: int, ranks: int) -> Row:
    """Check that the processes of a cross-silo run over gRPC can listen on this machine."""
    check = "gRPC ports"
    ports = range(base, base + ranks)
    taken = {port: reason for port in ports if (reason := _cannot_listen(port)) is not None}
    if not taken:
        return Row(check=check, status="ok", found=f"{ports[0]} to {ports[-1]} are free on loopback")
    found = "; ".join(f"{port}: {reason}" for port, reason in taken.items())
    todo = f"end what listens there (ss -ltnp); FedML's ports are {base} + rank and cannot be moved"
    return Row(check=check, status="failed", found=found, todo=todo)


def about_fedml_grpc() -> Row:
    """Warn of what is publicly known of the backend ``GRPC``."""
    return Row(
        check="FedML's gRPC",
        status="warning",
        found=f"runs code of whoever reaches its port: {FEDML_GRPC_HOLE}",
        todo="leave backend at DAPPER_GRPC; GRPC starts only with allow_pickle: true, for networks that you trust",
    )


def _cannot_listen(port: int) -> str | None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ports of a run that just ended are free
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen(1)
        except OSError as error:
            return error.strerror or str(error)
    return None


def look_for_mqtt_tools() -> Iterator[Row]:
    """Look for what ``run/silo_mqtt.sh`` starts for a local trial."""
    broker = shutil.which("mosquitto", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))
    yield _optional("mosquitto", broker, "apt-get install mosquitto")
    moto = importlib.util.find_spec("moto")
    yield _optional("moto", moto.origin if moto else None, "pip install 'fedml-dapper[mqtt-trial]'")


def _optional(name: str, place: str | None, install: str) -> Row:
    todo = "" if place else f"only run/silo_mqtt.sh needs it: {install}"
    return Row(check=name, status="info", found=place or "not installed", todo=todo)


def measure_machine(folder: Path) -> Iterator[Row]:
    free = shutil.disk_usage(folder).free
    yield Row(check="disk", status="info", found=f"{_gib(free)} free in {folder}")
    yield Row(check="memory", status="info", found=_available_memory())


def _available_memory() -> str:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return "unknown: no /proc/meminfo on this system"
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return f"{_gib(kib['MemAvailable'] * 1024)} available of {_gib(kib['MemTotal'] * 1024)}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return _run([sys.executable, "-W", "ignore", "-c", code], timeout_s=120.0)


def _run(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in a process group of its own, which is gone when this returns."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            errors += f"\nno answer within {timeout_s:g} s"
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _reason(failed: subprocess.CompletedProcess[str]) -> str:
    """The last line of stderr, which mostly is Python's own error."""
    lines = failed.stderr.strip().splitlines() or failed.stdout.strip().splitlines()
    return lines[-1].strip() if lines else f"exit code {failed.returncode}"


def print_table(rows: Sequence[Row]) -> None:
    table = Table(title="fedml-dapper doctor")
    for column in ("check", "status", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for row in rows:
        status = Text(row.status, style=_COLOURS[row.status])
        table.add_row(Text(row.check), status, Text(row.found), Text(row.todo))
    Console().print(table)


@click.command("doctor")
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check this machine: Python, versions, torch, MPI, data, ports; exit code 2 if something will not work."""
    rows = list(diagnose())
    if as_json:
        click.echo(TypeAdapter(list[Row]).dump_json(rows))
    else:
        print_table(rows)
    ctx.exit(2 if any(row.status == "failed" for row in rows) else 0)
