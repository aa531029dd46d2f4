"""The data of an experiment: what its settings name, dealt out, or what a program passes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedml_dapper.config import DataArgs, Settings, digest_of
from fedml_dapper.datasets import Division, divide, load_suite, loaded_division
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.unseen import UnseenDomain, leave_out
from fedml_dapper.models import example_image


@dataclass(frozen=True)
class ExperimentData:
    """Everyone's data, and what all of them have in common."""

    division: Division
    unseen: UnseenDomain | None
    label: str
    """Printed beside results."""
    num_classes: int
    example: Tensor
    """A batch of one input, on the CPU."""
    source: str | None = None
    """What a program passes, in words that are the same in every process of one run; None for data that settings
    name."""


def load_data(settings: Settings, device: torch.device) -> ExperimentData:
    """The data that ``settings`` name; raises :class:`ConfigError` or :class:`~fedml_dapper.errors.DataError`."""
    training, seed = settings.train_args, settings.common_args.random_seed
    suite, unseen = leave_out(load_suite(settings.data_args), settings)
    division = divide(suite, settings.data_args, training.client_num_in_total, training.batch_size, seed)
    return ExperimentData(division.to(device), unseen, suite.label, suite.num_classes, example_image(suite.input_size))


def passed_data(settings: Settings, dataset: object) -> ExperimentData:
    """FedML's eight-part tuple that a program passes, used as it is.

    Raises :class:`ConfigError` where ``settings`` say something else, :class:`~fedml_dapper.errors.DataError` where it
    is no such tuple.
    """
    division, example, num_classes = loaded_division(dataset)
    sizes = [client.num_samples for client in division.clients]
    source = f"{len(sizes)} clients of {sum(sizes)} samples (sizes {digest_of(repr(sizes).encode())})"
    if settings.data_args.dataset is not None:
        raise ConfigError(
            f"data_args.dataset: the experiment names `{settings.data_args.dataset}`, and the program passes other data"
            f" ({source}); leave data_args out, or pass what dapper.load gives"
        )
    for key, value in settings.data_args:
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
    return ExperimentData(division, None, "the program's data", num_classes, example, source)
