"""Records of the ledger: one of the run, and one of each round.

Fields named ``accuracy`` hold the task's headline figure, which ``RunRecord.metric`` names: in classification Top-1
accuracy in percent. Losses are the task's, in nats where it is cross-entropy. Sizes are bytes, times seconds. Every
wall-clock figure sits in a field named ``seconds``; everything else repeats exactly when a run is repeated with the
same seed on the same machine.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, JsonValue

from fedml_dapper.config import with_present_names
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
    """A client of the run: its domain, its capability level and how many samples it trains on."""

    client: int
    domain: str
    level: int
    ratio: float
    num_samples: int


class Stretch(Record):
    """Earlier part of a run that was resumed with a larger ``comm_round`` or by another version of this package."""

    rounds: int
    """Number of rounds that were finished at the end of this part."""
    comm_round: int
    """Number of rounds that the run was to have then, in all."""
    version: str
    """Version of this package that ran this part."""


class RunRecord(Record):
    """The run's record, first line of a ledger."""

    record: Literal["run"] = "run"
    version: str
    suite: str
    """Label of the data; it says "(subset)" where they are not the complete set."""
    domains: tuple[str, ...]
    """Domains that clients train on."""
    classes: tuple[str, ...] = ()
    """Names of the classes, by label; empty where targets are no classes, and in ledgers of earlier versions."""
    unseen_domain: str | None = None
    """A domain without clients, scored all the same."""
    method: str
    metric: Metric = TOP_1
    """The task's headline figure, by which models are compared."""
    settings: Annotated[dict[str, Any], AfterValidator(with_present_names)]
    """Settings of the experiment, section by section."""
    params: dict[str, Any] = {}
    """The method's own settings, defaults included; empty in ledgers of earlier versions, whose ``settings`` have those
    that were given."""
    workers: int = 1
    """How many clients trained at a time, each in a process of its own, when the run was started."""
    threads: int | None = None
    """Torch's threads in each process; None where each of several processes chose for itself, and in ledgers of earlier
    versions."""
    sources: dict[str, str] = {}
    """Object and digest of its source, by the setting that names it, of code and data from outside of the package."""
    footprints: tuple[LevelFootprint, ...]
    """Cost of each capability level's model, strongest first."""
    cost_note: str
    """How the method's real cost differs from the footprints; empty where it does not."""
    clients: tuple[ClientSummary, ...]
    notes: tuple[str, ...]
    """What was found in the data, and what the partition had to do, e.g. let two clients share samples."""
    earlier: tuple[Stretch, ...] = ()
    """Earlier parts of a resumed run; all else in this record is of the latest part."""

    @property
    def comm_round(self) -> int:
        """Number of rounds that the run is to have."""
        rounds: int = self.settings["train_args"]["comm_round"]
        return rounds

    def after(self, before: RunRecord, rounds: int) -> RunRecord:
        """Return the record of a run that is resumed after ``rounds`` rounds, whose record was ``before``.

        It is ``before`` itself where neither ``comm_round`` nor the version has changed.
        """
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
    """Mean training loss per sample over the last local epoch, regulariser included. This field and those up to
    ``accuracy_after`` are as the client reports them; impossible values are refused."""
    steps: int
    """Optimizer steps."""
    seconds: float
    """Seconds of local training."""
    accuracy_before: float | None = None
    """Headline of the client's own model on its own test samples before the round's training; None where it is not
    measured."""
    accuracy_after: float | None = None
    """The same after the round's training."""
    change: float | None = None
    """||w - W|| / ||W|| of the uploaded weights w, W being what the client was sent; None where it is not measured."""
    extras_norm: float | None = None
    """l2 norm of what the upload holds besides weights; None where it is not measured."""
    begun: int | None = None
    """Round from whose model the client trained, where that is an earlier one (``dapper_args.buffer_size``,
    ``fleet.clock.late``)."""
    agreement: float | None = None
    """Mean cosine of the client's change with those of the others (:class:`fedml_dapper.pruning.Verdict`, as are the
    next two fields); None where uploads are not screened."""
    length: float | None = None
    """Norm of the client's change, relative to that of most others."""
    counted: float | None = None
    """Share of the client's change that went into the global model: 0 where it was left out, less than 1 where it was
    shortened."""


