"""The experiment file: FedML's YAML sections as FedML users know them, plus our own ``dapper_args``.

FedML accepts any key and any type without a word; here every section is closed, typed and checked before anything
starts. The settings of a method (``dapper_args.params``) are checked against that method's own class later, by
:func:`fedml_dapper.methods.build_method`, with the same error messages.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from fedml_dapper.errors import ConfigError

Share = Annotated[float, Field(gt=0, le=1)]
PruningRatio = Annotated[float, Field(ge=0, lt=1)]
Precision = Literal["fp32", "bf16", "fp16"]
Uplink = Literal["fp32", "fp16", "bf16", "int8"]
PartitionName = Literal["domain_shares", "one_per_domain", "dirichlet"]


class Section(BaseModel):
    """Base of every group of settings: frozen, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CommonArgs(Section):
    """``common_args``: what kind of run this is."""

    training_type: Literal["simulation", "cross_silo"] = "simulation"
    random_seed: int = Field(default=1, ge=0)


class DataArgs(Section):
    """``data_args``: which images, and how clients share them (METHODS E)."""

    dataset: str
    data_cache_dir: Path | None = None
    """Root of the data; falls back to the environment variable ``DAPPER_DATA``."""
    download: bool = False
    """Let torchvision fetch what is missing, where it can."""
    image_size: int | None = Field(default=None, ge=8)
    """Height and width to which images are brought; the suite's own when absent."""
    partition: PartitionName | None = None
    """Who holds what; the suite's own when absent. ``domain_shares``: each client a share of one domain's training set
    (DapperFL, E.3); ``one_per_domain``: each client a whole domain, of which it keeps a tenth for validation and a
    tenth for testing (FDSE, E.5); ``dirichlet``: classes unevenly over the clients of one data set, half of everyone's
    samples for testing (FedCMD, E.6)."""
    client_share: Share | None = None
    """For ``domain_shares`` the share of its domain's training set that one client holds, the suite's own when absent;
    otherwise the share of its training samples that a client uses, all of them when absent."""
    validation_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """For ``domain_shares``: the share of each domain's training set that no client gets, so that rounds and settings
    can be chosen without looking at test images. Clients hold as many samples as without it."""
    client_order: Literal["shuffled", "official"] = "shuffled"
    """``official``: one guaranteed client per domain comes last, in domain order (METHODS A.7, D15)."""
    max_clients_per_domain: int | None = Field(default=None, ge=1)
    dirichlet_alpha: float | None = Field(default=None, gt=0)
    """For ``dirichlet``: how evenly classes spread; 0.1 is very uneven, 1 mild."""
    horizontal_flip: bool | None = None
    """Random flips in training; the suite's own rule when absent (the public code flips digits too: A.7, D14)."""


class ModelArgs(Section):
    """``model_args``: the backbone."""

    model: str
    width: int | None = Field(default=None, ge=1)
    """Channels of its first layer, by which all other layers scale; as published when absent (ResNets and AlexNet 64,
    LeNet5 6)."""


class TrainArgs(Section):
    """``train_args``: rounds, clients and the local optimiser (DapperFL, Table 4)."""

    federated_optimizer: Literal["FedAvg"] = "FedAvg"
    """FedML wants this key; the method itself is ``dapper_args.method``."""
    client_num_in_total: int = Field(default=10, ge=1)
    client_num_per_round: int = Field(default=10, ge=1)
    comm_round: int = Field(default=100, ge=1)
    epochs: int = Field(default=5, ge=1)
    batch_size: int = Field(default=64, ge=2)
    client_optimizer: Literal["sgd"] = "sgd"
    learning_rate: float = Field(default=0.01, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=1e-5, ge=0)
    learning_rate_decay: float = Field(default=1.0, gt=0, le=1)
    """Factor on the learning rate from one round to the next; 1 in DapperFL, 0.998 in FDSE."""
    max_grad_norm: float | None = Field(default=None, gt=0)
    """Gradients are clipped to this norm in every step; not at all when absent."""

    @field_validator("federated_optimizer", mode="before")
    @classmethod
    def _explain_secure_aggregation(cls, value: Any) -> Any:
        if value in ("SA", "LSA"):
            raise ValueError(f"`{value}` is refused: {FEDML_PROTECTIONS['enable_secagg']}; write FedAvg")
        return value

    @model_validator(mode="after")
    def _enough_clients(self) -> TrainArgs:
        if self.client_num_per_round > self.client_num_in_total:
            raise ValueError(
                f"client_num_per_round ({self.client_num_per_round}) is more than"
                f" client_num_in_total ({self.client_num_in_total}); lower the former"
            )
        return self


