"""FedML's own keys in an experiment file: what they mean here, and which have no effect.

FedML copies all sections of a file into one namespace and accepts any key. Files written for it hold keys that have
another name or section here, and keys for what this package does not do. The former are moved to their place, the
latter are named once. Any other unknown key stays a mistake, and so does one that would make a run differ from what its
file says. :data:`fedml_dapper.config.fedml_meanings.MEANINGS` is the list.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedml_dapper.config.section import shown

FEDML_PROTECTIONS = {
    "enable_dp": "FedML's noise covers a client's weights alone, while kept channels, sample count and loss travel as"
    " they are, and nothing bounds what one client adds; so its epsilon would not hold. Use dapper_args.privacy",
    **dict.fromkeys(
        ("enable_secagg", "enable_sa"),
        "FedML adds up masked vectors of one length, and slim models differ in theirs; use"
        " dapper_args.privacy.secure_aggregation",
    ),
    "enable_fhe": "FedML adds up encrypted vectors of one length, and slim models differ in theirs",
    "enable_defense": "FedML's defences compare tensors of one shape; use dapper_args.defence",
    "enable_attack": "FedML's attacks rewrite tensors of one shape",
}
"""FedML's switches for protections that slim models do not fit, and why (docs/privacy.md)."""


def why_refused(key: str) -> str:
    """Return the error for whoever switches one of :data:`FEDML_PROTECTIONS` on."""
    return f"leave `{key}` out: {FEDML_PROTECTIONS[key]} (docs/privacy.md)"


UNUSED = {
    "config_version": "which of FedML's platforms is asked; none is, but with `using_mlops`",
    "env_version": "which of FedML's platforms is asked; none is, but with `using_mlops`",
    "mlops_api_key": "for FedML's platform, which starts runs itself",
    "mlops_project_name": "for FedML's platform, which starts runs itself",
    "mlops_run_name": "for FedML's platform, which starts runs itself",
    "enable_tracking": "`tracking_args.using_mlops` switches FedML's dashboard on",
    "model_file_cache_folder": "a run's model lies in its folder, below `dapper_args.output_dir`",
    "global_model_file_path": "a run's model lies in its folder, below `dapper_args.output_dir`",
    "log_file_dir": "a run writes into its folder, below `dapper_args.output_dir`",
    "local_log_output_path": "a run writes into its folder, below `dapper_args.output_dir`",
    "wandb_key": "a key in a file ends up in copies of it; use `wandb login` or `WANDB_API_KEY`",
    "wandb_name": "write `run_name`, the key that FedML reads",
    "wandb_only_server": "only the server has a run at wandb",
    "gpu_mapping_file": "a process takes the GPU that `gpu_id` names",
    "gpu_mapping_key": "a process takes the GPU that `gpu_id` names",
    "gpu_util_parse": "a process takes the GPU that `gpu_id` names",
    "device_type": "`using_gpu` says it",
    "process_id": "`--rank` says it",
    "is_mobile": "FedML's lists in place of tensors, for phones",
    "mqtt_config_path": "the broker is `customized_training_mqtt_config`",
    "s3_config_path": "the store is `customized_training_s3_config`",
    "server_optimizer": "of FedML's FedOpt",
    "server_lr": "of FedML's FedOpt",
    "server_momentum": "of FedML's FedOpt; method `fedavgm` has one of its own",
    "ci": "FedML's short runs for its own tests; set `comm_round`",
    "part_file": "for a program's own loader",
    "partition_file_path": "for a program's own loader",
    "data_file_path": "for a program's own loader",
}
"""Keys that FedML reads, in any section, and that have no effect here, with the reason or the key that has it."""

UNUSED_SECTIONS = {
    "environment_args": "what FedML's agents do before a run",
    "attack_args": "refused where `enable_attack` is true",
    "defense_args": "refused where `enable_defense` is true; `dapper_args.defence`",
    "dp_args": "refused where `enable_dp` is true; `dapper_args.privacy`",
    "fhe_args": "refused where `enable_fhe` is true",
    "secure_aggregation_args": "refused where `enable_sa` is true; `dapper_args.privacy.secure_aggregation`",
    "fednova_args": "of FedML's FedNova",
    "fedprox_args": "`fedprox_mu` in it is `dapper_args.params.fedprox.mu`",
    "feddyn_args": "`feddyn_alpha` in it is `dapper_args.params.feddyn.alpha`",
}
"""FedML's sections for what this package does in another way, or not at all."""

