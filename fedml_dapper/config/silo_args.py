"""A silo's own file, which says what its device is able to."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from fedml_dapper.config.section import Section


class ClientSpecificArgs(Section):
    """``client_specific_args``: one file per silo, in rank order, as FedML has it."""

    data_silo_config: tuple[Path, ...] | None = None
    """Each holds ``silo_args: {capability_level: N}``; replaces ``dapper_args.levels.assignment``."""


class SiloArgs(Section):
    """``silo_args`` of a silo's own file."""

    capability_level: int = Field(ge=1)
    """Of its device, 1 the strongest."""


class SiloFile(Section):
    """A silo's own file."""

    silo_args: SiloArgs
    """What the silo's device is able to."""
