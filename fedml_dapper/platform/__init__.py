"""FedML's trainer, aggregator, managers and runners for this package; the only room that imports ``fedml``."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings of old versions of requests and pkg_resources, which FedML pins
    from fedml.arguments import Arguments

from fedml_dapper.federation import device_of, load_data
from fedml_dapper.models import Backbone
from fedml_dapper.platform.arguments import init, settings_of
from fedml_dapper.platform.client_trainer import DapperClientTrainer
from fedml_dapper.platform.cross_device_server import CrossDeviceServer
from fedml_dapper.platform.dataset import FedMLDataset, fedml_dataset
from fedml_dapper.platform.distributed import DistributedRunner
from fedml_dapper.platform.in_process import InProcessRunner
from fedml_dapper.platform.program import attach, experiment_of, keep_data
from fedml_dapper.platform.runner import runner_for
from fedml_dapper.platform.server_aggregator import DapperServerAggregator

__all__ = [
    "CrossDeviceServer",
    "DapperClientTrainer",
    "DapperServerAggregator",
    "DistributedRunner",
    "InProcessRunner",
    "attach",
    "experiment_of",
    "init",
    "load",
    "runner_for",
]


def load(args: Arguments) -> tuple[FedMLDataset, Backbone | None]:
    """Load FedML's eight-part dataset tuple and the initial global model, for FedML programs that pass them around.

    The model is None where the experiment file names none: then the program passes one of its own.
    """
    settings = settings_of(args)
    if settings.model_args.model is None:
        data = load_data(settings, device_of(settings))
        keep_data(args, data)
        return fedml_dataset(data.division, data.num_classes), None
    experiment = experiment_of(args)
    return fedml_dataset(experiment.division, experiment.num_classes), experiment.method.problem.backbone
