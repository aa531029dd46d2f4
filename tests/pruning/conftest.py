"""Here it is tested how channels are found."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def networks_traced_once() -> None:
    """Each network is traced whenever it is built."""
