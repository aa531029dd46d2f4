"""Network and data that a FedML program passes as objects, and the experiment that is built from them.

A program passes them to trainer, aggregator and runner, one after another. They are kept on FedML's ``args``, which all
three have, and the experiment is built when it is first needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedml.arguments import Arguments
from torch import nn

from fedml_dapper.config import FEDML_PROTECTIONS, why_refused
from fedml_dapper.datasets import ClientData
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import Experiment, ExperimentData, build_experiment, passed_data
from fedml_dapper.models import check_same_network
from fedml_dapper.platform.arguments import settings_of, settings_of_files
from fedml_dapper.pruning import Tensors

_EXPERIMENT = "dapper_experiment"
_PASSED = "dapper_passed"


@dataclass
class _Passed:
    """Network and data that the program passes in place of those that settings name."""

    model: nn.Module | None = None
    dataset: object = None
    """FedML's eight-part tuple from which ``data`` were made, if one was passed."""
    data: ExperimentData | None = None


def experiment_of(args: Arguments) -> Experiment:
    """Return the experiment of ``args`` and of what the program passed, built once and kept on ``args``.

    Raises:
        ConfigError: Settings do not fit each other, the network or the data.
        DataError: Data are missing, damaged or not what the task needs.
    """
    refuse_protections(args)
    experiment = _built(args)
    if experiment is None:
        passed = _passed(args)
        experiment = build_experiment(settings_of(args), passed.model, passed.data, rank=int(args.rank))
        attach(args, experiment)
    return experiment


def attach(args: Arguments, experiment: Experiment) -> None:
    """Keep on ``args`` an experiment that was built already."""
    setattr(args, _EXPERIMENT, experiment)


def refuse_protections(args: Arguments) -> None:
    """Refuse FedML's own attacks and defences, which its base classes would apply to slim models.

    Raises:
        ConfigError: The program switched one of them on.
    """
    for key in FEDML_PROTECTIONS:
        if vars(args).get(key):  # set by the program: files that set it are refused when they are read
            raise ConfigError(why_refused(key))


def note_model(args: Arguments, model: nn.Module | None) -> None:
    """Note that the program passes ``model``, which is trained from its present weights; None where settings name one.

    Raises:
        ConfigError: It is another network than one passed before, or than the experiment's, or no network.
    """
    if not isinstance(model, nn.Module | None):
        raise ConfigError(
            f"the program passes a {type(model).__name__} as its model; pass a torch.nn.Module, or what"
            " fedml_dapper.platform.load returns"
        )
    passed = _passed(args)
    experiment = _built(args)
    own = None if experiment is None else experiment.method.problem.backbone
    if model is None or model is own or model is passed.model:
        return
    if own is not None:  # the experiment was built with an earlier one, and takes over this one's weights
        check_same_network(model, own, settings_of(args).model_args.model or "what was passed before")
        own.load_state_dict(model.state_dict())
    elif passed.model is not None:
        check_same_network(model, passed.model, "what was passed before")
    passed.model = model if passed.model is None else passed.model


def note_data(args: Arguments, dataset: object) -> None:
    """Note that the program passes ``dataset``, FedML's eight-part tuple, to be trained and tested on.

    Raises:
        ConfigError: Settings name other data, or the experiment was built already.
        DataError: The tuple cannot be used.
    """
    passed = _passed(args)
    if _is_ours(dataset) or dataset is passed.dataset:
        return
    parts, notes = _parts_of_silos(args, dataset)
    data = passed_data(settings_of(args), parts)
    if _built(args) is not None:
        raise ConfigError("the program passes its data after the experiment was built without them; pass them first")
    passed.data = replace(data, notes=(*data.notes, *notes))
    passed.dataset = dataset


def _parts_of_silos(args: Arguments, dataset: object) -> tuple[object, tuple[str, ...]]:
    """Return ``dataset`` cut to the number of silos, and a note that says so.

    A loader of FedML may divide data into more parts than there are silos, and writes their number over that of silos
    in ``args``, which is put right here.
    """
    if args.training_type != "cross_silo" or not isinstance(dataset, Sequence) or len(dataset) != 8:
        return dataset, ()
    num_parts = len(dataset[5])
    silos = settings_of_files(args).train_args.client_num_in_total
    if not (silos < num_parts == args.client_num_in_total):
        return dataset, ()
    args.client_num_in_total = silos
    counts, train, test = ({part: parts[part] for part in range(silos)} if parts else parts for parts in dataset[4:7])
    made = f"the program's loader made data of {num_parts} clients"
    note = f"{made}; silos 1 to {silos} have the first, nobody the others"
    return (*dataset[:4], counts, train, test, dataset[7]), (note,)


def keep_data(args: Arguments, data: ExperimentData) -> None:
    """Keep data that settings name and that are loaded already, so that the experiment need not load them again."""
    _passed(args).data = data


def hand_back(args: Arguments, weights: Tensors) -> None:
    """Put the trained global model into the network that the program passed, as FedML's own runners do.

    The network stays as it was where the method has added layers of its own, which have no place in it.
    """
    model = _passed(args).model
    if model is not None and model.state_dict().keys() == weights.keys():
        model.load_state_dict(dict(weights))


def _built(args: Arguments) -> Experiment | None:
    experiment = vars(args).get(_EXPERIMENT)
    assert experiment is None or isinstance(experiment, Experiment)
    return experiment


def _passed(args: Arguments) -> _Passed:
    passed = vars(args).setdefault(_PASSED, _Passed())
    assert isinstance(passed, _Passed)
    return passed


def _is_ours(dataset: object) -> bool:
    """Return whether the training data per client are those of :func:`fedml_dapper.platform.load`."""
    train_local = dataset[5] if isinstance(dataset, Sequence) and len(dataset) == 8 else None
    return isinstance(train_local, dict) and all(isinstance(data, ClientData) for data in train_local.values())
