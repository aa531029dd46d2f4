"""Privacy: noise, and sums that the server sees no part of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedml_dapper.config.check_in_args import CheckInArgs
from fedml_dapper.config.compatibility.features import (
    BUFFER,
    CLOCK,
    CROSS_DEVICE,
    CROSS_SILO,
    DEVICES,
    EDGE,
    EDGES,
    FLEET,
    FLEET_OF_ONE,
    OWN_DATA,
    PERSONAL,
    PRIVACY,
    PRIVATE,
    SECURE,
    SECURE_SUMS,
    SILOS,
    chosen,
    given,
    value_of,
)
from fedml_dapper.config.compatibility.row import Feature, Row
from fedml_dapper.config.privacy_args import PrivacyArgs, SecureAggregationArgs

if TYPE_CHECKING:
    from fedml_dapper.config.settings import Settings

_WHERE = "dapper_args.privacy.where"
_BY_SERVER = chosen(_WHERE, "server")
_BY_CLIENTS = chosen(_WHERE, "client")
_TOGETHER = chosen(_WHERE, "distributed")
_COLLUDING = Feature(
    "dapper_args.privacy.colluding",
    lambda s: bool(value_of(s, "dapper_args.privacy.colluding")),
    lambda s: value_of(s, "dapper_args.privacy.colluding"),
)
_OF_NOISE = ("noise_multiplier", "target_epsilon", "delta", "noise_seed", "where", "clip")


def _noise(settings: Settings) -> PrivacyArgs | None:
    """What is said of noise, where some is added."""
    privacy = settings.dapper_args.privacy
    return privacy if privacy is not None and privacy.adds_noise else None


def _sums(settings: Settings) -> SecureAggregationArgs | None:
    privacy = settings.dapper_args.privacy
    return None if privacy is None else privacy.secure_aggregation


def _idle(settings: Settings) -> list[str]:
    """Settings of noise that were changed."""
    privacy = settings.dapper_args.privacy
    plain = PrivacyArgs.model_construct()
    return [key for key in _OF_NOISE if getattr(privacy, key) not in (None, getattr(plain, key))]


def _sizes(settings: Settings) -> dict[str, float]:
    """What says how much noise there is, by its key."""
    noise = _noise(settings)
    sizes = {} if noise is None else {key: getattr(noise, key) for key in ("noise_multiplier", "target_epsilon")}
    return {key: size for key, size in sizes.items() if size is not None}


def _over_selection(settings: Settings) -> float:
    return (settings.dapper_args.check_in or CheckInArgs()).over_selection


def _fewest_holders(settings: Settings) -> int:
    secure = _sums(settings)
    return 0 if secure is None else secure.fewest_holders


_NOISE = Feature("dapper_args.privacy with noise", lambda s: _noise(s) is not None)
_SUMS_WITHOUT_NOISE = Feature(
    "dapper_args.privacy.secure_aggregation without where: distributed",
    lambda s: s.dapper_args.privacy is not None and not s.dapper_args.privacy.adds_noise,
)
_SETTINGS_OF_NOISE = Feature("settings of noise", lambda s: bool(_idle(s)), lambda s: ", ".join(_idle(s)))
_NO_CLIP = Feature(
    "dapper_args.privacy.clip: null", lambda s: _NOISE.is_on(s) and value_of(s, "dapper_args.privacy.clip") is None
)
_SOME_NOISE = Feature(
    "dapper_args.privacy.noise_multiplier other than 0",
    lambda s: value_of(s, "dapper_args.privacy.noise_multiplier") != 0,
)
_ONE_SIZE = Feature(
    "dapper_args.privacy.noise_multiplier or target_epsilon above 0",
    lambda s: [size != 0 for size in _sizes(s).values()] == [True],
    lambda s: ", ".join(_sizes(s)),
)
_COLLUDING_IN_SUMS = Feature(
    _COLLUDING.label,
    lambda s: _COLLUDING.is_on(s) and SECURE_SUMS.is_on(s),
    _COLLUDING.now,
)
_OTHERS_LEFT = Feature(
    "more holders of each weight, dapper_args.privacy.secure_aggregation.min_holders",
    lambda s: value_of(s, "dapper_args.privacy.colluding") < _fewest_holders(s),
    _fewest_holders,
)
_MORE_THAN_HALF = Feature(
    "more than half of train_args.client_num_per_round, and no more than all",
    lambda s: (
        s.train_args.client_num_per_round
        < 2 * value_of(s, "dapper_args.privacy.secure_aggregation.threshold")
        <= 2 * s.train_args.client_num_per_round
    ),
    lambda s: f"{max(2, s.train_args.client_num_per_round // 2 + 1)} to {max(2, s.train_args.client_num_per_round)}",
)
_HOLDERS = Feature("dapper_args.privacy.secure_aggregation.min_holders", SECURE_SUMS.is_on, _fewest_holders)
_SUMS_OF_SILOS = Feature(f"{SECURE_SUMS.label} across silos", lambda s: SECURE_SUMS.is_on(s) and CROSS_SILO.is_on(s))
_BY_SERVER_OF_DEVICES = Feature(
    f"{_BY_SERVER.label} with {CROSS_DEVICE.label}",
    lambda s: _NOISE.is_on(s) and _BY_SERVER.is_on(s) and CROSS_DEVICE.is_on(s),
)
_OVER_SELECTION = Feature(
    "dapper_args.check_in.over_selection above 1",
    lambda s: _over_selection(s) > 1,
    lambda s: f"it is {_over_selection(s):g}",
)
_FEWEST_ABOVE_ONE = Feature(
    "dapper_args.min_clients_per_round above 1",
    lambda s: s.dapper_args.min_clients_per_round > 1,
    lambda s: f"it is {s.dapper_args.min_clients_per_round}",
)
_DECIDES = "what a client sends, or when, decides which others count and how"
_OWN_SAMPLES = "the server would be told how models do on clients' own samples"
_SILOS = {**SILOS, **SECURE}

# fmt: off
NOISE = (
    Row(_TOGETHER, "needs", SECURE_SUMS,
        "otherwise the server would see every upload with a share of the noise alone",
        "give secure_aggregation, e.g. {threshold: 6}, or set where to server or client",
        {**PRIVATE, _WHERE: "distributed"}),
    Row(_SUMS_WITHOUT_NOISE, "excludes", _SETTINGS_OF_NOISE,
        f"it adds no noise, so that {', '.join(_OF_NOISE)} are without effect",
        "leave them out; or set where to distributed, and clients add noise together",
        {**SECURE, "dapper_args.privacy.delta": 1e-5}),
    Row(_NOISE, "needs",
        Feature("dapper_args.privacy.noise_multiplier or target_epsilon", lambda s: bool(_sizes(s))),
        "it says how much noise", "give noise_multiplier, e.g. 1.1, or target_epsilon, e.g. 8",
        {"dapper_args.aggregation_weights": "uniform", "dapper_args.privacy.delta": 1e-5}),
    Row(given("dapper_args.privacy.noise_multiplier"), "excludes", given("dapper_args.privacy.target_epsilon"),
        "either says how much noise", "leave one out",
        {**PRIVATE, "dapper_args.privacy.target_epsilon": 8}),
    Row(_ONE_SIZE, "needs", given("dapper_args.privacy.delta"),
        "an epsilon holds but for a probability of that", "give e.g. 1e-5",
        {**PRIVATE, "dapper_args.privacy.delta": None}),
    Row(given("dapper_args.privacy.delta"), "needs",
        Feature(
            "to be less than one over train_args.client_num_in_total",
            lambda s: value_of(s, "dapper_args.privacy.delta") * s.train_args.client_num_in_total < 1,
            lambda s: f"1/{s.train_args.client_num_in_total}",
        ),
        "less than that has to be left to chance, or one client could be given away whole", "give e.g. 1e-5",
        {**PRIVATE, "dapper_args.privacy.delta": 0.2}),
    Row(_NO_CLIP, "excludes", _SOME_NOISE,
        "noise is measured by the clip", "give one, e.g. 1.0",
        {**PRIVATE, "dapper_args.privacy.clip": None}),
    Row(_COLLUDING, "needs", _TOGETHER,
        "it is about noise that clients add together", "leave it out",
        {**PRIVATE, "dapper_args.privacy.colluding": 1}),
    Row(_COLLUDING_IN_SUMS, "needs", _OTHERS_LEFT,
        "otherwise none is left whose noise counts", "lower it",
        {**PRIVATE, **SECURE, _WHERE: "distributed", "dapper_args.privacy.colluding": 6}),
    Row(PRIVACY, "needs", chosen("dapper_args.aggregation_weights", "uniform"),
        "clients that count by their samples move the sum by as much as they like", "set it to uniform",
        {**PRIVATE, "dapper_args.aggregation_weights": "samples"}),
    Row(PRIVACY, "needs", chosen("dapper_args.defence.aggregation", "mean"),
        "privacy is about sums, and the others take none", "set it to mean",
        {**PRIVATE, "dapper_args.defence.aggregation": "median"}),
    Row(PRIVACY, "excludes", given("dapper_args.defence.strikes"), _DECIDES, "leave that out",
        {**PRIVATE, "dapper_args.defence.strikes": 3}),
    Row(PRIVACY, "excludes", BUFFER, _DECIDES, "leave that out",
        {**PRIVATE, **SILOS, "dapper_args.buffer_size": 3}),
    Row(PRIVACY, "excludes", CLOCK, _DECIDES, "leave that out",
        {**PRIVATE, **FLEET_OF_ONE, "dapper_args.fleet.clock.jitter": 0.1}),
    Row(PRIVACY, "excludes",
        Feature(
            "dapper_args.fleet without devices",
            lambda s: FLEET.is_on(s) and value_of(s, "dapper_args.fleet.devices") is None,
        ),
        _DECIDES, "leave that out",
        {**PRIVATE, **SILOS, "data_args.partition": "own", "dapper_args.fleet.round_s": 600}),
    Row(_BY_SERVER_OF_DEVICES, "excludes", _OVER_SELECTION,
        "who does not answer decides whether another counts, for which epsilon has no room",
        "set dapper_args.check_in.over_selection to 1, or where to client",
        {**DEVICES, **PRIVATE}),
    Row(_BY_SERVER_OF_DEVICES, "excludes", _FEWEST_ABOVE_ONE,
        "one answer less would let a round end without noise, which gives it away",
        "leave it at 1, or set where to client",
        {**DEVICES, **PRIVATE, "dapper_args.check_in.over_selection": 1, "dapper_args.min_clients_per_round": 2}),
    Row(_BY_CLIENTS, "excludes", EDGES,
        "how often an edge asks a silo in a round is not told", "leave edges out, or set where to server",
        {**PRIVATE, **SILOS, _WHERE: "client", "comm_args.dapper_grpc.edges": [EDGE]}),
    Row(_BY_CLIENTS, "excludes", PERSONAL, _OWN_SAMPLES, "leave that out, or set where to server",
        {**PRIVATE, _WHERE: "client", "dapper_args.evaluation.personal": True}),
    Row(_BY_CLIENTS, "excludes", OWN_DATA, _OWN_SAMPLES, "leave that out, or set where to server",
        {**PRIVATE, **SILOS, _WHERE: "client", "data_args.partition": "own"}),
)

SUMS = (
    Row(given("dapper_args.privacy.secure_aggregation.threshold"), "needs", _MORE_THAN_HALF,
        "two halves of a round could reach less apart, and nobody more", "choose a number in these bounds",
        {**SECURE, "dapper_args.privacy.secure_aggregation.threshold": 4}),
    Row(_HOLDERS, "needs",
        Feature(
            "train_args.client_num_per_round of as many or more",
            lambda s: _fewest_holders(s) <= s.train_args.client_num_per_round,
            lambda s: f"it is {s.train_args.client_num_per_round}",
        ),
        "otherwise no weight would ever change", "lower it",
        {**SECURE, "dapper_args.privacy.secure_aggregation.min_holders": 11}),
    Row(SECURE_SUMS, "excludes", given("dapper_args.defence.max_change"),
        "that looks at single uploads", "leave one of them out",
        {**SECURE, "dapper_args.defence.max_change": 2}),
    Row(SECURE_SUMS, "needs", chosen("dapper_args.uplink", "fp32"),
        "the others have codes that cannot be added up", "leave uplink out",
        {**SECURE, "dapper_args.uplink": "int8"}),
    Row(SECURE_SUMS, "needs", chosen("dapper_args.downlink", "fp32"),
        "the server cannot put back what rounding took off uploads that it does not see", "leave downlink out",
        {**SECURE, "dapper_args.downlink": "int8"}),
    Row(SECURE_SUMS, "excludes", EDGES,
        "edges see single uploads", "leave one of them out",
        {**_SILOS, "comm_args.dapper_grpc.edges": [EDGE]}),
    Row(_SUMS_OF_SILOS, "excludes", PERSONAL,
        "that tells the server how models do on own samples", "leave one of them out",
        {**_SILOS, "dapper_args.evaluation.personal": True}),
    Row(_SUMS_OF_SILOS, "excludes", OWN_DATA,
        "that tells the server how models do on own samples", "leave one of them out",
        {**_SILOS, "data_args.partition": "own"}),
    Row(_SUMS_OF_SILOS, "excludes", chosen("comm_args.backend", "GRPC", "MQTT_S3"),
        "silos sign with their certificates, which only DAPPER_GRPC has", "set backend to DAPPER_GRPC",
        {
            **SECURE, "common_args.training_type": "cross_silo", "comm_args.backend": "GRPC",
            "comm_args.allow_pickle": True, "comm_args.grpc_ipconfig_path": "addresses.csv",
        }),
)
# fmt: on
