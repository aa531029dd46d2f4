"""Start of FedML without its hosted platform.

``fedml.init`` asks the platform for MQTT and S3 addresses even when nothing uses them. It tries five times, which takes
2.5 s where names fail to resolve at once, and close to a minute where they time out. During our own ``init`` that
look-up is answered locally.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from fedml.core.mlops.mlops_configs import MLOpsConfigs


@contextmanager
def without_platform() -> Iterator[None]:
    """Answer FedML's requests for its platform's configuration with an empty one, without the network."""

    def fetch_all_configs() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]:
        return {}, {}, {"LOG_SERVER_URL": ""}, {}

    with patch.object(MLOpsConfigs, "fetch_all_configs", staticmethod(fetch_all_configs)):
        yield
