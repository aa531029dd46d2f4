"""The settings of an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import model_validator

from fedml_dapper.config.comm_args import CommArgs
from fedml_dapper.config.compatibility import broken_rows
from fedml_dapper.config.dapper_args import DapperArgs
from fedml_dapper.config.fedml_args import (
    BUILT_IN,
    CommonArgs,
    DataArgs,
    DeviceArgs,
    ModelArgs,
    TrackingArgs,
    TrainArgs,
    ValidationArgs,
)
from fedml_dapper.config.renamed import with_present_names
from fedml_dapper.config.rules import rule
from fedml_dapper.config.secrets import WITH_SECRETS
from fedml_dapper.config.section import Section
from fedml_dapper.config.silo_args import ClientSpecificArgs, SiloArgs
from fedml_dapper.config.yaml_text import to_yaml


class Settings(Section):
    """All settings of an experiment; one attribute per YAML section."""

    common_args: CommonArgs = CommonArgs()
    data_args: DataArgs = DataArgs()
    model_args: ModelArgs = ModelArgs()
    train_args: TrainArgs = TrainArgs()
    validation_args: ValidationArgs = ValidationArgs()
    device_args: DeviceArgs = DeviceArgs()
    comm_args: CommArgs = CommArgs()
    tracking_args: TrackingArgs = TrackingArgs()
    client_specific_args: ClientSpecificArgs = ClientSpecificArgs()
    silo_args: SiloArgs = SiloArgs()
    dapper_args: DapperArgs = DapperArgs()

    @model_validator(mode="before")
    @classmethod
    def _under_present_names(cls, values: Any) -> Any:
        return with_present_names(values) if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _scope_of_own_networks(self) -> Settings:
        """Leave the scope to ``auto`` for networks that are not built in, if the settings do not name one."""
        pruning = self.dapper_args.pruning
        if self.model_args.model not in BUILT_IN and "scope" not in pruning.model_fields_set:
            chosen = pruning.model_copy(update={"scope": "auto"})
            args = self.dapper_args.model_copy(update={"pruning": chosen})
            self.__dict__["dapper_args"] = args  # not setattr, as settings are frozen
        return self

    @rule
    def _go_together(self) -> Iterator[str]:
        yield from broken_rows(self)

    def with_ratios(self, ratios: tuple[float, ...]) -> Settings:
        """Return the same settings with these pruning ratios of the capability levels."""
        levels = self.dapper_args.levels.model_copy(update={"ratios": ratios})
        return self.model_copy(update={"dapper_args": self.dapper_args.model_copy(update={"levels": levels})})

    def as_yaml(self, *, with_secrets: bool = False) -> str:
        """Return the effective settings as YAML, every default written out and secrets null unless asked for.

        Loading the text gives equal settings where there are no secrets, or with them.
        """
        return to_yaml(self.model_dump(mode="json", context=WITH_SECRETS if with_secrets else None))
