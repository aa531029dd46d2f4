"""All of an experiment."""

from __future__ import annotations

from typing import Any

import yaml
from pydantic import model_validator

from fedml_dapper.config.comm_args import CommArgs
from fedml_dapper.config.dapper_args import DapperArgs
from fedml_dapper.config.fedml_args import (
    FEDML_PROTECTIONS,
    CommonArgs,
    DataArgs,
    DeviceArgs,
    ModelArgs,
    TrackingArgs,
    TrainArgs,
    ValidationArgs,
    why_refused,
)
from fedml_dapper.config.section import Section
from fedml_dapper.config.silo_args import ClientSpecificArgs


class Settings(Section):
    """All of an experiment; one attribute per YAML section."""

    common_args: CommonArgs = CommonArgs()
    data_args: DataArgs = DataArgs()
    model_args: ModelArgs = ModelArgs()
    train_args: TrainArgs = TrainArgs()
    validation_args: ValidationArgs = ValidationArgs()
    device_args: DeviceArgs = DeviceArgs()
    comm_args: CommArgs = CommArgs()
    tracking_args: TrackingArgs = TrackingArgs()
    client_specific_args: ClientSpecificArgs = ClientSpecificArgs()
    dapper_args: DapperArgs = DapperArgs()

    @model_validator(mode="before")
    @classmethod
    def _explain_protections(cls, values: Any) -> Any:
        sections = values.values() if isinstance(values, dict) else ()
        for section in sections:
            for key in FEDML_PROTECTIONS:
                if isinstance(section, dict) and key in section:
                    raise ValueError(why_refused(key))
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> Settings:
        kind, backend = self.common_args.training_type, self.comm_args.backend
        if (kind == "cross_silo") != (backend in ("DAPPER_GRPC", "GRPC", "MQTT_S3")):
            raise ValueError(
                f"training_type {kind} with backend {backend}: simulation takes sp or MPI, cross_silo DAPPER_GRPC, GRPC"
                " or MQTT_S3"
            )
        silos = self.client_specific_args.data_silo_config
        if silos is not None and len(silos) != self.train_args.client_num_in_total:
            raise ValueError(
                f"client_specific_args.data_silo_config names {len(silos)} files for"
                f" {self.train_args.client_num_in_total} clients; give one per client, in rank order"
            )
        self._clients_fit(silos is not None)
        if self.dapper_args.min_clients_per_round > self.train_args.client_num_per_round:
            raise ValueError("dapper_args.min_clients_per_round is more than train_args.client_num_per_round")
        defence = self.dapper_args.defence
        orders = defence.aggregation in ("trimmed_mean", "median")
        if orders and defence.min_holders > self.train_args.client_num_per_round:
            raise ValueError(
                f"dapper_args.defence.min_holders ({defence.min_holders}) is more than train_args.client_num_per_round"
                f" ({self.train_args.client_num_per_round}), so that no coordinate would ever change; lower the former"
            )
        return self

    def _clients_fit(self, silos_say_levels: bool) -> None:
        stated = self.data_args.clients
        if stated is None:
            return
        if len(stated) != self.train_args.client_num_in_total:
            raise ValueError(
                f"data_args.clients states {len(stated)} clients, train_args.client_num_in_total is"
                f" {self.train_args.client_num_in_total}; make them agree"
            )
        levels = [client.level for client in stated if client.level is not None]
        if levels and silos_say_levels:
            raise ValueError(
                "levels stand in data_args.clients and in client_specific_args.data_silo_config; leave one out"
            )
        if levels and max(levels) > len(self.dapper_args.levels.ratios):
            raise ValueError(
                f"data_args.clients has level {max(levels)}, but dapper_args.levels.ratios has"
                f" {len(self.dapper_args.levels.ratios)} levels"
            )

    def as_yaml(self) -> str:
        """The effective settings, every default spelt out; loading this text gives equal settings back."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)
