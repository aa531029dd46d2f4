"""Do server and client mean the same experiment, and do their versions understand each other?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fedml_dapper import __version__
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.settings_shared import SharedSettings, digest_of_sections, shared_settings
from fedml_dapper.federation.versions import EARLIEST, WIRE_SCHEMA, WIRE_SCHEMA_BEFORE, check_understood


class Sender(BaseModel):
    """What a message of any schema says of its sender."""

    model_config = ConfigDict(frozen=True)

    wire_schema: int = Field(ge=0, strict=True)
    version: str | None = None
    """Of this package; messages of schema 4 do not say it."""

    def check(self) -> None:
        """Raises :class:`ProtocolError`, which says who is to upgrade, where we do not understand its messages."""
        check_understood(self.version or EARLIEST, self.wire_schema)


class Identity(Sender):
    """What a message says of its sender, and of the experiment it belongs to."""

    model_config = ConfigDict(extra="forbid")

    method: str
    settings_digest: str

    def difference(self, own: Identity) -> str | None:
        """The first value in which this experiment differs from our ``own``, naming both; None if none does."""
        for name, label in (("method", "method"), ("settings_digest", "settings digest")):
            theirs = getattr(self, name)
            ours = getattr(own, name)
            if theirs != ours:
                return f"{label} is {theirs} there and {ours} here"
        return None


Told = Annotated[SharedSettings | dict[str, Any], Field(union_mode="left_to_right")]
"""Settings in a message. Schema 4 has them section by section, without defaults of the method."""


class Agreement:
    """What this process says in messages of its experiment, and whose messages it takes.

    The server's word counts. Who is sent its settings compares them with its own, and from then on says the server's
    digest, in the schema in which it was spoken to. Two versions may have one experiment and two digests: what the one
    has to be told may be the other's default.
    """

    def __init__(self, shared: SharedSettings, sections: Mapping[str, Any]) -> None:
        self._told: Mapping[int, Told] = {WIRE_SCHEMA: shared, WIRE_SCHEMA_BEFORE: dict(sections)}
        self._digests = {WIRE_SCHEMA: shared.digest, WIRE_SCHEMA_BEFORE: digest_of_sections(sections)}
        self._shared = shared
        self.schema = WIRE_SCHEMA
        """In which we answer."""

    @classmethod
    def of(cls, experiment: Experiment) -> Agreement:
        """As it is until a server was heard."""
        sections = shared_settings(experiment.settings, experiment.sources)
        return cls(SharedSettings.of_experiment(experiment), sections)

    def identity(self, schema: int) -> Identity:
        """What our messages of ``schema`` say."""
        return Identity(
            wire_schema=schema,
            version=None if schema == WIRE_SCHEMA_BEFORE else __version__,
            method=self._shared.method,
            settings_digest=self._digests[schema],
        )

    def settings(self, schema: int) -> Told:
        """Our settings, for a message of ``schema``."""
        return self._told[schema]

    def check(self, theirs: Identity) -> None:
        """Raises :class:`ProtocolError`, which names what differs, for another experiment's message."""
        theirs.check()
        difference = theirs.difference(self.identity(theirs.wire_schema))
        if difference is not None:
            raise ProtocolError(f"message of another experiment: {difference}")

    def accept(self, theirs: Identity, settings: Told, who: str) -> None:
        """Go by the server's word; raises :class:`ConfigError`, which names ``who`` has other settings, and which."""
        theirs.check()
        if not isinstance(settings, SharedSettings):
            settings = SharedSettings.recorded(settings, self._shared, theirs.method)
        difference = settings.difference(self._shared)
        if difference:
            raise ConfigError(f"{who} and the server run different experiments: {difference}")
        self.schema = theirs.wire_schema
        self._digests[theirs.wire_schema] = theirs.settings_digest
