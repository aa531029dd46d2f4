"""Check that server and client run the same experiment, in versions that understand each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fedml_dapper import __version__
from fedml_dapper.config import with_former_names
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.wire.settings_shared import SharedSettings, digest_of_sections, shared_settings
from fedml_dapper.federation.wire.versions import EARLIEST, WIRE_SCHEMA, WIRE_SCHEMA_BEFORE, check_understood


class Sender(BaseModel):
    """Sender of a message of any schema: its schema and its version of this package."""

    model_config = ConfigDict(frozen=True)

    wire_schema: int = Field(ge=0, strict=True)
    version: str | None = None
    """Version of this package; None in messages of schema 4, which do not say it."""

    def check(self) -> None:
        """Raise :class:`ProtocolError`, which says who is to upgrade, unless we understand the sender's messages."""
        check_understood(self.version or EARLIEST, self.wire_schema)


class Identity(Sender):
    """Sender of a message and the experiment that the message belongs to."""

    model_config = ConfigDict(extra="forbid")

    method: str
    settings_digest: str

    def difference(self, own: Identity) -> str | None:
        """Return the first value in which the experiment differs from our ``own``, naming both; None if none does."""
        for name, label in (("method", "method"), ("settings_digest", "settings digest")):
            theirs = getattr(self, name)
            ours = getattr(own, name)
            if theirs != ours:
                return f"{label} is {theirs} there and {ours} here"
        return None


ReceivedSettings = Annotated[SharedSettings | dict[str, Any], Field(union_mode="left_to_right")]
"""Settings in a message; in schema 4 they are written section by section, without defaults of the method."""


class Agreement:
    """Identity that this process puts into its messages, and the check of the identity in others' messages.

    The server's settings count. A process that receives them compares them with its own, and from then on sends the
    server's digest, in the schema of the server's message. Two versions of this package may give one experiment two
    digests, since a setting that is chosen in one may be the default of the other.
    """

    def __init__(self, shared: SharedSettings, sections: Mapping[str, Any]) -> None:
        before = with_former_names(sections)
        self._settings: Mapping[int, ReceivedSettings] = {WIRE_SCHEMA: shared, WIRE_SCHEMA_BEFORE: before}
        self._digests = {WIRE_SCHEMA: shared.digest, WIRE_SCHEMA_BEFORE: digest_of_sections(before)}
        self._shared = shared
        self.schema = WIRE_SCHEMA
        """Schema in which this process answers."""

    @classmethod
    def of(cls, experiment: Experiment) -> Agreement:
        """Return the agreement of a process that has not heard from a server yet."""
        sections = shared_settings(experiment.settings, experiment.sources)
        return cls(SharedSettings.of_experiment(experiment), sections)

    def identity(self, schema: int) -> Identity:
        """Return the identity that this process puts into messages of ``schema``."""
        return Identity(
            wire_schema=schema,
            version=None if schema == WIRE_SCHEMA_BEFORE else __version__,
            method=self._shared.method,
            settings_digest=self._digests[schema],
        )

    def settings(self, schema: int) -> ReceivedSettings:
        """Return our settings as a message of ``schema`` carries them."""
        return self._settings[schema]

    def check(self, theirs: Identity) -> None:
        """Raise :class:`ProtocolError`, which names what differs, for a message of another experiment."""
        theirs.check()
        difference = theirs.difference(self.identity(theirs.wire_schema))
        if difference is not None:
            raise ProtocolError(f"message of another experiment: {difference}")

    def accept(self, theirs: Identity, settings: ReceivedSettings, who: str) -> None:
        """Compare the server's settings with our own, and go by its digest and schema from now on.

        Args:
            theirs: Identity in the server's message.
            settings: The server's settings.
            who: What this process is called in errors.

        Raises:
            ConfigError: The settings are of another experiment; the error names which differ.
        """
        theirs.check()
        if not isinstance(settings, SharedSettings):
            settings = SharedSettings.recorded(settings, self._shared, theirs.method)
        difference = settings.difference(self._shared)
        if difference:
            raise ConfigError(f"{who} and the server run different experiments: {difference}")
        self.schema = theirs.wire_schema
        self._digests[theirs.wire_schema] = theirs.settings_digest
