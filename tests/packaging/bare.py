"""Services of ``compose.yaml`` as processes where there is no container engine: bubblewrap stands for it.

A service has a root of its own that is read-only, with nothing in it but what image and service name, and libraries of
this machine; its own /tmp; the user's number; no capabilities; and the program as its first process. The image's Python
is the one that runs the tests, and the network is this machine's.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from ..platform.processes import ROOT
from .images import FOLDER, compose, image

BUBBLEWRAP = shutil.which("bwrap")
INSTALLED = "/opt/fedml-dapper"
LIBRARIES = ("/lib", "/lib64", "/usr/lib", sys.base_prefix, str(ROOT / "fedml_dapper"))
"""Of this machine, and what a virtual environment points to; each at its own place."""


class Service:
    """One of ``compose.yaml``: started, asked how it is, and stopped as an engine does it."""

    def __init__(self, name: str, folder: Path, experiment: Path, certificates: Path) -> None:
        content = compose(experiment, certificates)
        service = content["services"][name]
        self._image = image(service["build"]["target"])
        self._command = service.get("command", [])
        self._patience_s = float(service["stop_grace_period"].removesuffix("s"))
        self._log = folder / f"{name}.log"
        self._volume = folder / "runs"
        self._volume.mkdir(exist_ok=True)
        self._uid, self._gid = self._image.user.split(":")
        (folder / "hosts").write_text("127.0.0.1 localhost server\n")
        (folder / "passwd").write_text(f"dapper:x:{self._uid}:{self._gid}::/tmp:/usr/sbin/nologin\n")
        self._mounts: dict[str, object] = {
            **{place: place for place in LIBRARIES if Path(place).exists()},
            INSTALLED: sys.prefix,
            "/opt/health.py": FOLDER / "health.py",
            "/etc/hosts": folder / "hosts",
            "/etc/passwd": folder / "passwd",
            "/experiment": experiment,
            **{f"/run/secrets/{secret}": content["secrets"][secret]["file"] for secret in service["secrets"]},
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def start(self) -> None:
        """By the image's entry point, with the service's command."""
        reader, writer = os.pipe()
        with self._log.open("ab") as log, os.fdopen(reader) as news:
            self._process = subprocess.Popen(
                [*self._bubblewrap("--as-pid-1", "--info-fd", str(writer)), *self._image.entrypoint, *self._command],
                stdout=log, stderr=log, pass_fds=[writer],
            )  # fmt: skip
            os.close(writer)
            self._pid = json.loads(news.read())["child-pid"]

    def healthy(self) -> bool:
        """What the image's health check says; where it is no, it says why."""
        asked = subprocess.run(
            [*self._bubblewrap(), *self._image.health], capture_output=True, text=True, timeout=60, check=False
        )
        assert asked.returncode == 0 or asked.stderr.startswith("health: "), asked.stderr
        return asked.returncode == 0

    def stop(self) -> int:
        """SIGTERM, and the exit code that follows within the service's time."""
        os.kill(self._pid, signal.SIGTERM)
        return self.wait(self._patience_s)

    def wait(self, seconds: float) -> int:
        assert self._process is not None
        return self._process.wait(seconds)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def _bubblewrap(self, *options: str) -> list[str]:
        variables = {name: value.replace(":$PATH", "") for name, value in self._image.environment.items()}
        return [
            str(BUBBLEWRAP), "--die-with-parent", "--new-session", "--unshare-user", "--unshare-pid", "--unshare-ipc",
            "--uid", self._uid, "--gid", self._gid, "--cap-drop", "ALL",
            # the service's own /tmp first: below this machine's may be the clone that is mounted next
            "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
            *(part for target, source in self._mounts.items() for part in ("--ro-bind", str(source), target)),
            "--bind", str(self._volume), "/runs",
            "--remount-ro", "/", "--chdir", self._image.folder,
            "--clearenv", *(part for name, value in variables.items() for part in ("--setenv", name, value)),
            *options, "--",
        ]  # fmt: skip
