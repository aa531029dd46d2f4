"""Small runs for the tests of what a round does, whatever the pictures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from fedml_dapper.config import Settings


@pytest.fixture
def tiny_settings(tiny_settings: Callable[..., Settings]) -> Callable[..., Settings]:
    """As everywhere, on smaller images: what is compared here is run against run."""
    return partial(tiny_settings, "image_size=16")
