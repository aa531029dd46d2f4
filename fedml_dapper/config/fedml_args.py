"""FedML's own sections, as FedML users know them, and what of FedML's is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from fedml_dapper.config.adapter_args import AdapterArgs
from fedml_dapper.config.class_names import fault_of_names
from fedml_dapper.config.limits import (
    MAX_BATCH,
    MAX_CLASSES,
    MAX_CLIENTS,
    MAX_EPOCHS,
    MAX_ROUNDS,
    MAX_SEED,
    MAX_SIDE,
    MAX_THREADS,
    MAX_WIDTH,
    MAX_WORKERS,
)
from fedml_dapper.config.plain_values import plain
from fedml_dapper.config.rules import rule
from fedml_dapper.config.section import Section

Share = Annotated[float, Field(gt=0, le=1)]
Arguments = Annotated[dict[str, Any], AfterValidator(plain)]
"""Arguments of users' own code, by name."""
Precision = Literal["fp32", "bf16", "fp16"]
Norm = Literal["batch", "group", "standardised"]
Normalisation = Literal["imagenet", "measured", "none"]
_MOMENTUM = 0.9


class CommonArgs(Section):
    """``common_args``: what kind of run this is."""

    training_type: Literal["simulation", "cross_silo", "cross_device"] = "simulation"
    """``simulation``: all clients are this experiment's own, in one process or under MPI; ``cross_silo``: each is a
    process of its own, which may be anywhere and stays; ``cross_device``: each is one that calls when it may, and of
    thousands those take part that are there."""
    random_seed: int = Field(default=1, ge=0, le=MAX_SEED)
    """Seed of partition, levels, initial weights and batches, none of which depends on the method."""

    @field_validator("training_type", mode="before")
    @classmethod
    def _clouds_are_silos(cls, value: Any) -> Any:
        if value == "cross_cloud":
            raise ValueError(f"{value} is for clusters that FedML's platform rents; write cross_silo (docs/runners.md)")
        return value

    @property
    def is_simulation(self) -> bool:
        """Whether all clients are this experiment's own, so that it holds all their data."""
        return self.training_type == "simulation"


class ClientArgs(Section):
    """One entry of ``data_args.clients``: what a client holds, and how strong its device is."""

    domain: str
    """Domain of the images it holds."""
    share: Share | None = None
    """Share of its domain's training set that it holds; ``data_args.client_share`` when absent."""
    level: int | None = Field(default=None, ge=1)
    """Capability level, 1 the strongest; ``dapper_args.levels.assignment`` decides when no entry has one."""


