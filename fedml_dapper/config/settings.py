"""The settings of an experiment."""

from __future__ import annotations

from collections.abc import Iterator

import yaml
from pydantic import model_validator

from fedml_dapper.config.comm_args import CommArgs
from fedml_dapper.config.dapper_args import DapperArgs, LevelArgs
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
from fedml_dapper.config.rules import rule
from fedml_dapper.config.section import Section
from fedml_dapper.config.silo_args import ClientSpecificArgs, SiloArgs

_SUMS = "dapper_args.privacy.secure_aggregation"


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
    def _backend_is_of_this_kind(self) -> Iterator[str]:
        kind = self.common_args.training_type
        backend = self.comm_args.backend
        if (kind == "cross_silo") != (backend in ("DAPPER_GRPC", "GRPC", "MQTT_S3")):
            yield (
                f"training_type {kind} with backend {backend}: simulation takes sp or MPI, cross_silo DAPPER_GRPC, GRPC"
                " or MQTT_S3"
            )

    @rule
    def _workers_are_of_one_process(self) -> Iterator[str]:
        backend = self.comm_args.backend
        if backend != "sp" and self.device_args.workers not in ("auto", 1):
            yield (
                f"device_args.workers is {self.device_args.workers}, and backend {backend} has its own processes; leave"
                " workers out"
            )

    @rule
    def _a_file_for_each_silo(self) -> Iterator[str]:
        silos = self.client_specific_args.data_silo_config
        if silos is not None and len(silos) != self.train_args.client_num_in_total:
            yield (
                f"client_specific_args.data_silo_config names {len(silos)} files for"
                f" {self.train_args.client_num_in_total} clients; give one per client, in rank order"
            )

    @rule
    def _rounds_can_have_enough_clients(self) -> Iterator[str]:
        if self.dapper_args.min_clients_per_round > self.train_args.client_num_per_round:
            yield "dapper_args.min_clients_per_round is more than train_args.client_num_per_round"

    @rule
    def _coordinates_can_have_enough_holders(self) -> Iterator[str]:
        defence = self.dapper_args.defence
        orders = defence.aggregation in ("trimmed_mean", "median")
        if orders and defence.min_holders > self.train_args.client_num_per_round:
            yield (
                f"dapper_args.defence.min_holders ({defence.min_holders}) is more than train_args.client_num_per_round"
                f" ({self.train_args.client_num_per_round}), so that no coordinate would ever change; lower the former"
            )

    @rule
    def _clients_are_counted_once(self) -> Iterator[str]:
        count = self.train_args.client_num_in_total
        stated = self.data_args.clients
        if stated is not None and len(stated) != count:
            yield (
                f"data_args.clients states {len(stated)} clients, train_args.client_num_in_total is {count}; make them"
                " agree"
            )

    @rule
    def _levels_stand_once_and_exist(self) -> Iterator[str]:
        count = self.train_args.client_num_in_total
        known = len(self.dapper_args.levels.ratios)
        stated = self.data_args.clients
        listed = self.dapper_args.levels.assignment
        levels = {
            "data_args.clients": [client.level for client in stated or () if client.level is not None],
            "dapper_args.levels.assignment": [] if isinstance(listed, str) else list(listed),
        }
        for place, given in levels.items():
            if given and len(given) != count:
                yield f"{place} lists {len(given)} levels for {count} clients; give one per client"
            if given and max(given) > known:
                yield f"{place} has level {max(given)}, but dapper_args.levels.ratios has {known} levels"
        places = [place for place, given in levels.items() if given]
        if self.client_specific_args.data_silo_config is not None:
            places.append("client_specific_args.data_silo_config")
        if self.dapper_args.fleet is not None and self.data_args.partition != "own":
            places.append("dapper_args.fleet")
            if isinstance(listed, str) and listed != LevelArgs().assignment:
                places.append("dapper_args.levels.assignment")
        if len(places) > 1:
            yield f"levels stand in {' and in '.join(places)}; leave one out"

    @rule
    def _silos_that_hold_data_say_so(self) -> Iterator[str]:
        if self.data_args.partition == "own":
            return
        fleet = self.dapper_args.fleet
        if self.silo_args != SiloArgs(known=self.silo_args.known):
            yield "silo_args go with data_args.partition: own, where every silo has its own data"
        if fleet is not None and fleet.devices is None:
            yield "dapper_args.fleet.devices: name the clients' devices, e.g. [raspberry_pi_4]"

    @rule
    def _whom_a_silo_knows_is_for_sums(self) -> Iterator[str]:
        privacy = self.dapper_args.privacy
        if self.silo_args.known is not None and (privacy is None or privacy.secure_aggregation is None):
            yield "silo_args.known says with whom a silo sums; it goes with dapper_args.privacy.secure_aggregation"

    @rule
    def _own_data_are_of_silos(self) -> Iterator[str]:
        if self.data_args.partition == "own" and self.common_args.training_type != "cross_silo":
            yield "data_args.partition own is for silos, which are processes: training_type cross_silo"

    @rule
    def _nobody_knows_all_own_data(self) -> Iterator[str]:
        data = self.data_args
        fleet = self.dapper_args.fleet
        if data.partition != "own":
            return
        known_of_all = {
            "data_args.clients": data.clients,
            "data_args.client_share": data.client_share,
            "data_args.validation_share": data.validation_share,
            "dapper_args.evaluation.unseen_domain": self.dapper_args.evaluation.unseen_domain,
            "client_specific_args.data_silo_config": self.client_specific_args.data_silo_config,
            "dapper_args.fleet.devices": None if fleet is None else fleet.devices,
            "dapper_args.fleet.clock": None if fleet is None else fleet.clock,
            "dapper_args.fleet.continuous": True if fleet is not None and fleet.continuous else None,
        }
        for key, value in known_of_all.items():
            if value is not None:
                yield f"{key} deals out what one process knows of all; with partition own leave it out"

    @rule
    def _a_silo_names_its_level_once(self) -> Iterator[str]:
        own = self.silo_args
        if self.data_args.partition != "own" or own.device is None:
            return
        if own.level is not None:
            yield "silo_args has a device and a level; leave one of them out"
        if self.dapper_args.fleet is None:
            yield "silo_args.device: what a device can run depends on dapper_args.fleet.round_s; set that"

    @rule
    def _privacy_fits(self) -> Iterator[str]:
        """Nothing but a bounded sum over clients, whose round is the same whatever one of them sends."""
        args = self.dapper_args
        privacy = self.dapper_args.privacy
        place = "dapper_args.privacy"
        if privacy is None:
            return
        count = self.train_args.client_num_in_total
        fleet = args.fleet
        if privacy.delta is not None and privacy.delta * count >= 1:
            yield (
                f"{place}.delta is {privacy.delta:g} for {count} clients: less than 1/{count} has to be left to chance,"
                " or one client could be given away whole; e.g. 1e-5"
            )
        if args.aggregation_weights != "uniform":
            yield (
                f"{place}: clients that count by their samples move the sum by as much as they like; set"
                " dapper_args.aggregation_weights to uniform"
            )
        if args.defence.aggregation != "mean":
            yield (
                f"{place} is about sums, and dapper_args.defence.aggregation {args.defence.aggregation} takes none; set"
                " it to mean"
            )
        by_uploads = {
            "dapper_args.defence.strikes": args.defence.strikes,
            "dapper_args.buffer_size": args.buffer_size,
            "dapper_args.fleet.clock": None if fleet is None else fleet.clock,
            "dapper_args.fleet without devices": True if fleet is not None and fleet.devices is None else None,
        }
        for key, value in by_uploads.items():
            if value is not None:
                yield (
                    f"{place}: with {key} what a client sends, or when, decides which others count and how; leave that"
                    " out"
                )
        if privacy.where == "client" and self.comm_args.edges:
            yield (
                f"{place}.where client: how often an edge asks a silo in a round is not told; leave"
                " comm_args.dapper_grpc.edges out, or set where to server"
            )
        if privacy.where == "client" and (self.data_args.partition == "own" or args.evaluation.personal):
            yield (
                f"{place}.where client: the server would be told how models do on clients' own samples; leave"
                " dapper_args.evaluation.personal out, and data_args.partition own"
            )

    @rule
    def _secure_aggregation_fits(self) -> Iterator[str]:
        """A sum that its clients can reach, and of which nobody is told more."""
        args = self.dapper_args
        count = self.train_args.client_num_per_round
        secure = None if args.privacy is None else args.privacy.secure_aggregation
        place = _SUMS
        if secure is None:
            return
        if not count < 2 * secure.threshold <= 2 * count:
            why = "its clients cannot reach" if secure.threshold > count else "two halves of it could reach apart"
            yield (
                f"{place}.threshold is {secure.threshold}, which for a round of train_args.client_num_per_round"
                f" {count} {why}; choose {max(2, count // 2 + 1)} to {max(2, count)}"
            )
        if secure.fewest_holders > count:
            yield (
                f"{place}.min_holders is {secure.fewest_holders}, and a round has {count} clients, so that no weight"
                " would ever change; lower it"
            )
        of_own_samples = self.data_args.partition == "own" or bool(args.evaluation.personal)
        tells = of_own_samples and not self.common_args.is_simulation
        refused = {
            "dapper_args.defence.max_change looks at single uploads": args.defence.max_change is not None,
            f"dapper_args.uplink {args.uplink} has codes that cannot be added up": args.uplink != "fp32",
            "comm_args.dapper_grpc.edges see single uploads": bool(self.comm_args.edges),
            "dapper_args.evaluation.personal, as data_args.partition own, tells how models do on own samples": tells,
            f"comm_args.backend {self.comm_args.backend} does not carry its messages, as DAPPER_GRPC does": (
                self.comm_args.backend in ("GRPC", "MQTT_S3")
            ),
        }
        for reason, holds in refused.items():
            if holds:
                yield f"{place}: {reason}; leave one of them out"

    @rule
    def _edges_fit(self) -> Iterator[str]:
        edges = self.comm_args.edges
        count = self.train_args.client_num_in_total
        ranks = [edge.rank for edge in edges]
        silos = [silo for edge in edges for silo in edge.silos]
        place = "comm_args.dapper_grpc.edges"
        if any(rank <= count for rank in ranks) or len(set(ranks)) < len(ranks):
            yield f"{place}: the ranks {ranks} have to differ, and to be above {count}, the last silo's"
        if any(not 1 <= silo <= count for silo in silos) or len(set(silos)) < len(silos):
            yield f"{place}: serve the silos {silos}; each has to be between 1 and {count}, and stand once"
        if edges and self.dapper_args.buffer_size is not None:
            yield f"{place} sum up whole rounds; leave dapper_args.buffer_size out"

    def as_yaml(self) -> str:
        """Return the effective settings as YAML, every default written out; loading the text gives equal settings."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)
