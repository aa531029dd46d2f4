"""Methods: what each is able to, and what it needs of network, task and training."""

from __future__ import annotations

from fedml_dapper.config.compatibility.features import (
    BUFFER,
    EDGE,
    EDGES,
    FLEET_OF_ONE,
    LATE_KEPT,
    PRIVACY,
    PRIVATE,
    ROBUST_MEAN,
    SILOS,
    SIMULATION,
    UNSEEN,
    enumerated,
    given,
    other_than,
)
from fedml_dapper.config.compatibility.row import Ability, Capabilities, Row

_METHOD = "dapper_args.method"
_OR_ANOTHER = "leave it out, or choose another method"
_OWN_ROUND = "what a method uses of an upload besides a mean of its weights is only true in the upload's own round"
_PIECES = given("train_args.micro_batch_size")
_PERSONAL_LAYERS = other_than("dapper_args.personal_layers", "none")
_IMPORTANCE = other_than("dapper_args.pruning.importance", "filters")
_BUDGETS = given("dapper_args.levels.budgets")
_STRICT = given("dapper_args.levels.strict")
_OPTIMIZER = other_than("train_args.client_optimizer", "sgd")


def _name(capabilities: Capabilities) -> str:
    return f"`{capabilities.method}`"


def _is_none(capabilities: Capabilities) -> str:
    return f"`{capabilities.method}` is none"


_TAKES_LATE = Ability("a method that takes late uploads", lambda c: c.takes_late_uploads, _is_none)
_TESTS_ON_TRAINING = Ability(
    "dapper_args.params that measure something on all clients' training data", lambda c: c.tests_on_training_data, _name
)
_WORKS_ON_REPRESENTATIONS = Ability(
    "a dapper_args.method that works on representations", lambda c: c.needs_representations, _name
)
_REPRESENTATIONS = Ability(
    "a network that has them under a linear predictor",
    lambda c: c.has_representations,
    lambda c: f"which {c.network} does not have",
)
_NEEDS_LABELS = Ability("a dapper_args.method that goes by classes", lambda c: c.needs_labels, _name)
_LABELS = Ability("one class a sample", lambda c: c.has_labels, lambda c: f"which task `{c.task}` does not have")
_NEEDS_ADAPTERS = Ability("a dapper_args.method that is about adapters", lambda c: c.needs_adapters, _name)
_ADAPTERS = Ability(
    "a network with adapters that can be cut", lambda c: c.has_adapters, lambda c: f"which {c.network} does not have"
)
_AT_HOME_FITS = Ability(
    "a method that does without what stays at the client",
    lambda c: c.allows_personal_layers,
    lambda c: f"`{c.method}` " + ("says itself what clients keep" if c.names_its_own else "needs all at its server"),
)
_SCOPE_FITS = Ability(
    "a method that slims so", lambda c: c.takes_scope, lambda c: f"`{c.method}` slims by {enumerated(c.scopes)}"
)
_SUMS_ALONE = Ability(
    "a method of which the server learns sums alone",
    lambda c: None if c.beyond_sums is None else not c.beyond_sums,
    lambda c: f"with these settings `{c.method}` learns {c.beyond_sums}",
)

# fmt: off
METHODS = (
    Row(ROBUST_MEAN, "needs",
        Ability("a method that recovers and averages only", lambda c: c.takes_robust_means,
                lambda c: f"`{c.method}` aggregates in its own way"),
        "it stands in for the mean", "set it to mean, or choose another method",
        {_METHOD: "fedfomo", "dapper_args.defence.aggregation": "median"}),
    Row(BUFFER, "needs", _TAKES_LATE, _OWN_ROUND, _OR_ANOTHER,
        {**SILOS, _METHOD: "scaffold", "dapper_args.buffer_size": 3}),
    Row(LATE_KEPT, "needs", _TAKES_LATE, _OWN_ROUND, "set it to dropped, or choose another method",
        {
            **FLEET_OF_ONE, _METHOD: "scaffold",
            "dapper_args.fleet.clock.late": "kept", "dapper_args.fleet.clock.deadline_s": 600,
        }),
    Row(EDGES, "needs",
        Ability("a method that learns no more of uploads than edges tell, the mean of their weights",
                lambda c: c.takes_edges, lambda c: f"with these settings `{c.method}`, or dapper_args.defence, does"),
        "an edge sums up what its silos send", "leave edges out, or choose others (docs/runners.md)",
        {**SILOS, _METHOD: "scaffold", "comm_args.dapper_grpc.edges": [EDGE]}),
    Row(_TESTS_ON_TRAINING, "needs", SIMULATION,
        "only that has all of them in one place", "choose others (docs/methods.md)",
        {**SILOS, _METHOD: "heterofl", "dapper_args.params": {"heterofl": {"bn_statistics": "dense"}}}),
    Row(_STRICT, "needs",
        Ability("a method that does not train the full model on every client", lambda c: c.fits_all_levels,
                lambda c: f"`{c.method}` trains the full model on every client, whatever its capability level"),
        "it holds methods to capability levels",
        "choose a method that slims, or leave `strict` out for a comparison that ignores limits",
        {_METHOD: "fedavg", "dapper_args.levels.strict": True}),
    Row(UNSEEN, "needs",
        Ability("a model for a client that never trained", lambda c: c.serves_newcomers,
                lambda c: f"method `{c.method}` has none"),
        "that domain is tested without training", _OR_ANOTHER,
        {_METHOD: "fedper", "dapper_args.evaluation.unseen_domain": "usps"}),
    Row(PRIVACY, "needs", _SUMS_ALONE,
        "noise, and masks, are for sums and hide no more", "choose another method (docs/privacy.md)",
        {**PRIVATE, _METHOD: "scaffold", "model_args.norm": "group"}),
    Row(PRIVACY, "excludes",
        Ability("BatchNorm's statistics in uploads", lambda c: c.sends_statistics, lambda c: f"{c.network} sends them"),
        "their changes leave nothing of the clip to weights, and noise makes them negative",
        "set model_args.norm to group or standardised where the network has it, or dapper_args.personal_layers to"
        " statistics",
        {**PRIVATE, _METHOD: "fedavg"}),
    Row(PRIVACY, "excludes",
        Ability("integers in uploads", lambda c: None if c.whole_numbers is None else bool(c.whole_numbers),
                lambda c: f"{c.network} has the integer tensor `{(c.whole_numbers or ('',))[0]}`"),
        "no noise is added to them", "make them buffers with persistent=False",
        {**PRIVATE, _METHOD: "fedavg", "model_args.model": "networks.py:Counting"}),
)

