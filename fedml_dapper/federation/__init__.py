"""Rounds of federated learning: server, clients, messages, ledger, checkpoints."""

from typing import TYPE_CHECKING

from fedml_dapper.process.lazy_imports import lazy_names

if TYPE_CHECKING:
    from fedml_dapper.federation.client import ClientSide
    from fedml_dapper.federation.experiment import (
        Experiment,
        build_experiment,
        build_untrained,
        device_of,
        level_footprints,
        slow_precision,
        solved_settings,
    )
    from fedml_dapper.federation.experiment_data import ExperimentData, load_data, passed_data
    from fedml_dapper.federation.observer import RunObserver
    from fedml_dapper.federation.privacy.masked_upload import MaskedUpload
    from fedml_dapper.federation.privacy.sum_exchange import SumExchange
    from fedml_dapper.federation.round.client_queue import ClientQueue, cost_of_rounds
    from fedml_dapper.federation.round.collector import Collector
    from fedml_dapper.federation.round.edges import Edge
    from fedml_dapper.federation.round.validation import UploadCheck
    from fedml_dapper.federation.rounds import run_rounds, simulate
    from fedml_dapper.federation.run_folder.file_names import (
        CHECKPOINTS_NAME,
        LEDGER_NAME,
        MODEL_NAME,
        REPORT_NAME,
        SETTINGS_NAME,
    )
    from fedml_dapper.federation.run_folder.journal import RunJournal
    from fedml_dapper.federation.run_folder.ledger import LedgerWriter, read_ledger, read_unfinished
    from fedml_dapper.federation.run_folder.records import ClientRecord, LevelFootprint, RoundRecord, RunRecord, Scores
    from fedml_dapper.federation.run_folder.rewind import Rewind
    from fedml_dapper.federation.run_folder.run_dir import is_finished, open_run_dir
    from fedml_dapper.federation.scoring.metrics import metrics_of
    from fedml_dapper.federation.server import Server
    from fedml_dapper.federation.wire.agreement import Agreement
    from fedml_dapper.federation.wire.announcement import (
        Announcement,
        Measurement,
        read_announcement,
        read_measurement,
        read_measurements,
    )
    from fedml_dapper.federation.wire.codec import Codec, framed
    from fedml_dapper.federation.wire.edge_codec import EdgeCodec
    from fedml_dapper.federation.wire.settings_shared import (
        SharedSettings,
        changed_params,
        settings_difference,
        shared_settings,
    )
    from fedml_dapper.federation.wire.sum_codec import Declined, Ready, SumCodec, SumMessage
    from fedml_dapper.federation.wire.versions import EARLIEST, FIRST_WITH_SUMS, WIRE_SCHEMA, common_schema
else:
    __getattr__ = lazy_names(__name__, __file__)

__all__ = [
    "CHECKPOINTS_NAME",
    "EARLIEST",
    "FIRST_WITH_SUMS",
    "LEDGER_NAME",
    "MODEL_NAME",
    "REPORT_NAME",
    "SETTINGS_NAME",
    "WIRE_SCHEMA",
    "Agreement",
    "Announcement",
    "ClientQueue",
    "ClientRecord",
    "ClientSide",
    "Codec",
    "Collector",
    "Declined",
    "Edge",
    "EdgeCodec",
    "Experiment",
    "ExperimentData",
    "LedgerWriter",
    "LevelFootprint",
    "MaskedUpload",
    "Measurement",
    "Ready",
    "Rewind",
    "RoundRecord",
    "RunJournal",
    "RunObserver",
    "RunRecord",
    "Scores",
    "Server",
    "SharedSettings",
    "SumCodec",
    "SumExchange",
    "SumMessage",
    "UploadCheck",
    "build_experiment",
    "build_untrained",
    "changed_params",
    "common_schema",
    "cost_of_rounds",
    "device_of",
    "framed",
    "is_finished",
    "level_footprints",
    "load_data",
    "metrics_of",
    "open_run_dir",
    "passed_data",
    "read_announcement",
    "read_ledger",
    "read_measurement",
    "read_measurements",
    "read_unfinished",
    "run_rounds",
    "settings_difference",
    "shared_settings",
    "simulate",
    "slow_precision",
    "solved_settings",
]
