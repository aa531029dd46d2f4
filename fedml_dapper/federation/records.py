"""The ledger's records: what a run is, and what happened in each of its rounds.

Fields named ``accuracy`` hold the figure that the task is judged by, which ``RunRecord.metric`` names: in
classification Top-1 accuracy in percent. Losses are the task's, in nats where it is cross-entropy; sizes are bytes,
times seconds. Every wall-clock figure sits in a field named
``seconds``; everything else repeats exactly when a run is repeated with the same seed on the same machine.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from fedml_dapper.metric import TOP_1, Metric


class Record(BaseModel):
    """Base of all records: frozen and closed, so that an old or foreign ledger is noticed."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")  # a diverged loss is NaN


class LevelFootprint(Record):
    """Cost of the model that a capability level trains (see :class:`fedml_dapper.pruning.Footprint`)."""

    level: int
    ratio: float
    params: int
    macs: int
    bytes_up: int
    bytes_down: int


class ClientSummary(Record):
    """Who takes part."""

    client: int
    domain: str
    level: int
    ratio: float
    num_samples: int


class Stretch(Record):
    """A part of a run, up to where it went on with more rounds to come or with another version of this package."""

    rounds: int
    """After how many."""
    comm_round: int
    """How many were to come, all in all."""
    version: str


class RunRecord(Record):
    """First line of a ledger."""

    record: Literal["run"] = "run"
    version: str
    suite: str
    """The data's label; says "(subset)" where the data is not the complete set."""
    domains: tuple[str, ...]
    """Those that clients train on."""
    classes: tuple[str, ...] = ()
    """By label; empty where targets are no classes, and in ledgers of earlier versions."""
    unseen_domain: str | None = None
    """A domain without clients, scored all the same."""
    method: str
    metric: Metric = TOP_1
    """By what models are judged."""
    settings: dict[str, Any]
    params: dict[str, Any] = {}
    """The method's own settings, defaults included; empty in ledgers of earlier versions, which say what was given."""
    workers: int = 1
    """How many clients trained at a time, each in a process of its own; where a run was resumed, when it began."""
    threads: int | None = None
    """Of each process; None where torch chose, in several processes, and in ledgers of earlier versions."""
    sources: dict[str, str] = {}
    """For settings that name something outside of the package: which object, and a digest of its source."""
    footprints: tuple[LevelFootprint, ...]
    cost_note: str
    """What the method costs beyond, or does not save of, the footprints; empty where there is nothing to say."""
    clients: tuple[ClientSummary, ...]
    notes: tuple[str, ...]
    """What reading the data came upon, and what the partition had to do, e.g. let two clients share samples."""
    earlier: tuple[Stretch, ...] = ()
    """What was otherwise before; all else in this record is of the latest stretch."""

    @property
    def comm_round(self) -> int:
        """How many rounds there are to be."""
        rounds: int = self.settings["train_args"]["comm_round"]
        return rounds

    def after(self, before: RunRecord, rounds: int) -> RunRecord:
        """This record of a run that so far was ``before``'s, for ``rounds`` rounds; ``before`` itself if nothing
        changed that it says of the run."""
        if (before.comm_round, before.version) == (self.comm_round, self.version):
            return before
        stretch = Stretch(rounds=rounds, comm_round=before.comm_round, version=before.version)
        return self.model_copy(update={"earlier": (*before.earlier, stretch)})


class ClientRecord(Record):
    """One client's part in a round."""

    client: int
    domain: str
    level: int
    ratio: float
    num_samples: int
    params: int
    macs: int
    bytes_up: int
    bytes_down: int
    loss: float
    """Mean training loss per sample over the last local epoch, regulariser included. This and what follows up to
    ``accuracy_after`` is what the client says; only what could not be is refused."""
    steps: int
    seconds: float
    accuracy_before: float | None = None
    """The client's own model on its own test samples before the round's training; None where it is not measured."""
    accuracy_after: float | None = None
    change: float | None = None
    """||w - W|| / ||W|| of the upload, W being what the client was sent; None where nobody asked."""
    extras_norm: float | None = None
    """l2 norm of what the upload holds besides weights."""
    begun: int | None = None
    """The round from whose model it trained, where that is an earlier one (``dapper_args.buffer_size``,
    ``fleet.clock.late``)."""
    agreement: float | None = None
    """Mean cosine of its change with those of the others (:class:`fedml_dapper.pruning.Verdict`, as what follows); None
    where uploads are not screened."""
    length: float | None = None
    """How many times as far as most others it moved."""
    counted: float | None = None
    """The share of its change that went into the global model: 0 where it was left out, less than 1 where it was
    shortened."""


class RoundSeconds(Record):
    """Where a round's time went."""

    total: float
    evaluation: float


class EdgeRecord(Record):
    """What an edge did in a round."""

    clients: tuple[int, ...]
    """Those whose uploads it summed."""
    bytes_down: int
    """Of the order that it was sent."""
    bytes_up: int
    """Of the sum."""


class Scores(Record):
    """The global model on every domain's test set."""

    global_accuracy: float
    """Unweighted mean over the domains that clients train on; over silos that test on their own samples, the mean
    weighted by their numbers."""
    domain_accuracy: dict[str, float]
    domain_loss: dict[str, float]
    domain_figures: dict[str, dict[str, float]] = {}
    """By domain and name, what the task measures besides."""
    best_global_accuracy: float
    """Best ``global_accuracy`` so far: the paper's statistic."""
    best_domain_accuracy: dict[str, float]
    """Best per domain so far, each in its own round: the paper's domain columns."""
    unseen_accuracy: float | None = None
    """On the domain that was left out."""