class RoundSeconds(Record):
    """Wall-clock time of a round, in seconds."""

    total: float
    evaluation: float


class EdgeRecord(Record):
    """An edge's part in a round."""

    clients: tuple[int, ...]
    """Clients whose uploads the edge summed."""
    bytes_down: int
    """Bytes of the order that the edge was sent."""
    bytes_up: int
    """Bytes of the edge's sum."""


class Scores(Record):
    """Figures of the global model on every domain's test set."""

    global_accuracy: float
    """Unweighted mean over the domains that clients train on. Where silos test on their own samples, the mean over
    silos, weighted by their numbers of test samples."""
    domain_accuracy: dict[str, float]
    domain_loss: dict[str, float]
    """Mean loss per sample, by domain."""
    domain_figures: dict[str, dict[str, float]] = {}
    """Further figures of the task, by domain and name."""
    best_global_accuracy: float
    """Best ``global_accuracy`` so far: the paper's statistic."""
    best_domain_accuracy: dict[str, float]
    """Best per domain so far, each in its own round: the paper's domain columns."""
    unseen_accuracy: float | None = None
    """Headline on the domain that was left out of training; None without such a domain."""


class PersonalScores(Record):
    """Figures of each client's own model on its own samples, over all clients, also those that did not train."""

    overall: float
    """Headline over the union of the clients' samples: ALL in the papers' tables."""
    average: float
    """Unweighted mean over the clients: AVG in the papers' tables."""
    worst: float
    """Headline of the worst client."""
    deviation: float
    """Standard deviation over the clients (of the population)."""
    accuracy: tuple[float, ...]
    """Headline of each client, by client id."""


class LevelFigures(Record):
    """Headline of one capability level's model on every domain's test set."""

    level: int
    accuracy: float | None
    """Unweighted mean over the domains; None where the method has no model for this level."""
    domain_accuracy: dict[str, float]


class DeviceFigures(Record):
    """Headlines of the models that devices get: of all levels, and of each client's level on the client's domain."""

    levels: tuple[LevelFigures, ...]
    """Figures by level, strongest first."""
    clients: tuple[float | None, ...]
    """Headline by client id; None where the method has no model for the client's level."""
    accuracy: float | None
    """Device accuracy: mean over the clients; None where there is no model for one of them."""
    worst: float | None
    """Headline of the worst client; None where there is no model for one of them."""


class DeviceScores(Record):
    """Figures of the models that devices get after a round."""

    sent: DeviceFigures
    """Figures of the models as the server sends them."""
    own_statistics: DeviceFigures | None
    """Figures with BatchNorm's statistics measured on a device's own training images (for a level on a domain: those of
    the domain's first client). None where the model has no BatchNorm, or where clients' images are elsewhere."""


class ClientOnClock(Record):
    """A chosen client's round on the virtual clock, also where its upload did not count."""

    client: int
    download_s: float
    training_s: float
    upload_s: float
    joules: float | None
    """Energy of the client's training, without radio; None where the device's profile has no watts."""
    outcome: Literal["in time", "late", "surplus", "under way", "gone", "refused"]
    """Outcome of the client's upload: ``in time``, it counted; ``late``, it came after the deadline; ``surplus``, as
    many others as were wanted had come before; ``under way``, it will count in a later round; ``gone``, the device went
    off; ``refused``, see ``RoundRecord.refused``."""


class UnderWay(Record):
    """A client that is at work when a round closes, where late uploads are kept."""

    client: int
    begun: int
    """Round in which the client was chosen."""
    arrives_s: float
    """Virtual time at which the client's upload arrives, since the run's first round began."""


