"""Settings of a silo: its data, and what its device can do."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from fedml_dapper.config.check_in_args import MayCallArgs
from fedml_dapper.config.limits import MAX_NAME
from fedml_dapper.config.section import Section


class ClientSpecificArgs(Section):
    """``client_specific_args``: one file per silo, in rank order, as FedML has it."""

    data_silo_config: tuple[Path, ...] | None = None
    """Files with ``silo_args: {capability_level: N}`` each; they replace ``dapper_args.levels.assignment``."""


class SiloArgs(Section):
    """``silo_args``: with ``data_args.partition: own``, what this silo holds, and whom it knows.

    Every silo has a file of its own, laid over the one that all share.
    """

    domain: str | None = Field(default=None, min_length=1, max_length=MAX_NAME)
    """The domain that its images are of: the suite's, or any name for a folder with one; its only one when absent."""
    data_cache_dir: Path | None = None
    """Folder of its images; ``data_args.data_cache_dir`` when absent."""
    level: int | None = Field(default=None, ge=1)
    """Capability level; ``device``, or else ``dapper_args.levels.assignment``, decides when absent."""
    device: str | None = Field(default=None, min_length=1)
    """Profile of its device, the name of a shipped one or a file: with ``dapper_args.fleet`` the server gives it the
    largest level that this can run."""
    may_call: MayCallArgs | None = None
    """With ``training_type: cross_device``, when this device may call the server; at any time when absent."""
    known: Path | None = None
    """List of the certificates with which this silo sums under ``privacy.secure_aggregation``, written by
    ``fedml-dapper silos``; without it, it sums with each that ca.pem vouches for (docs/privacy.md)."""


class SiloLevel(Section):
    """``silo_args`` of a file that ``data_silo_config`` lists."""

    capability_level: int = Field(ge=1)
    """Capability level of its device, 1 the strongest."""


class SiloFile(Section):
    """A file that ``data_silo_config`` lists."""

    silo_args: SiloLevel
    """Capability level of the silo's device."""