class ValidationArgs(Section):
    """``validation_args``: how often the global model is tested on every domain (in rounds)."""

    frequency_of_the_test: int = Field(default=1, ge=1)


class DeviceArgs(Section):
    """``device_args``: where training runs."""

    using_gpu: bool = False
    gpu_id: int = Field(default=0, ge=0)
    threads: int | None = Field(default=None, ge=1)
    """CPU threads for torch; all cores when absent."""
    precision: Precision = "fp32"
    """Of the clients' forward and backward passes (torch's autocast); weights, optimizers, aggregation and tests stay
    fp32. ``fp16`` scales the loss, and needs a GPU."""

    @model_validator(mode="after")
    def _half_on_gpu(self) -> DeviceArgs:
        if self.precision == "fp16" and not self.using_gpu:
            raise ValueError("precision fp16 needs using_gpu; on a CPU use bf16")
        return self


class MqttConfig(Section):
    """``comm_args.customized_training_mqtt_config``: your own broker, in FedML's words."""

    BROKER_HOST: str
    BROKER_PORT: int = 1883
    MQTT_USER: str = ""
    MQTT_PWD: str = ""
    MQTT_KEEPALIVE: int = 60


class S3Config(Section):
    """``comm_args.customized_training_s3_config``: your own object store, in FedML's words; the bucket must exist."""

    BUCKET_NAME: str
    CN_S3_AKI: str
    CN_S3_SAK: str
    CN_REGION_NAME: str = "us-east-1"
    CN_S3_ENDPOINT: str


class SecureGrpcConfig(Section):
    """``comm_args.dapper_grpc``: our own gRPC between a server and silos that prove who they are (docs/security.md)."""

    server_address: str
    """HOST:PORT that silos dial; the server's certificate must name HOST."""
    listen_address: str | None = None
    """ADDRESS:PORT the server listens on, ``server_address`` when absent; 0.0.0.0:PORT behind a forwarded port."""
    certificates: Path
    """Folder with ``ca.pem`` and this process's ``NAME.pem`` and ``NAME.key``; NAME is ``server`` or ``silo-RANK``."""
    token_file: Path | None = None
    """File that holds a secret shared by all, asked for besides the certificate; its end of line does not count."""
    token_variable: str | None = None
    """The same from this environment variable."""
    max_message_mb: int = Field(default=2048, ge=1)
    """MiB; a larger message is refused before anything of it is kept. A few times the model's size is enough."""

    @field_validator("server_address", "listen_address")
    @classmethod
    def _host_and_port(cls, address: str | None) -> str | None:
        if address is not None:
            host, _, port = address.rpartition(":")
            if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
                raise ValueError(f"expected HOST:PORT, e.g. server.example.org:8890, found {address}")
        return address

    @model_validator(mode="after")
    def _one_token(self) -> SecureGrpcConfig:
        if self.token_file is not None and self.token_variable is not None:
            raise ValueError("token_file and token_variable are two places for one token; leave one out")
        return self

    @property
    def server_host(self) -> str:
        """HOST of ``server_address``."""
        return self.server_address.rpartition(":")[0].strip("[]")


