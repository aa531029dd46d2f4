"""FedML's keys that have another name, another place or fewer values here (docs/reference/fedml.md)."""

from __future__ import annotations

MEANINGS = {
    "common_args.using_mlops": "`tracking_args.using_mlops`",
    "common_args.scenario": "`horizontal`: one process a silo. `hierarchical` is refused",
    "common_args.training_type": "`simulation`, `cross_silo`, and `cross_device` for devices that run Python",
    "data_args.dataset": "a suite of ours, or, where the program passes data, what its loader goes by",
    "data_args.data_cache_dir": "root of the data, or, where the program passes data, what its loader goes by",
    "data_args.partition_method": "`hetero`: `partition: dirichlet`. `homo` is for a program's own loader",
    "data_args.partition_alpha": "`dirichlet_alpha`",
    "model_args.model": "a network of ours, or, where the program passes one, what made it",
    "train_args.federated_optimizer": "the method of this name, unless `dapper_args.method` names one",
    "train_args.client_id_list": "clients are ranks 1 to `client_num_in_total`; ids of FedML's platform are not used",
    "train_args.client_optimizer": "`sgd`, `adam`, `adamw`, in small letters or capitals",
    "train_args.lr, wd": "`learning_rate`, `weight_decay`, which FedML's trainers read",
    "train_args.fedprox_mu": "`dapper_args.params.fedprox.mu`",
    "train_args.feddyn_alpha": "`dapper_args.params.feddyn.alpha`",
    "train_args.ml_engine": "`torch`; others are refused",
    "device_args.worker_num": "across silos `client_num_in_total`, as each client is a process; under MPI `mpiexec -n`",
}
"""Meanings of FedML's other keys here, by their place in FedML's files."""


def fedml_paths() -> list[tuple[str, ...]]:
    """Return section and name of each of these keys."""
    return [
        (section, name) for section, _, names in (key.partition(".") for key in MEANINGS) for name in names.split(", ")
    ]
