"""Training: clients, batches, optimizers, and what is taken over uploads."""

from __future__ import annotations

from fedml_dapper.config.compatibility.features import as_many, chosen, given, other_than
from fedml_dapper.config.compatibility.row import Feature, Row
from fedml_dapper.config.fedml_args import TrainArgs

_MIN_HOLDERS = Feature(
    "dapper_args.defence.min_holders with aggregation trimmed_mean or median",
    lambda s: s.dapper_args.defence.aggregation in ("trimmed_mean", "median"),
    lambda s: s.dapper_args.defence.min_holders,
)

# fmt: off
ROWS = (
    Row(given("train_args.client_num_per_round"), "needs",
        as_many("train_args.client_num_in_total", "train_args.client_num_per_round"),
        "a round draws its clients from all that there are", "lower the former",
        {"train_args.client_num_per_round": 11}),
    Row(given("train_args.micro_batch_size"), "needs",
        as_many("train_args.batch_size", "train_args.micro_batch_size"),
        "it is a part of a batch", "leave it out, or choose a part of the batch",
        {"train_args.micro_batch_size": 128}),
    Row(other_than("train_args.momentum", TrainArgs().momentum), "needs", chosen("train_args.client_optimizer", "sgd"),
        "the others have betas instead", "leave momentum out",
        {"train_args.momentum": 0.5, "train_args.client_optimizer": "adam"}),
    Row(_MIN_HOLDERS, "needs", as_many("train_args.client_num_per_round", "dapper_args.defence.min_holders"),
        "otherwise no coordinate would ever change", "lower the former",
        {"dapper_args.defence.aggregation": "median", "train_args.client_num_per_round": 2}),
    Row(other_than("dapper_args.personal_layers", "none"), "excludes",
        chosen("dapper_args.pruning.scope", "official_mask"),
        "masked models are uploaded whole", "set personal_layers to none, or scope to internal",
        {"dapper_args.personal_layers": "norms", "dapper_args.pruning.scope": "official_mask"}),
)
# fmt: on