class CommArgs(Section):
    """``comm_args``: FedML's communication backend. ``sp`` is the single process, ``MPI`` the simulation on several;
    ``DAPPER_GRPC``, ``GRPC`` and ``MQTT_S3`` connect silos, the first also across networks that are not trusted."""

    backend: Literal["sp", "MPI", "DAPPER_GRPC", "GRPC", "MQTT_S3"] = "sp"
    dapper_grpc: SecureGrpcConfig | None = None
    grpc_ipconfig_path: Path | None = None
    """For GRPC: a CSV table of FedML's columns eid,rank,grpc_server_ip,grpc_server_port; rank 0 is the server."""
    customized_training_mqtt_config: MqttConfig | None = None
    customized_training_s3_config: S3Config | None = None

    @model_validator(mode="after")
    def _addresses(self) -> CommArgs:
        if self.backend == "DAPPER_GRPC" and self.dapper_grpc is None:
            raise ValueError(
                "backend DAPPER_GRPC needs dapper_grpc: the server's address and the folder of certificates, as in"
                " config/secure_grpc.yaml"
            )
        if self.backend == "GRPC" and self.grpc_ipconfig_path is None:
            raise ValueError("backend GRPC needs grpc_ipconfig_path, a table of everyone's address")
        if self.backend == "MQTT_S3" and None in (
            self.customized_training_mqtt_config,
            self.customized_training_s3_config,
        ):
            raise ValueError(
                "backend MQTT_S3 needs customized_training_mqtt_config and customized_training_s3_config: the addresses"
                " of your own broker and object store"
            )
        return self


class ClientSpecificArgs(Section):
    """``client_specific_args``: one file per silo, in rank order, as FedML has it."""

    data_silo_config: tuple[Path, ...] | None = None
    """Each holds ``silo_args: {capability_level: N}``; replaces ``dapper_args.levels.assignment``."""


class SiloArgs(Section):
    """``silo_args`` of a silo's own file."""

    capability_level: int = Field(ge=1)


class SiloFile(Section):
    """A silo's own file."""

    silo_args: SiloArgs


FEDML_PROTECTIONS = {
    "enable_dp": "FedML's noise covers a client's weights alone, while kept channels, sample count and loss travel as"
    " they are, and nothing bounds what one client adds; so its epsilon would not hold",
    "enable_secagg": "secure aggregation adds up masked vectors of one length, and slim models differ in theirs",
    "enable_fhe": "FedML adds up encrypted vectors of one length, and slim models differ in theirs",
    "enable_defense": "FedML's defences compare tensors of one shape; use dapper_args.defence",
    "enable_attack": "FedML's attacks rewrite tensors of one shape",
}
"""FedML's switches for protections that slim models do not fit, and why (docs/privacy.md)."""


def why_refused(key: str) -> str:
    """The line for whoever switches one of :data:`FEDML_PROTECTIONS` on."""
    return f"leave `{key}` out: {FEDML_PROTECTIONS[key]} (docs/privacy.md)"


_FEDML_TRACKING_KEYS = {
    "enable_tracking": "FedML's dashboard is switched on by using_mlops here",
    "log_file_dir": "a run writes into its own folder below dapper_args.output_dir",
    "wandb_key": "a key in a file ends up in every copy of the settings; use `wandb login` or WANDB_API_KEY",
    "wandb_name": "write run_name, the key that FedML reads",
}
"""Keys of FedML's templates that are left out here, and why."""


class TrackingArgs(Section):
    """``tracking_args``: who besides the ledger gets the metrics of every round (docs/tracking.md)."""

    using_mlops: bool = False
    """FedML's dashboard; the only setting that makes a run look for FedML's platform."""
    enable_wandb: bool = False
    wandb_project: str = "fedml_dapper"
    wandb_entity: str | None = None
    run_name: str | None = None
    """The run's name at wandb; the name of its folder when absent."""
    enable_tensorboard: bool = False

    @model_validator(mode="before")
    @classmethod
    def _explain_what_fedml_has(cls, values: Any) -> Any:
        for key, reason in _FEDML_TRACKING_KEYS.items():
            if isinstance(values, dict) and key in values:
                raise ValueError(f"leave `{key}` out: {reason}")
        return values


class LevelArgs(Section):
    """``dapper_args.levels``: capability levels, strongest first, as pruning ratios; who has which."""

    ratios: tuple[PruningRatio, ...] = (0.0, 0.2, 0.4, 0.6, 0.8)
    assignment: Literal["balanced", "index_mod"] = "balanced"
    """``balanced``: round-robin over a seeded shuffle of the clients; ``index_mod``: client index modulo levels."""
    strict: bool = False
    """Refuse methods that train the full model on every client. Comparisons in the papers ignore limits there."""

    @field_validator("ratios")
    @classmethod
    def _not_empty(cls, ratios: tuple[float, ...]) -> tuple[float, ...]:
        if not ratios:
            raise ValueError("needs at least one ratio, e.g. [0.0] for full models everywhere")
        return ratios


