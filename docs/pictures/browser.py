"""Pages as Chromium shows them: for screenshots, and for tests of what a reader sees."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

Theme = Literal["light", "dark"]
_SECONDS = 60


def chromium() -> str | None:
    """Path of the browser; None where there is none."""
    return shutil.which("chromium") or shutil.which("google-chrome")


class Page:
    """One tab, driven by Chromium's own protocol over two pipes."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = os.fdopen(commands, "wb"), os.fdopen(answers, "rb")
        self._count, self._session = 0, ""
        self._events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def show(self, file: Path, width: int, theme: Theme, height: int = 900) -> None:
        """Load ``file`` in a window ``width`` CSS pixels wide; a narrow one is a phone's."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": theme}
        self._call("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        self._events.clear()
        self._call("Page.navigate", url=file.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._read())

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", "the script failed"))
        return answer["result"].get("value")

    @property
    def complaints(self) -> list[str]:
        """What the browser has had to say of the page since it was loaded, for instance of its content policy."""
        self.evaluate("0")  # whatever came before is read by then
        return [event["params"]["entry"]["text"] for event in self._events if event["method"] == "Log.entryAdded"]

    def screenshot(self, width: int, height: int, top: float = 0) -> bytes:
        """A PNG of the page from ``top`` on."""
        clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
        answer = self._call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        session = {"sessionId": self._session} if self._session else {}
        command = {"id": self._count, "method": method, "params": params, **session}
        self._commands.write(json.dumps(command).encode() + b"\0")
        self._commands.flush()
        while (answer := self._read()).get("id") != self._count:
            self._events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> dict[str, Any]:
        text = bytearray()
        while (letter := self._answers.read(1)) != b"\0":
            if not letter:
                raise RuntimeError("Chromium has gone")
            text += letter
        message: dict[str, Any] = json.loads(text)
        return message


@contextmanager
def browser() -> Iterator[Page]:
    """A page of a browser that ends with the block. Raises :class:`FileNotFoundError` where there is none."""
    program = chromium()
    if program is None:
        raise FileNotFoundError("chromium: not on this machine")
    commands, answers = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory() as profile:
        options = f"--headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir={profile}"
        script = f"exec {program} {options} --remote-debugging-pipe 3<&{commands[0]} 4>&{answers[1]}"
        running = subprocess.Popen(
            ["bash", "-c", script], pass_fds=(commands[0], answers[1]), stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": profile},
        )  # fmt: skip
        os.close(commands[0])
        os.close(answers[1])
        try:
            yield Page(commands[1], answers[0])
        finally:
            running.terminate()
            running.wait(_SECONDS)