class DataArgs(Section):
    """``data_args``: which data, and how clients share them."""

    dataset: str | None = None
    """A suite's name; ``folder`` for pictures or packed files of one's own; or a function of one's own,
    ``my_data.py:load`` (docs/own_data.md). Absent only where a FedML program passes data of its own."""
    data_cache_dir: Path | None = None
    """Root of the data, relative to the working directory or to the experiment file; falls back to the environment
    variable ``DAPPER_DATA``, but for ``folder``, whose folder it is."""
    arguments: Arguments = Field(default={})
    """Arguments that a function of one's own is called with, by name; ``text_offline`` takes ``domains``, ``samples``
    and ``length``."""
    classes: Annotated[int, Field(ge=2, le=MAX_CLASSES)] | tuple[str, ...] | None = None
    """For ``folder`` and functions of one's own: how many classes there are, or their names in the order of labels; as
    the data say when absent."""
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """For ``folder``: the share of every class that tests are made with, where there is no ``test/``; 0.2 when
    absent."""
    skip_damaged: bool = False
    """For ``folder``: leave pictures out that cannot be read, and count them; otherwise one is an error."""
    normalisation: Normalisation | None = None
    """Mean and standard deviation that images are normalised by: ImageNet's, those of the training images, or none at
    all (pixels from 0 to 1); the suite's own when absent, which for ``folder`` is ``imagenet``."""
    download: bool = False
    """Let torchvision fetch what is missing, where it can."""
    image_size: int | None = Field(default=None, ge=8, le=MAX_SIDE)
    """Height and width to which images are brought; the suite's own when absent."""
    partition: str | None = None
    """Who holds what; the suite's own when absent. ``domain_shares``: each client a share of one domain's training set
    (DapperFL); ``one_per_domain``: each client a whole domain, of which it keeps a tenth for validation and a tenth for
    testing (FDSE); ``dirichlet``: classes unevenly over the clients of one data set, half of everyone's samples for
    testing (FedCMD); ``own``: across silos, each has its own images and no others (docs/own_silos.md). Or a function of
    one's own, ``my_split.py:deal`` (docs/own_data.md)."""
    client_share: Share | None = None
    """For ``domain_shares`` the share of its domain's training set that one client holds, the suite's own when absent
    (data of one's own: an even one); otherwise the share of its training samples that a client uses, all of them when
    absent."""
    validation_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """For ``domain_shares``: the share of each domain's training set that no client gets, so that rounds and settings
    can be chosen without looking at test images. Clients hold as many samples as without it."""
    clients: tuple[ClientArgs, ...] | None = None
    """For ``domain_shares``, where domains are not to be drawn: the clients in order, each a domain's name or
    ``{domain, share, level}``."""
    client_order: Literal["shuffled", "official"] = "shuffled"
    """Order of clients with drawn domains; ``official``: one guaranteed client per domain comes last, in domain order.
    """
    max_clients_per_domain: int | None = Field(default=None, ge=1, le=MAX_CLIENTS)
    """For ``domain_shares``: most clients of a drawn domain; no limit when absent."""
    dirichlet_alpha: float | None = Field(default=None, gt=0)
    """For ``dirichlet``: how evenly classes spread; 0.1 is very uneven, 1 mild."""
    horizontal_flip: bool | None = None
    """Random flips in training; the suite's own rule when absent (the public code flips digits too)."""

    @field_validator("classes")
    @classmethod
    def _two_or_more_names(cls, classes: int | tuple[str, ...] | None) -> int | tuple[str, ...] | None:
        if isinstance(classes, tuple):
            if len(classes) < 2:
                raise ValueError(
                    f"names {len(classes) or 'no'} class, and there have to be two or more; or leave it out"
                )
            if fault := fault_of_names(classes):
                raise ValueError(f"names {fault}; call it something else")
        return classes

    @field_validator("clients", mode="before")
    @classmethod
    def _names_alone(cls, entries: Any) -> Any:
        if not isinstance(entries, list | tuple):
            return entries
        return [entry if isinstance(entry, Mapping | ClientArgs) else {"domain": entry} for entry in entries]

    @rule
    def _levels_of_all_or_none(self) -> Iterator[str]:
        if len({client.level is None for client in self.clients or ()}) > 1:
            yield "`clients` gives a level to some clients only; give one to all of them or to none"


BUILT_IN = (
    "alexnet",
    "lenet5",
    "lenet5_one_fc",
    "lenet5_three_fc",
    "resnet10",
    "resnet18",
    "transformer_small",
    "unet_small",
)
"""Values of ``model_args.model`` that name a built-in backbone."""


class ModelArgs(Section):
    """``model_args``: the network (docs/own_model.md)."""

    model: str | None = None
    """A built-in backbone, ``path/to/file.py:Name``, ``package.module:Name``, ``torchvision:NAME`` or ``timm:NAME``;
    absent only where a FedML program passes a network of its own."""
    width: int | None = Field(default=None, ge=1, le=MAX_WIDTH)
    """Channels of the first layer of a built-in backbone, by which all other layers scale; as published when absent
    (ResNets, AlexNet and the transformer 64, U-Net 16, LeNet5 6)."""
    norm: Norm | None = None
    """Norm of ResNets and AlexNet: ``batch`` as published, which is the default, ``group``, or ``standardised``: no
    norm, but convolutions that standardise their own weights, whose slim networks need no statistics."""
    arguments: Arguments = Field(default_factory=dict)
    """Arguments that any other network is made with; ``num_classes`` is added where it is a parameter."""
    weights: Path | None = None
    """Weights to start from: a state dict as safetensors or in torch's format; drawn from the seed when absent."""
    predictor: str | None = None
    """Name of the last linear layer in the network, where it is not to be looked for."""
    adapter: AdapterArgs | None = None
    """Low-rank adapters that are trained in place of the network, which is frozen; all of it is trained when absent."""