class PruningArgs(Section):
    """``dapper_args.pruning``: which channels may go, and what a pruning ratio is a ratio of (METHODS 0, A.4)."""

    scope: Literal["internal", "grouped", "official_mask"] = "internal"
    ratio_of: Literal["parameters", "flops", "channels"] = "parameters"
    round_to: int = Field(default=1, ge=1)
    """Kept widths are multiples of this; 8 or 16 suit tensor cores, at the price of the 1 % budget tolerance."""


class EvaluationArgs(Section):
    """``dapper_args.evaluation``: what is measured besides the global model on every domain."""

    personal: bool = False
    """Each client's own model on its own test samples, and what a round of local training changes there."""
    unseen_domain: str | None = None
    """Leave this domain's clients out of training; it is tested all the same, after label-free adaptation where the
    method has one."""


class DefenceArgs(Section):
    """``dapper_args.defence``: what the server does about clients that send what they should not
    (docs/reliability.md).

    The relative change of an upload is ||w - W|| / ||W|| over all it holds, W being what the client was sent.
    """

    max_change: float | None = Field(default=None, gt=0)
    """An upload of larger relative change is refused; none is when absent."""
    strikes: int | None = Field(default=None, ge=1)
    """After so many refused uploads a client is put in quarantine; never when absent."""
    quarantine_rounds: int = Field(default=10, ge=1)
    """For how many rounds it is not sent anything then; afterwards it starts with a clean slate."""
    aggregation: Literal["mean", "trimmed_mean", "median", "norm_clipping"] = "mean"
    """What is taken over the clients that hold a coordinate: the mean, or something that a few bad ones cannot move
    far. All but ``mean`` go with methods that recover and average only."""
    trimmed_share: float = Field(default=0.2, gt=0, lt=0.5)
    """For ``trimmed_mean``: share of a coordinate's holders that is left out at either end, rounded up."""
    min_holders: int = Field(default=3, ge=1)
    """For ``trimmed_mean`` and ``median``: a coordinate that fewer clients hold counts as held by nobody, since of two
    values none can be called the odd one."""
    clip_change: float = Field(default=1.0, gt=0)
    """For ``norm_clipping``: uploads of larger relative change are shortened to this."""


class DapperArgs(Section):
    """``dapper_args``: everything FedML has no word for."""

    method: str = "dapperfl"
    params: dict[str, dict[str, Any]] = {}
    """Method name -> that method's own settings (its ``Params`` class); the present method uses its own entry, so one
    file can hold the settings of all methods it is meant to compare."""
    levels: LevelArgs = LevelArgs()
    pruning: PruningArgs = PruningArgs()
    evaluation: EvaluationArgs = EvaluationArgs()
    defence: DefenceArgs = DefenceArgs()
    aggregation_weights: Literal["samples", "uniform"] = "samples"
    uplink: Uplink = "fp32"
    """In what filters and matrices travel to the server; see ``pruning.uplink`` for what that costs in accuracy."""
    output_dir: Path = Path("runs")
    """Each run makes a folder of its own below this one."""
    checkpoint_every: int = Field(default=5, ge=1)
    """Rounds between two checkpoints; the last round always makes one."""
    checkpoints_kept: int = Field(default=2, ge=1)
    """How many of the latest checkpoints stay, besides that of the best round."""
    round_timeout_s: float = Field(default=3600, gt=0)
    """Seconds after which a round of separate processes closes with those who answered."""
    min_clients_per_round: int = Field(default=1, ge=1)
    """With fewer uploads than this at the timeout, the run ends with an error."""