class PersonalScores(Record):
    """Each client's own model on its own samples, over all clients, also those that did not train in the round."""

    overall: float
    """ALL: over the union of the clients' samples."""
    average: float
    """AVG: unweighted mean over the clients."""
    worst: float
    deviation: float
    """Standard deviation over the clients (of the population)."""
    accuracy: tuple[float, ...]
    """By client id."""


class LevelFigures(Record):
    """The model of one capability level on every domain's test set."""

    level: int
    accuracy: float | None
    """Unweighted mean over the domains; None where the method has no model for this level."""
    domain_accuracy: dict[str, float]


class DeviceFigures(Record):
    """What devices get: the models of all levels, and each client's level on the client's own domain."""

    levels: tuple[LevelFigures, ...]
    """Strongest first."""
    clients: tuple[float | None, ...]
    """By client id; None where the method has no model for the client's level."""
    accuracy: float | None
    """Device accuracy: mean over the clients; None where there is no model for one of them."""
    worst: float | None


class DeviceScores(Record):
    """What devices get after a round."""

    sent: DeviceFigures
    """With everything as the server has it."""
    own_statistics: DeviceFigures | None
    """With BatchNorm's statistics measured on a device's own training images (for a level on a domain: those of the
    domain's first client); None where the model has none, or where clients' images are elsewhere."""


class ClientOnClock(Record):
    """A chosen client's round on the virtual clock, also where its upload did not count."""

    client: int
    download_s: float
    training_s: float
    upload_s: float
    joules: float | None
    """That training took, without radio; None where the device's profile has no watts."""
    outcome: Literal["in time", "late", "surplus", "under way", "gone", "refused"]
    """Whether its upload counted; or came after the deadline; or after as many others as were wanted; or will count in
    a later round; or never came, since its device went off; or was refused (``RoundRecord.refused``)."""


class UnderWay(Record):
    """A client that is at work when a round closes, where late uploads are kept."""

    client: int
    begun: int
    """The round in which it was chosen."""
    arrives_s: float
    """When its upload is there, since the run's first round began."""


class RoundOnClock(Record):
    """A round on the virtual clock of a simulated fleet (``dapper_args.fleet.clock``)."""

    round_s: float
    elapsed_s: float
    """Since the run's first round began."""
    joules: float | None
    """That all who began took for training so far in the run; None where a device's profile has no watts."""
    offline: tuple[int, ...] = ()
    """Who could not be chosen, since their devices were off where the round began."""
    clients: tuple[ClientOnClock, ...]
    arrived: tuple[UnderWay, ...] = ()
    """Clients of earlier rounds whose uploads counted in this one."""
    under_way: tuple[UnderWay, ...] = ()
    """Those whose uploads will count in later rounds."""


class PrivacySpent(Record):
    """What ``dapper_args.privacy`` still promises after a round."""

    epsilon: float | None
    """Of the client that was asked most often; None where there is no noise, and so no promise."""
    delta: float | None
    rounds: dict[int, int] = {}
    """In how many rounds each client was asked, by client id; with those that may have been asked again."""


class RoundRecord(Record):
    """One line per round."""

    record: Literal["round"] = "round"
    round: int
    scores: Scores | None
    """None in rounds that ``frequency_of_the_test`` skips."""
    validation_scores: Scores | None = None
    """The same on validation samples, by which a round is chosen; None where the partition keeps none."""
    clients: tuple[ClientRecord, ...]
    """Those whose upload went into the new global model, or would have but for ``rolled_back`` or what ``counted``
    says."""
    personal: PersonalScores | None = None
    """On the clients' test samples; None where it is not measured."""
    validation: PersonalScores | None = None
    """On their validation samples; None where the partition keeps none."""
    devices: DeviceScores | None = None
    """What each device gets; None where it is not measured, or where the method has no global model."""
    absent: tuple[int, ...] = ()
    """Chosen for the round and not in quarantine, but no valid upload came in time; on a virtual clock, of which
    ``clock`` says why. Some may be ``at_work``."""
    refused: dict[int, str] = {}
    """Those of the absent whose upload was refused, and why."""
    quarantined: tuple[int, ...] = ()
    """Chosen for the round, but left out for earlier uploads that were refused."""
    edges: dict[int, EdgeRecord] = {}
    """By rank, where there are edges between server and silos; clients' bytes are then those of their edge's line."""
    not_finite: tuple[int, ...] = ()
    """Clients that sent NaN or infinity; in a simulation, where such an upload is a result and counts."""
    model_is_finite: bool = True
    """Whether all of the new global model is a number."""
    rolled_back: str | None = None
    """Why the global model is still that of the round before, where this round's uploads would have ruined it, or too
    few clients were left to open their sum."""
    at_work: dict[int, int] = {}
    """Silos whose uploads may count in later rounds, and the round that each began in (``dapper_args.buffer_size``)."""
    clock: RoundOnClock | None = None
    """When things happened on the fleet's devices; None without a virtual clock."""
    privacy: PrivacySpent | None = None
    """What one client's data may have given away so far; None without ``dapper_args.privacy``."""
    opened_share: float | None = None
    """The share of the model's weights of which the sum over ``clients`` was opened, where silos sum under masks
    (``dapper_args.privacy.secure_aggregation``); None where nothing was, and elsewhere."""
    notes: dict[str, JsonValue] = {}
    """What the method itself has to say of the round, by name."""
    seconds: RoundSeconds

    @property
    def left_out(self) -> tuple[int, ...]:
        """Clients whose upload was screened out: it is among ``clients``, and nothing of it counted."""
        return tuple(client.client for client in self.clients if client.counted == 0)
