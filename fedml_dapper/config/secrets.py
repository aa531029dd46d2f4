"""Settings that a run has and writes down nowhere: not in its folder, in a report, for a tracker or on a terminal."""

from __future__ import annotations

from typing import Annotated

from pydantic import PlainSerializer, SerializationInfo

WITH_SECRETS = "with secrets"
"""Context in which :meth:`pydantic.BaseModel.model_dump` gives secrets away, to hand them to what asks for them."""


def _left_out(secret: str | None, info: SerializationInfo) -> str | None:
    return secret if not secret or info.context == WITH_SECRETS else None


Secret = Annotated[str | None, PlainSerializer(_left_out)]
"""A word that is null in dumped settings; null among settings that are read is one that was left out so."""