class Settings(Section):
    """All of an experiment; one attribute per YAML section."""

    common_args: CommonArgs = CommonArgs()
    data_args: DataArgs
    model_args: ModelArgs
    train_args: TrainArgs = TrainArgs()
    validation_args: ValidationArgs = ValidationArgs()
    device_args: DeviceArgs = DeviceArgs()
    comm_args: CommArgs = CommArgs()
    tracking_args: TrackingArgs = TrackingArgs()
    client_specific_args: ClientSpecificArgs = ClientSpecificArgs()
    dapper_args: DapperArgs = DapperArgs()

    @model_validator(mode="before")
    @classmethod
    def _explain_protections(cls, values: Any) -> Any:
        sections = values.values() if isinstance(values, dict) else ()
        for section in sections:
            for key in FEDML_PROTECTIONS:
                if isinstance(section, dict) and key in section:
                    raise ValueError(why_refused(key))
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> Settings:
        kind, backend = self.common_args.training_type, self.comm_args.backend
        if (kind == "cross_silo") != (backend in ("DAPPER_GRPC", "GRPC", "MQTT_S3")):
            raise ValueError(
                f"training_type {kind} with backend {backend}: simulation takes sp or MPI, cross_silo DAPPER_GRPC, GRPC"
                " or MQTT_S3"
            )
        silos = self.client_specific_args.data_silo_config
        if silos is not None and len(silos) != self.train_args.client_num_in_total:
            raise ValueError(
                f"client_specific_args.data_silo_config names {len(silos)} files for"
                f" {self.train_args.client_num_in_total} clients; give one per client, in rank order"
            )
        if self.dapper_args.min_clients_per_round > self.train_args.client_num_per_round:
            raise ValueError("dapper_args.min_clients_per_round is more than train_args.client_num_per_round")
        defence = self.dapper_args.defence
        orders = defence.aggregation in ("trimmed_mean", "median")
        if orders and defence.min_holders > self.train_args.client_num_per_round:
            raise ValueError(
                f"dapper_args.defence.min_holders ({defence.min_holders}) is more than train_args.client_num_per_round"
                f" ({self.train_args.client_num_per_round}), so that no coordinate would ever change; lower the former"
            )
        return self

    def as_yaml(self) -> str:
        """The effective settings, every default spelt out; loading this text gives equal settings back."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


SectionT = TypeVar("SectionT", bound=Section)


def load_settings(files: Sequence[Path], overrides: Iterable[str] = ()) -> Settings:
    """Read, merge and check experiment files.

    ``files`` are merged left to right, so a later one may hold only what differs. ``overrides`` are ``key=value``
    texts, applied last; a key is dotted (``train_args.comm_round``) or, where it stands in one section only, bare
    (``comm_round``). Raises :class:`ConfigError` with one line that names file, key and remedy.
    """
    merged: dict[str, Any] = {}
    for file in files:
        merged = merge(merged, read_yaml(file))
    for override in overrides:
        parse_override(merged, override)
    settings = check(Settings, merged, where=", ".join(str(file) for file in files))
    return _with_found_files(settings, [file.parent for file in files])


def read_silo_levels(settings: Settings) -> list[int] | None:
    """Capability level of every client from ``client_specific_args.data_silo_config``; None where there is none.

    Raises :class:`ConfigError` for a missing or malformed file and for a level that ``dapper_args.levels`` lacks.
    """
    files = settings.client_specific_args.data_silo_config
    if files is None:
        return None
    levels = [check(SiloFile, read_yaml(file), where=str(file)).silo_args.capability_level for file in files]
    known = len(settings.dapper_args.levels.ratios)
    for file, level in zip(files, levels, strict=True):
        if level > known:
            raise ConfigError(f"{file}: capability_level {level}, but dapper_args.levels.ratios has {known} levels")
    return levels


def check(model: type[SectionT], values: Mapping[str, Any], where: str, prefix: str = "") -> SectionT:
    """``values`` as a ``model``, or a :class:`ConfigError` for the first mistake; ``prefix`` is its dotted place."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        text = "; ".join(_explain(model, mistake, prefix) for mistake in mistakes)
        raise ConfigError(f"{where}: {text}") from error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean `x`?`` when something close is known, else the list of what is known."""
    options = sorted(known)
    if not options:
        return "; none is known here"
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    return f"; did you mean `{close[0]}`?" if close else f"; known: {', '.join(options)}"


def read_yaml(file: Path) -> dict[str, Any]:
    """The sections of an experiment file, unchecked; raises :class:`ConfigError` where there is no such file."""
    if not file.is_file():
        raise ConfigError(f"no config file at {file.absolute()}; the shipped ones are in config/, e.g. quickstart.yaml")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: expected sections such as `train_args:`, found {type(content).__name__}")
    return content


def _with_found_files(settings: Settings, folders: Sequence[Path]) -> Settings:
    """Files named in the settings as absolute paths: relative to the working directory or to an experiment file."""

    def find(path: Path, key: str, kind: Literal["file", "folder"] = "file") -> Path:
        candidates = [path, *(folder / path for folder in folders)]
        for candidate in candidates:
            if candidate.is_file() if kind == "file" else candidate.is_dir():
                return candidate.resolve()
        places = ", ".join(str(candidate.parent.absolute()) for candidate in candidates)
        raise ConfigError(f"{key}: no {kind} {path}; looked in {places}")

    comm, silos = settings.comm_args, settings.client_specific_args
    if comm.grpc_ipconfig_path is not None:
        comm = comm.model_copy(update={"grpc_ipconfig_path": find(comm.grpc_ipconfig_path, "grpc_ipconfig_path")})
    if comm.backend == "DAPPER_GRPC" and comm.dapper_grpc is not None:
        grpc = comm.dapper_grpc
        places = {"certificates": find(grpc.certificates, "dapper_grpc.certificates", "folder")}
        if grpc.token_file is not None:
            places["token_file"] = find(grpc.token_file, "dapper_grpc.token_file")
        comm = comm.model_copy(update={"dapper_grpc": grpc.model_copy(update=places)})
    if silos.data_silo_config is not None:
        found = tuple(find(path, "client_specific_args.data_silo_config") for path in silos.data_silo_config)
        silos = silos.model_copy(update={"data_silo_config": found})
    return settings.model_copy(update={"comm_args": comm, "client_specific_args": silos})


def merge(base: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``above`` laid over it, section by section; lists are replaced whole."""
    merged = dict(base)
    for key, value in above.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def parse_override(values: dict[str, Any], override: str) -> None:
    """Put ``override``, a ``key=value`` text as :func:`load_settings` has them, into ``values``."""
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"--set {override}: expected key=value, e.g. --set train_args.comm_round=20")
    path = dotted.split(".") if "." in dotted else _place_of(dotted)
    place = values
    for key in path[:-1]:
        place = place.setdefault(key, {})
        if not isinstance(place, dict):
            raise ConfigError(f"--set {override}: `{key}` is a value, not a section")
    try:
        place[path[-1]] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override}: the value is not valid YAML") from error