class TrainArgs(Section):
    """``train_args``: rounds, clients and the local optimiser (DapperFL, Table 4)."""

    federated_optimizer: Literal["FedAvg"] = "FedAvg"
    """FedML wants this key. In a file it chooses the method of that name (FedProx, SCAFFOLD, ...) where
    ``dapper_args.method`` names none, which is the key that counts."""
    client_num_in_total: int = Field(default=10, ge=1, le=MAX_CLIENTS)
    """Number of clients."""
    client_num_per_round: int = Field(default=10, ge=1, le=MAX_CLIENTS)
    """Number of clients that train in a round; drawn anew for each."""
    comm_round: int = Field(default=100, ge=1, le=MAX_ROUNDS)
    """Number of rounds."""
    epochs: int = Field(default=5, ge=1, le=MAX_EPOCHS)
    """Local epochs of a client in a round (E)."""
    batch_size: int = Field(default=64, ge=2, le=MAX_BATCH)
    """Samples in a step of a client."""
    micro_batch_size: int | None = Field(default=None, ge=1, le=MAX_BATCH)
    """Samples of a step that run forward and backward at a time, which takes less memory; all at once when absent. For
    networks without BatchNorm, where the gradients are the same (docs/devices.md)."""
    task: str = "classification"
    """What is learnt: ``classification``, ``segmentation``, ``language_modelling``, the same by accuracy
    (``next_token``), or the user's own (docs/own_task.md)."""
    task_arguments: Arguments = Field(default_factory=dict)
    """Arguments that the task's class is made with."""
    client_optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Optimizer of local training; Adam and AdamW with torch's betas and eps."""
    learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate in round 1."""
    momentum: float = Field(default=_MOMENTUM, ge=0, lt=1)
    """Momentum of ``sgd``; a client starts every round without."""
    weight_decay: float = Field(default=1e-5, ge=0)
    """Weight decay: added to gradients, but in ``adamw``, which shrinks weights apart from them."""
    learning_rate_decay: float = Field(default=1.0, gt=0, le=1)
    """Factor on the learning rate from one round to the next; 1 in DapperFL; in FDSE 0.998 by the paper,
    and 0.9998 in its authors' files."""
    max_grad_norm: float | None = Field(default=None, gt=0)
    """Largest norm of gradients, to which they are clipped in every step; not at all when absent."""
    adaptive_clipping: float | None = Field(default=None, gt=0)
    """Each filter's gradient, but not the predictor's, is clipped to this share of the filter's norm, e.g. 0.02; not at
    all when absent."""

    @field_validator("federated_optimizer", mode="before")
    @classmethod
    def _methods_have_their_own_key(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "FedAvg":
            raise ValueError(f"is {value:.60}; a program that changes the method sets args.method, e.g. to fedprox")
        return value

    @property
    def samples_at_a_time(self) -> int:
        """Samples that are in a network together: those of a batch, or of a piece of it."""
        return self.micro_batch_size or self.batch_size


class ValidationArgs(Section):
    """``validation_args``: how often the global model is tested on every domain (in rounds)."""

    frequency_of_the_test: int = Field(default=1, ge=1)
    """Rounds from one test to the next; the last round is always tested."""


class DeviceArgs(Section):
    """``device_args``: where training runs."""

    using_gpu: bool = False
    """Train and test on a GPU."""
    gpu_id: int = Field(default=0, ge=0, lt=1024)
    """Number of the GPU, as torch counts them."""
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=MAX_WORKERS)] = "auto"
    """Clients that train at a time, each in a process of its own, in simulations in one command (``backend: sp``) on a
    CPU. ``auto``: as many as there are cores for their ``threads``; results do not depend on the number."""
    threads: int | None = Field(default=None, ge=1, le=MAX_THREADS)
    """CPU threads for torch in each process. When absent one where several workers train (or what ``OMP_NUM_THREADS``
    says), otherwise all cores, but for an MPI rank that trains: its share of them. Results depend on it in their last
    bits."""
    precision: Precision = "fp32"
    """Precision of the clients' forward and backward passes (torch's autocast); weights, optimizers, aggregation and
    tests stay fp32. ``fp16`` scales the loss, and needs a GPU."""
    capture: Literal["auto", "off"] = "auto"
    """Recording of training steps as CUDA graphs, which spares a GPU the wait for Python. ``auto``: where there is a
    GPU, and for each step that can be recorded; ``off``: nowhere. Results differ in their last bits."""

    @field_validator("capture", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: Any) -> Any:
        return "off" if value is False else value  # what YAML makes of it


class TrackingArgs(Section):
    """``tracking_args``: who besides the ledger gets the metrics of every round (docs/tracking.md)."""

    using_mlops: bool = False
    """FedML's dashboard; the only setting that makes a run look for FedML's platform."""
    enable_wandb: bool = False
    """Weights & Biases: recorded in the run's folder, uploaded at the end where there is a key."""
    wandb_project: str = "fedml_dapper"
    """Project at wandb."""
    wandb_entity: str | None = None
    """Team at wandb; the key's owner when absent."""
    run_name: str | None = None
    """The run's name at wandb; the name of its folder when absent."""
    enable_tensorboard: bool = False
    """Event files in the run's folder."""
