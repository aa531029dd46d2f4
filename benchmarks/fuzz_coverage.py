"""The server's decoder and checks under atheris, which follows the branches it reaches to messages nobody thought of.

    pip install atheris
    python -m benchmarks.fuzz_coverage corpus -max_total_time=600

``corpus`` is a folder that grows by what reached new branches; empty at first, it gets two valid uploads. Options are
libFuzzer's. An input is what follows a message's checksum, which is made to fit, as a hostile sender would see to. The
run ends with the input in a file as soon as anything but a refusal or a well-formed upload comes out.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris
import torch

with atheris.instrument_imports(include=["fedml_dapper.federation", "fedml_dapper.pruning"]):
    from benchmarks.fuzz_messages import Target
    from fedml_dapper.federation import framed

_LENGTH_BYTES = 4
_CONTENT = len(framed(b"", b"")) - _LENGTH_BYTES
"""Where in a message that begins which the checksum covers."""


def sealed(content: bytes) -> bytes:
    """A message with the header and the body in ``content``, as far as they reach, and a checksum that fits."""
    end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    return framed(content[_LENGTH_BYTES:end], content[end:])


def main() -> None:
    """Fuzz until libFuzzer's options say to stop."""
    torch.set_num_threads(1)
    target = Target.build()
    folders = [Path(word) for word in sys.argv[1:] if not word.startswith("-")]
    for folder in folders[:1]:
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            for number, message in enumerate(target.messages):
                (folder / f"valid_{number}").write_bytes(message[_CONTENT:])

    def check(content: bytes) -> None:
        target.outcome(content)
        target.outcome(sealed(content))

    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
