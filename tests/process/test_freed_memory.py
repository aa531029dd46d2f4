from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = """
import resource, torch
from fedml_dapper.process.freed_memory import freed_memory_kept
torch.set_num_threads(1)
faults = []
with freed_memory_kept():
    for _ in range(10):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        activations = [torch.ones(2_000_000) for _ in range(10)]
        del activations
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sum(faults[4:]) * 4096 // (10 * 8_000_000))
"""


GOES_BACK = """
from fedml_dapper.process.freed_memory import LARGEST_KEPT_BYTES, freed_memory_kept
from fedml_dapper.process.rss import resident_bytes
before = resident_bytes()
with freed_memory_kept():
    blocks = [bytes(LARGEST_KEPT_BYTES // 2) + b"." for _ in range(8)]
    print((resident_bytes() - before) / LARGEST_KEPT_BYTES)
    blocks.clear()
print((resident_bytes() - before) / LARGEST_KEPT_BYTES)
"""


def numbers_of(program: str) -> list[float]:
    """What a process of its own prints: one in which nothing was freed before."""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [float(number) for number in answer.stdout.split()]


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/lib64/ld-linux-x86-64.so.2").exists(), reason="glibc's ways")
def test_what_a_step_frees_serves_the_next_one() -> None:
    """The last six of ten steps ask the system for no more pages than would fill a step's activations."""
    assert numbers_of(FAULTS) == [
        0
    ]  # five without the block, unless something small happens to lie above what is freed


def test_it_goes_back_at_the_end() -> None:
    grown, left = numbers_of(GOES_BACK)
    assert grown > 4 * 0.9
    assert left < 1
