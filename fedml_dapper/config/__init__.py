"""The experiment file: FedML's YAML sections, and the package's own section ``dapper_args``.

FedML accepts any key and any type without a message; here every section is closed, typed and checked before anything
starts. The settings of a method (``dapper_args.params``) are checked against that method's own class later, by
:func:`fedml_dapper.methods.build_method`, with the same error messages.
"""

from fedml_dapper.config.adapter_args import AdapterArgs
from fedml_dapper.config.check_in_args import CheckInArgs, MayCallArgs
from fedml_dapper.config.comm_args import FEDML_GRPC_HOLE, CommArgs, EdgeArgs, SecureGrpcConfig
from fedml_dapper.config.dapper_args import (
    BEYOND_FP16,
    DapperArgs,
    DefenceArgs,
    EvaluationArgs,
    Importance,
    LevelArgs,
    LevelBudget,
    PersonalLayers,
    PruningArgs,
    Uplink,
)
from fedml_dapper.config.fedml_args import (
    ClientArgs,
    CommonArgs,
    DataArgs,
    DeviceArgs,
    ModelArgs,
    Norm,
    Normalisation,
    Precision,
    TrackingArgs,
    TrainArgs,
    ValidationArgs,
)
from fedml_dapper.config.fedml_keys import FEDML_PROTECTIONS, why_refused
from fedml_dapper.config.fleet_args import ClockArgs, FleetArgs
from fedml_dapper.config.loading import (
    Loaded,
    load_settings,
    load_with_notes,
    merge,
    read_silo_levels,
    read_yaml,
)
from fedml_dapper.config.overrides import parse_override
from fedml_dapper.config.paths import check_letters, path_of
from fedml_dapper.config.privacy_args import PrivacyArgs
from fedml_dapper.config.references import (
    ENTRY_POINTS,
    LIBRARIES,
    Reference,
    digest_of,
    installed,
    named_by_source,
    short_name,
    sources,
    with_places_of,
)
from fedml_dapper.config.renamed import present_name, with_former_names, with_present_names
from fedml_dapper.config.rules import rule
from fedml_dapper.config.secrets import WITH_SECRETS
from fedml_dapper.config.section import Section, check, check_once, counted, did_you_mean
from fedml_dapper.config.settings import Settings
from fedml_dapper.config.shipped import SHIPPED, experiment_file
from fedml_dapper.config.silo_args import ClientSpecificArgs, SiloArgs
from fedml_dapper.config.yaml_text import parse_yaml, to_yaml

__all__ = [
    "BEYOND_FP16",
    "ENTRY_POINTS",
    "FEDML_GRPC_HOLE",
    "FEDML_PROTECTIONS",
    "LIBRARIES",
    "SHIPPED",
    "WITH_SECRETS",
    "AdapterArgs",
    "CheckInArgs",
    "ClientArgs",
    "ClientSpecificArgs",
    "ClockArgs",
    "CommArgs",
    "CommonArgs",
    "DapperArgs",
    "DataArgs",
    "DefenceArgs",
    "DeviceArgs",
    "EdgeArgs",
    "EvaluationArgs",
    "FleetArgs",
    "Importance",
    "LevelArgs",
    "LevelBudget",
    "Loaded",
    "MayCallArgs",
    "ModelArgs",
    "Norm",
    "Normalisation",
    "PersonalLayers",
    "Precision",
    "PrivacyArgs",
    "PruningArgs",
    "Reference",
    "Section",
    "SecureGrpcConfig",
    "Settings",
    "SiloArgs",
    "TrackingArgs",
    "TrainArgs",
    "Uplink",
    "ValidationArgs",
    "check",
    "check_letters",
    "check_once",
    "counted",
    "did_you_mean",
    "digest_of",
    "experiment_file",
    "installed",
    "load_settings",
    "load_with_notes",
    "merge",
    "named_by_source",
    "parse_override",
    "parse_yaml",
    "path_of",
    "present_name",
    "read_silo_levels",
    "read_yaml",
    "rule",
    "short_name",
    "sources",
    "to_yaml",
    "why_refused",
    "with_former_names",
    "with_places_of",
    "with_present_names",
]