NEEDS = (
    Row(Ability("a dapper_args.method that is derived for sgd", lambda c: c.needs_sgd, _name), "excludes", _OPTIMIZER,
        "its derivation does not hold for others", "set it to sgd, or choose another method",
        {_METHOD: "scaffold", "train_args.client_optimizer": "adam"},
        lambda c: f"set it to sgd, or {c.remedy}"),
    Row(_PIECES, "excludes",
        Ability("a method that looks at a batch as a whole", lambda c: c.sees_batches, _name),
        "it would see pieces", "leave it out, and choose a smaller batch_size where memory is short",
        {_METHOD: "fedfa", "model_args.norm": "group", "train_args.micro_batch_size": 8}),
    Row(_PIECES, "excludes",
        Ability("BatchNorm", lambda c: c.has_batchnorm, lambda c: f"{c.network} has it"),
        "it would normalise by pieces of a batch",
        "leave it out, or set model_args.norm to group or standardised where the network has it",
        {_METHOD: "fedavg", "train_args.micro_batch_size": 8}),
    Row(_WORKS_ON_REPRESENTATIONS, "needs", _REPRESENTATIONS,
        "it looks at what the predictor is given", "choose another method, or as it says itself",
        {_METHOD: "moon", "model_args.model": "networks.py:Whole"},
        lambda c: c.remedy),
    Row(_NEEDS_LABELS, "needs", _LABELS,
        "other targets are no classes", "choose another method, or as it says itself",
        {_METHOD: "scalefl", "train_args.task": "segmentation"},
        lambda c: c.remedy),
    Row(_NEEDS_ADAPTERS, "needs", _ADAPTERS,
        "it averages adapters of unequal ranks", "set model_args.adapter, or choose another method",
        {_METHOD: "flexlora"}),
    Row(_PERSONAL_LAYERS, "needs", _AT_HOME_FITS,
        "what it is about never reaches the server", "set it to none, or choose another method",
        {_METHOD: "fedbn", "dapper_args.personal_layers": "norms"}),
    Row(other_than("dapper_args.pruning.scope", "auto"), "needs", _SCOPE_FITS,
        "methods that slim say where they can", "choose another scope, or another method",
        {_METHOD: "fedmp", "dapper_args.pruning.scope": "official_mask"}),
    Row(_BUDGETS, "excludes", Ability("a method that leaves blocks out", lambda c: c.cuts_depth, _name),
        "a rank and a share of the base say how wide a level's network is",
        "choose another method, or give dapper_args.levels.ratios",
        {_METHOD: "depthfl", "dapper_args.levels.budgets": [{"base": 0.0}, {"base": 0.3}]}),
    Row(_BUDGETS, "excludes", given("dapper_args.fleet.continuous"),
        "a continuous fleet finds ratios of its own", "leave one of them out",
        {
            **FLEET_OF_ONE, "dapper_args.levels.budgets": [{"base": 0.0}, {"base": 0.3}],
            "dapper_args.fleet.round_s": 600, "dapper_args.fleet.continuous": True,
        }),
    Row(_IMPORTANCE, "excludes",
        Ability("gains that stay with clients", lambda c: c.compares_personal_gains, _name),
        "channels are compared by gains, which dapper_args.personal_layers keeps there", "set importance to filters",
        {
            _METHOD: "dapperfl", "model_args.norm": "standardised", "dapper_args.personal_layers": "norms",
            "dapper_args.pruning.importance": "gains",
        }),
)
# fmt: on