class RoundOnClock(Record):
    """A round on the virtual clock of a simulated fleet (``dapper_args.fleet.clock``)."""

    round_s: float
    """Virtual length of the round."""
    elapsed_s: float
    """Virtual time at the round's end, since the run's first round began."""
    joules: float | None
    """Energy of all training in the run so far, also of uploads that did not count; None where a device's profile has
    no watts."""
    offline: tuple[int, ...] = ()
    """Clients that could not be chosen, since their devices were off when the round began."""
    clients: tuple[ClientOnClock, ...]
    arrived: tuple[UnderWay, ...] = ()
    """Clients of earlier rounds whose uploads counted in this one."""
    under_way: tuple[UnderWay, ...] = ()
    """Clients whose uploads will count in later rounds."""


class PrivacySpent(Record):
    """Differential privacy that was spent up to a round (``dapper_args.privacy``)."""

    epsilon: float | None
    """Epsilon of the client that was asked most often; None where there is no noise, and so no guarantee."""
    delta: float | None
    rounds: dict[int, int] = {}
    """How often each client was asked, by client id. A client that may have been asked again in a round, with new
    noise, counts each time."""


class RoundRecord(Record):
    """Record of one round, a line of the ledger."""

    record: Literal["round"] = "round"
    round: int
    """Number of the round, from 1."""
    scores: Scores | None
    """Figures of the global model on test samples; None in rounds that ``frequency_of_the_test`` skips."""
    validation_scores: Scores | None = None
    """Figures of the global model on validation samples, by which a round is chosen; None where the partition keeps
    none."""
    clients: tuple[ClientRecord, ...]
    """Clients whose upload was taken. It went into the new global model, unless ``rolled_back`` or the client's
    ``counted`` says otherwise."""
    personal: PersonalScores | None = None
    """Figures of clients' own models on their test samples; None where they are not measured."""
    validation: PersonalScores | None = None
    """Figures of clients' own models on their validation samples; None where the partition keeps none."""
    devices: DeviceScores | None = None
    """Figures of the models that devices get; None where they are not measured, or where the method has no global
    model."""
    absent: tuple[int, ...] = ()
    """Clients that were chosen and are not in quarantine, but of which no valid upload came in time. Some may be
    ``at_work``; on a virtual clock, ``clock`` says why."""
    refused: dict[int, str] = {}
    """Why uploads of absent clients were refused, by client id."""
    quarantined: tuple[int, ...] = ()
    """Clients that were chosen, but left out for earlier uploads that were refused."""
    edges: dict[int, EdgeRecord] = {}
    """Part of each edge in the round, by rank; empty without edges. Bytes of an edge's clients are those between client
    and edge."""
    not_finite: tuple[int, ...] = ()
    """Clients that sent NaN or infinity, in a simulation alone: there such an upload is a result and counts."""
    model_is_finite: bool = True
    """Whether the new global model is free of NaN and infinity."""
    rolled_back: str | None = None
    """Why the global model is still that of the round before: this round's uploads would have ruined it, or too few
    clients were left to open their sum."""
    at_work: dict[int, int] = {}
    """Round that each silo at work began in, whose upload may count in a later one (``dapper_args.buffer_size``)."""
    clock: RoundOnClock | None = None
    """The round on the fleet's virtual clock; None without one."""
    privacy: PrivacySpent | None = None
    """Differential privacy spent so far; None without ``dapper_args.privacy``."""
    opened_share: float | None = None
    """Share of the model's weights whose sum over ``clients`` was opened, where silos sum under masks
    (``dapper_args.privacy.secure_aggregation``); None where no sum was opened, and in other runs."""
    notes: dict[str, JsonValue] = {}
    """Figures that the method itself reports of the round, by name."""
    seconds: RoundSeconds

    @property
    def is_empty(self) -> bool:
        """Whether the round closed without any upload."""
        return not self.clients

    @property
    def left_out(self) -> tuple[int, ...]:
        """Clients whose upload was screened out: they are among ``clients``, and nothing of their upload counted."""
        return tuple(client.client for client in self.clients if client.counted == 0)
