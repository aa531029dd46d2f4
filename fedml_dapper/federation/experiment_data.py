"""Data of an experiment, divided among clients: those that its settings name, or those that a program passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fedml_dapper.config import DataArgs, Settings, digest_of
from fedml_dapper.datasets import (
    PARTS,
    Batch,
    Division,
    Preprocessing,
    Suite,
    divide,
    load_server,
    load_silo,
    load_suite,
    loaded_division,
    server_division,
    silo_division,
)
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.scoring.unseen import UnseenDomain, leave_out
from fedml_dapper.inputs import Inputs


@dataclass(frozen=True)
class ExperimentData:
    """Data of all clients, with what all of them have in common: classes, the shape of inputs, preprocessing."""

    division: Division
    unseen: UnseenDomain | None
    label: str
    """Name of the data as printed beside results."""
    classes: tuple[str, ...]
    """Names of the classes, by label."""
    example: Inputs
    """A batch of one input, on the CPU."""
    firsts: tuple[tuple[str, Batch], ...]
    """First sample of each domain and part, as a batch of one on the CPU, with a description of the place for errors;
    empty where silos have all samples."""
    source: str | None = None
    """Description of what a program passes, equal in every process of a run; None for data that settings name."""
    notes: tuple[str, ...] = ()
    """What was done to read the data, to be logged."""
    preprocessing: Preprocessing | None = None
    """How pictures become inputs, where the data are pictures."""

    @property
    def num_classes(self) -> int:
        return len(self.classes)


def load_data(settings: Settings, device: torch.device, rank: int = 0) -> ExperimentData:
    """Load the data that ``settings`` name, onto ``device``.

    Where silos have data of their own, those of ``rank`` alone are loaded. Rank 0 is the server; edges, which come
    after the silos, hold what it does.

    Raises:
        ConfigError: The settings of the data do not fit each other, or the data.
        DataError: Data are missing or damaged.
    """
    suite, unseen, division = _divided(settings, rank)
    return ExperimentData(
        division.to(device),
        unseen,
        suite.label,
        suite.classes,
        suite.example,
        tuple(_firsts(suite)),
        notes=tuple(suite.notes),
        preprocessing=suite.preprocessing,
    )


def _firsts(suite: Suite) -> Iterator[tuple[str, Batch]]:
    for domain in suite.domains:
        for part, samples in zip(PARTS, domain.parts, strict=False):
            yield f"{suite.name}, domain {domain.name}, {part}", samples.first


def _divided(settings: Settings, rank: int) -> tuple[Suite, UnseenDomain | None, Division]:
    args = settings.data_args
    training = settings.train_args
    seed = settings.common_args.random_seed
    if args.partition != "own":
        suite, unseen = leave_out(load_suite(args), settings)
        return suite, unseen, divide(suite, args, training.client_num_in_total, training.batch_size, seed)
    if not 1 <= rank <= training.client_num_in_total:
        suite = load_server(args)
        return suite, None, server_division(suite)
    suite = load_silo(args, settings.silo_args)
    return suite, None, silo_division(suite, rank - 1, training.batch_size, seed)


def passed_data(settings: Settings, dataset: object) -> ExperimentData:
    """Take over the eight-part tuple that a program has loaded by FedML, without dividing it anew.

    Raises:
        ConfigError: ``settings`` describe other data than the program passes.
        DataError: ``dataset`` is no such tuple.
    """
    division, first, num_classes = loaded_division(dataset)
    sizes = [client.num_samples for client in division.clients]
    source = f"{len(sizes)} clients of {sum(sizes)} samples (sizes {digest_of(repr(sizes).encode())})"
    args = with_passed_data(settings).data_args
    notes: tuple[str, ...] = ()
    if settings.data_args.dataset is not None:
        notes = (
            f"the data are the program's, {source}; data_args.dataset {settings.data_args.dataset} is for its loader",
        )
    for key, value in args:
        if value != DataArgs.model_fields[key].default:
            raise ConfigError(f"data_args.{key}: belongs to data that data_args.dataset names; leave it out")
    if settings.dapper_args.evaluation.unseen_domain is not None:
        raise ConfigError("dapper_args.evaluation.unseen_domain: the data that the program passes have no domains")
    expected = settings.train_args.client_num_in_total
    if len(sizes) != expected:
        raise ConfigError(
            f"train_args.client_num_in_total: is {expected}, and the program passes data of {len(sizes)} clients; make"
            " them agree"
        )
    classes = tuple(str(label) for label in range(num_classes))
    firsts = (("the program's data, client 0, train", first),)
    return ExperimentData(division, None, "the program's data", classes, first.inputs, firsts, source, notes)


def with_passed_data(settings: Settings) -> Settings:
    """Return ``settings`` without those that FedML's loaders read, which a program that passes data may have used."""
    args = settings.data_args
    unset = dict.fromkeys(("dataset", "data_cache_dir"))
    if args.partition == "dirichlet":  # FedML's partition_method and partition_alpha
        unset |= {"partition": None, "dirichlet_alpha": None}
    return settings.model_copy(update={"data_args": args.model_copy(update=unset)})
