"""The units of ``run/systemd``: systemd finds nothing wrong with them, and they start what the images start."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedml_dapper.process.interruption import GRACE_S, INTERRUPTED

from ..platform.processes import ROOT
from .images import image

SERVER, SILO = (ROOT / "run" / "systemd" / f"fedml-dapper-{name}.service" for name in ("server", "silo@"))
PYTHON = "/opt/fedml-dapper/bin/python"
MAX_EXPOSURE = 20
"""Of 100, as ``systemd-analyze security`` reckons; a service that says nothing has 96."""
OF_ITS_OWN = {
    "Description", "EnvironmentFile", "ExecStart", "LoadCredential", "RestartPreventExitStatus", "RestartSec",
    "StateDirectory", "StateDirectoryMode", "TimeoutStopSec",
}  # fmt: skip

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine: apt-get install systemd"
)


def directives(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text().replace("\\\n", " ").splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def analyse(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@needs_systemd
@pytest.mark.parametrize("unit", [SERVER, SILO], ids=["server", "silo"])
def test_systemd_takes_it_and_it_is_shut_in(unit: Path, tmp_path: Path) -> None:
    here = tmp_path / unit.name
    here.write_text(unit.read_text().replace(PYTHON, "/bin/true"))  # which is there
    verified = analyse("verify", "--recursive-errors=no", "--man=no", here)
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = analyse("security", "--offline=yes", f"--threshold={MAX_EXPOSURE}", unit)
    assert judged.returncode == 0, judged.stdout


@pytest.mark.parametrize(
    ("unit", "target", "command"), [(SERVER, "server", ()), (SILO, "silo", ("--rank", "2"))], ids=["server", "silo"]
)
def test_it_starts_what_the_image_starts(unit: Path, target: str, command: Sequence[str]) -> None:
    [start] = directives(unit)["ExecStart"]
    places = {
        "%d": "/run/secrets",
        "%S/fedml-dapper-server": "/runs",
        "%S/fedml-dapper-silo-%i": "/runs",
        "/etc/fedml-dapper": "/experiment",
        "%i": "2",
    }
    for here, there in places.items():
        start = start.replace(here, there)
    program, *options = shlex.split(start)
    assert program == PYTHON
    assert sorted(options) == sorted([*image(target).entrypoint[1:], *command, "$OPTIONS"])
    assert directives(unit)["WorkingDirectory"] == ["/etc/fedml-dapper"]


@pytest.mark.parametrize(("unit", "name"), [(SERVER, "server"), (SILO, "silo-%i")], ids=["server", "silo"])
def test_it_sees_its_own_key_alone(unit: Path, name: str) -> None:
    files = [f"{file}:/etc/fedml-dapper/certs/{file}" for file in ("ca.pem", f"{name}.pem", f"{name}.key")]
    assert directives(unit)["LoadCredential"] == files


def test_wrong_settings_are_not_started_for_ever_and_a_stop_is_no_failure() -> None:
    server, silo = directives(SERVER), directives(SILO)
    assert server["RestartPreventExitStatus"] == ["2"]
    for unit in (server, silo):
        assert unit["Restart"] == ["on-failure"]
        assert unit["SuccessExitStatus"] == [str(INTERRUPTED)]
        assert int(unit["TimeoutStopSec"][0].removesuffix("s")) > GRACE_S
    # a silo that ends at once is started five times within the limit's time, one that has looked for the server is not
    [times], [pause], [within] = silo["StartLimitBurst"], silo["RestartSec"], silo["StartLimitIntervalSec"]
    burst, pause_s, within_s = int(times), int(pause.removesuffix("s")), 60 * int(within.removesuffix("min"))
    assert burst * (pause_s + 30) < within_s <= burst * (pause_s + 120)


def test_both_are_shut_in_alike() -> None:
    server, silo = (
        {key: value for key, value in directives(unit).items() if key not in OF_ITS_OWN} for unit in (SERVER, SILO)
    )
    assert server == silo