_WITHOUT_A_METHOD = {
    "SA": FEDML_PROTECTIONS["enable_secagg"],
    "LSA": FEDML_PROTECTIONS["enable_secagg"],
    "FedOpt": "method fedavgm has a server's momentum",
    "FedOpt_seq": "method fedavgm has a server's momentum",
    "FedAvg_robust": "dapper_args.defence has robust means",
    "Async_FedAvg": "dapper_args.buffer_size has rounds that do not wait",
    "HierarchicalFL": "comm_args.dapper_grpc.edges sum up near silos",
    **dict.fromkeys(
        (
            "FedNova", "Mime", "FedSGD", "FedLocalSGD", "FedGKT", "FedGAN", "FedNAS", "FedSeg", "turbo_aggregate",
            "decentralized_fl", "split_nn", "classical_vertical", "base_framework",
        ),
        "no method here does the same",
    ),
}  # fmt: skip
"""FedML's optimizers that no method here matches, and what there is instead."""
_METHODS = {"FedAvg_seq": "fedavg"}
"""Optimizers whose method does not have their own name in small letters."""
_NOTHING: tuple[Any, ...] = (None, "", "None", "[]", [], ())
"""Values by which FedML's files write a list that the platform fills."""


@dataclass
class Translation:
    """The values of an experiment file without FedML's own keys, and messages about these."""

    values: dict[str, Any]
    mistakes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Messages for whoever runs the experiment, a line each."""


def translated(values: Mapping[str, Any]) -> Translation:
    """Return ``values``, which are not changed, with FedML's own keys put where they belong."""
    translation = Translation(copy.deepcopy(dict(values)))
    _refuse_protections(translation)
    _give_methods_their_settings(translation)
    unused = [*_leave_unused_sections_out(translation), *_leave_unused_keys_out(translation)]
    for translate in (_kind_of_run, _data, _training, _processes):
        translate(translation)
    if unused:
        translation.notes.append(
            f"keys of FedML's that have no part here (docs/reference/fedml.md): {', '.join(unused)}"
        )
    return translation


def _refuse_protections(translation: Translation) -> None:
    for section in translation.values.values():
        for key in FEDML_PROTECTIONS:
            if isinstance(section, dict) and section.pop(key, None):
                translation.mistakes.append(why_refused(key))


def _give_methods_their_settings(translation: Translation) -> None:
    for key, method, name in (("fedprox_mu", "fedprox", "mu"), ("feddyn_alpha", "feddyn", "alpha")):
        for section in ("train_args", f"{method}_args"):
            if key in _section(translation, section):
                value = _section(translation, section).pop(key)
                place = _made(translation.values, "dapper_args", "params", method)
                place.setdefault(name, value)


def _made(values: dict[str, Any], *path: str) -> dict[str, Any]:
    """The section at ``path``, created if missing; one that belongs to nothing where something else stands there."""
    for key in path:
        if values.get(key) is None:
            values[key] = {}
        if not isinstance(values[key], dict):
            return {}
        values = values[key]
    return values


def _leave_unused_sections_out(translation: Translation) -> list[str]:
    names = [name for name in translation.values if name in UNUSED_SECTIONS]
    for name in names:
        del translation.values[name]
    return names


def _leave_unused_keys_out(translation: Translation) -> list[str]:
    unused = []
    for name, section in translation.values.items():
        if isinstance(section, dict) and name != "dapper_args":
            for key in [key for key in section if key in UNUSED]:
                del section[key]
                unused.append(f"{name}.{key}")
    return unused


def _kind_of_run(translation: Translation) -> None:
    common = _section(translation, "common_args")
    scenario = common.pop("scenario", "horizontal")
    if scenario != "horizontal":
        translation.mistakes.append(
            f"common_args.scenario: is {shown(scenario)}, and a silo is one process here; leave it out, or write"
            " horizontal"
        )
    if "using_mlops" in common:
        value = common.pop("using_mlops")
        asked = _made(translation.values, "tracking_args").setdefault("using_mlops", value)
        if asked != value:
            translation.mistakes.append(
                f"common_args.using_mlops is {shown(value)}, and tracking_args.using_mlops {shown(asked)}; leave the"
                " former out"
            )


