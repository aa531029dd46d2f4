"""The collector of garbage while modules are loaded, and after that."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOAD = """
import gc
from fedml_dapper.process.loading import loaded_for_good

collections = []
gc.callbacks.append(lambda phase, _: collections.append(phase))
try:
    with loaded_for_good():
        held = [[] for _ in range(100_000)]
        assert collections == []
        {end}
except ZeroDivisionError:
    pass
assert gc.get_freeze_count() >= 100_000
more = [[] for _ in range(100_000)]
assert collections
"""


@pytest.mark.parametrize("end", ["pass", "1 / 0"])
def test_what_is_loaded_is_not_looked_through_and_later_objects_are(end: str) -> None:
    subprocess.run([sys.executable, "-c", LOAD.format(end=end)], check=True)