def _place_of(key: str) -> list[str]:
    places = [path for path in _leaves(Settings) if path[-1] == key]
    if len(places) == 1:
        return places[0]
    if not places:
        raise ConfigError(f"--set {key}: unknown key{did_you_mean(key, (path[-1] for path in _leaves(Settings)))}")
    options = " or ".join(".".join(path) for path in places)
    raise ConfigError(f"--set {key}: stands in several sections; write {options}")


def _leaves(model: type[BaseModel]) -> list[list[str]]:
    paths = []
    for name, field in model.model_fields.items():
        if _is_section(field.annotation):
            paths += [[name, *rest] for rest in _leaves(field.annotation)]
        else:
            paths.append([name])
    return paths


def _explain(model: type[Section], mistake: ErrorDetails, prefix: str) -> str:
    *parents, last = [str(step) for step in mistake["loc"]] or [""]
    place = ".".join(step for step in (prefix, *parents) if step)
    inside = f" in {place}" if place else ""
    match mistake["type"]:
        case "extra_forbidden":
            return f"unknown key `{last}`{inside}{did_you_mean(last, _keys_at(model, parents))}"
        case "missing":
            return f"missing key `{last}`{inside}"
        case "value_error":
            return f"{'.'.join(step for step in (place, last) if step)}: {mistake['ctx']['error']}"
    return f"`{last}`{inside} is {mistake['input']!r}: {mistake['msg'][0].lower()}{mistake['msg'][1:]}"


def _keys_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for step in path:
        annotation = model.model_fields[step].annotation
        sections = [kind for kind in (annotation, *get_args(annotation)) if _is_section(kind)]
        if not sections:
            return []
        model = sections[0]
    return list(model.model_fields)


def _is_section(kind: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