def _data(translation: Translation) -> None:
    data = _section(translation, "data_args")
    method = data.pop("partition_method", None)
    alpha = data.pop("partition_alpha", None)
    if method == "hetero" and data.get("partition") is None:
        data["partition"] = "dirichlet"
    elif method is not None and data.get("partition") is None:
        translation.notes.append(
            f"data_args.partition_method {shown(method)} is for a program's own loader; data_args.partition says who"
            " holds what of data that this package loads"
        )
    if alpha is not None and data.get("partition") == "dirichlet":
        ours = data.setdefault("dirichlet_alpha", alpha)
        if ours != alpha:
            translation.notes.append(
                f"data_args.partition_alpha {shown(alpha)} is not used: data_args.dirichlet_alpha is {shown(ours)}"
            )
    elif alpha is not None and method is None and data.get("partition") is None:
        translation.notes.append(
            f"data_args.partition_alpha {shown(alpha)} is not used: no `partition_method: hetero` asks for such parts"
        )


def _training(translation: Translation) -> None:
    training = _section(translation, "train_args")
    optimizer = training.get("client_optimizer")
    if isinstance(optimizer, str):
        training["client_optimizer"] = optimizer.lower()
    _choose_method(translation, training)
    for short, long in (("lr", "learning_rate"), ("wd", "weight_decay")):
        if short in training and long in training:
            del training[short]
        elif short in training:
            del training[short]
            translation.mistakes.append(f"train_args.{short}: FedML's trainers read {long}; write that")
    engine = training.pop("ml_engine", "torch")
    if engine != "torch":
        translation.mistakes.append(
            f"train_args.ml_engine: is {shown(engine)}, and networks are torch's here; leave it out"
        )


def _choose_method(translation: Translation, training: dict[str, Any]) -> None:
    asked = training.get("federated_optimizer")
    if not isinstance(asked, str):
        return
    training["federated_optimizer"] = "FedAvg"
    dapper = _made(translation.values, "dapper_args")
    named = dapper.get("method")
    if asked in ("SA", "LSA"):
        translation.mistakes.append(f"train_args.federated_optimizer: `{asked}` is refused: {_WITHOUT_A_METHOD[asked]}")
    elif named is not None:
        if asked not in ("FedAvg", "FedAvg_seq", named):
            translation.notes.append(
                f"train_args.federated_optimizer is {asked:.60}; the method is dapper_args.method, {shown(named)}"
            )
    elif asked in _WITHOUT_A_METHOD:
        translation.mistakes.append(
            f"train_args.federated_optimizer: `{asked}` is none of the methods here: {_WITHOUT_A_METHOD[asked]}; name"
            " one as dapper_args.method (docs/methods.md)"
        )
    else:
        dapper["method"] = _METHODS.get(asked, asked if ":" in asked else asked.lower().replace("-", "_"))
        translation.notes.append(
            f"train_args.federated_optimizer {asked:.60} chooses the method {dapper['method']:.60}"
        )
        if training.get("client_optimizer", "sgd") == "sgd" and "momentum" not in training:
            translation.notes.append("train_args.momentum has its default here, 0.9, and FedML's own trainers use none")


def _processes(translation: Translation) -> None:
    training = _section(translation, "train_args")
    devices = _section(translation, "device_args")
    count = training.get("client_num_in_total")
    listed = training.pop("client_id_list", None)
    if listed not in _NOTHING and not _counts_up(_read_list(listed)):
        translation.notes.append(
            f"train_args.client_id_list {shown(listed)} is not used: clients are ranks 1 to client_num_in_total"
        )
    workers = devices.pop("worker_num", None)
    across_silos = _section(translation, "common_args").get("training_type") == "cross_silo"
    if across_silos and workers is not None and workers != count:
        translation.mistakes.append(
            f"device_args.worker_num is {shown(workers)}, and train_args.client_num_in_total {shown(count)}: across"
            " silos each client is a process; make the two agree"
        )


def _read_list(written: Any) -> Any:
    """Read a list, which FedML's files may write as a text."""
    if not isinstance(written, str):
        return written
    try:
        return ast.literal_eval(written)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _counts_up(ids: Any) -> bool:
    """Whether ``ids`` are 1, 2, 3, ..., which clients have anyway."""
    return isinstance(ids, list) and ids == [*range(1, 1 + len(ids))]


def _section(translation: Translation, name: str) -> dict[str, Any]:
    """A section to read and change; where there is none, an empty one that belongs to nothing."""
    section = translation.values.get(name)
    return section if isinstance(section, dict) else {}
