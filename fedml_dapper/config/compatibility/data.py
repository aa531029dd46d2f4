"""Data and levels: who holds what, and how strong its device is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fedml_dapper.config.compatibility.features import (
    CLOCK,
    FLEET,
    FLEET_OF_ONE,
    LATE_KEPT,
    OWN_DATA,
    SECURE_SUMS,
    SILOS,
    SIMULATION,
    UNSEEN,
    chosen,
    enumerated,
    given,
    other_than,
    value_of,
)
from fedml_dapper.config.compatibility.row import Ability, Feature, Row
from fedml_dapper.config.dapper_args import LevelArgs
from fedml_dapper.config.silo_args import SiloArgs

if TYPE_CHECKING:
    from fedml_dapper.config.settings import Settings

_LEVELS_OF_CLIENTS = "data_args.clients with levels"
_LISTED = "dapper_args.levels.assignment as a list"
_LEVELS_TWICE = "levels stand in both"
_LEAVE_ONE_OUT = "leave one out"
_LEAVE_IT_OUT = "leave it out"
_DEALS_OUT = "it deals out what one process knows of all, and there nobody does"
_CLIENTS = given("data_args.clients")
_SILO_FILES = given("client_specific_args.data_silo_config")
_DEALT_FLEET = Feature(
    "dapper_args.fleet without partition own", lambda s: FLEET.is_on(s) and s.data_args.partition != "own"
)
_OWN = {**SILOS, "data_args.partition": "own"}
_TWO = {"train_args.client_num_in_total": 2, "train_args.client_num_per_round": 2}
_LEVELS = {**_TWO, "data_args.clients": [{"domain": "a", "level": 2}, {"domain": "b", "level": 1}]}
_FILES = {**_TWO, "client_specific_args.data_silo_config": ["a.yaml", "b.yaml"]}


def _levels_of_clients(settings: Settings) -> Sequence[int] | None:
    """None where there are none, as below."""
    levels = [client.level for client in settings.data_args.clients or () if client.level is not None]
    return levels or None


def _listed(settings: Settings) -> Sequence[int] | None:
    assignment = settings.dapper_args.levels.assignment
    return None if isinstance(assignment, str) else assignment or None


def _one_each(
    key: str, label: str, items: Callable[[Settings], Sequence[object] | None], example: Sequence[object]
) -> Row:
    """What ``items`` lists at ``key`` is one for each client."""
    return Row(
        Feature(label, lambda s: items(s) is not None, lambda s: f"{len(items(s) or ())} entries"),
        "needs",
        Feature(
            "one entry for each of train_args.client_num_in_total",
            lambda s: len(items(s) or ()) == s.train_args.client_num_in_total,
            lambda s: f"{s.train_args.client_num_in_total} clients",
        ),
        "entries go to clients in their order",
        "make the two agree",
        {key: example},
    )


def _known(label: str, levels: Callable[[Settings], Sequence[int] | None], example: dict[str, object]) -> Row:
    """The levels that ``levels`` lists have a ratio."""
    return Row(
        Feature(label, lambda s: levels(s) is not None, lambda s: f"up to level {max(levels(s) or (0,))}"),
        "needs",
        Feature(
            "dapper_args.levels.ratios with a ratio for each of its levels",
            lambda s: max(levels(s) or (0,)) <= len(s.dapper_args.levels.ratios),
            lambda s: f"it has {len(s.dapper_args.levels.ratios)} levels",
        ),
        "a ratio says how small a level's model is",
        "give levels that there are, or more ratios",
        {**example, "dapper_args.levels.ratios": [0.0]},
    )


def _partition(*names: str) -> Ability:
    return Ability(
        f"data_args.partition {enumerated(names)}",
        lambda c: None if c.partition is None else c.partition in names,
        lambda c: "" if c.partition in names else f"it is {c.partition}",
    )


def _clash(this: Feature, that: Feature, example: dict[str, object]) -> Row:
    """Both say who has which level."""
    return Row(this, "excludes", that, _LEVELS_TWICE, _LEAVE_ONE_OUT, example)


def _not_with_own(key: str, example: object) -> Row:
    return Row(given(key), "excludes", OWN_DATA, _DEALS_OUT, _LEAVE_IT_OUT, {**_OWN, key: example})


_HAVE_LEVELS = Feature(_LEVELS_OF_CLIENTS, lambda s: _levels_of_clients(s) is not None)
_ARE_LISTED = Feature(_LISTED, lambda s: _listed(s) is not None)
_ASSIGNED = Feature(
    f"dapper_args.levels.assignment other than {LevelArgs().assignment}",
    lambda s: s.dapper_args.levels.assignment not in ((), LevelArgs().assignment),
)

# fmt: off
DATA = (
    Row(OWN_DATA, "excludes", SIMULATION,
        "it is for silos, which are processes", "set training_type to cross_silo",
        {"data_args.partition": "own"}),
    Row(_CLIENTS, "excludes", chosen("data_args.client_order", "official"),
        "that is about drawing who holds what, which `clients` states", "leave client_order out",
        {**_LEVELS, "data_args.client_order": "official"}),
    Row(_CLIENTS, "excludes", given("data_args.max_clients_per_domain"),
        "that is about drawing who holds what, which `clients` states", "leave max_clients_per_domain out",
        {**_LEVELS, "data_args.max_clients_per_domain": 2}),
    _one_each("data_args.clients", "data_args.clients", lambda s: s.data_args.clients, ["a"]),
    Row(_partition("dirichlet"), "needs", given("data_args.dirichlet_alpha"),
        "it says how evenly classes spread", "give it, e.g. 0.1 (uneven) or 1.0 (mild)",
        {"data_args.partition": "dirichlet"}),
    Row(given("data_args.dirichlet_alpha"), "needs", _partition("dirichlet"),
        "nothing else is dealt out by it", _LEAVE_ONE_OUT,
        {"data_args.dirichlet_alpha": 0.1}),
    Row(given("data_args.client_share"), "needs", _partition("domain_shares", "one_per_domain", "dirichlet"),
        "a function of your own deals out as it likes", _LEAVE_ONE_OUT,
        {"data_args.partition": "my_split.py:deal", "data_args.client_share": 0.5}),
    Row(_CLIENTS, "needs", _partition("domain_shares"),
        "the others give clients no share of a domain", _LEAVE_ONE_OUT,
        {**_LEVELS, "data_args.partition": "one_per_domain"}),
    Row(other_than("data_args.client_order", "shuffled"), "needs", _partition("domain_shares"),
        "the others draw no domains", _LEAVE_ONE_OUT,
        {"data_args.partition": "one_per_domain", "data_args.client_order": "official"}),
    Row(given("data_args.max_clients_per_domain"), "needs", _partition("domain_shares"),
        "the others draw no domains", _LEAVE_ONE_OUT,
        {"data_args.partition": "one_per_domain", "data_args.max_clients_per_domain": 2}),
    Row(given("data_args.validation_share"), "needs", _partition("domain_shares"),
        "the others keep validation samples of their own, or none", _LEAVE_ONE_OUT,
        {"data_args.partition": "one_per_domain", "data_args.validation_share": 0.1}),
)

LEVELS = (
    _one_each(
        "client_specific_args.data_silo_config", "client_specific_args.data_silo_config",
        lambda s: s.client_specific_args.data_silo_config, ["a.yaml"],
    ),
    _one_each("dapper_args.levels.assignment", _LISTED, _listed, [1]),
    _known(_LEVELS_OF_CLIENTS, _levels_of_clients, _LEVELS),
    _known(_LISTED, _listed, {**_TWO, "dapper_args.levels.assignment": [2, 1]}),
    _clash(_HAVE_LEVELS, _ARE_LISTED, {**_LEVELS, "dapper_args.levels.assignment": [1, 1]}),
    _clash(_HAVE_LEVELS, _SILO_FILES, {**_LEVELS, **_FILES}),
    _clash(_HAVE_LEVELS, _DEALT_FLEET, {**_LEVELS, **FLEET_OF_ONE}),
    _clash(_ARE_LISTED, _SILO_FILES, {**_FILES, "dapper_args.levels.assignment": [1, 1]}),
    _clash(_ASSIGNED, _DEALT_FLEET, {**FLEET_OF_ONE, "dapper_args.levels.assignment": "index_mod"}),
    _clash(_SILO_FILES, _DEALT_FLEET, {**_FILES, **FLEET_OF_ONE}),
)

FLEETS = (
    Row(_DEALT_FLEET, "needs", given("dapper_args.fleet.devices"),
        "it says which devices clients have", "name them, e.g. [raspberry_pi_4]",
        {"dapper_args.fleet.round_s": 600}),
    Row(CLOCK, "needs", SIMULATION,
        "a virtual clock is for simulations; silos' rounds take real time, which dapper_args.round_timeout_s limits",
        _LEAVE_IT_OUT,
        {**SILOS, **FLEET_OF_ONE, "dapper_args.fleet.clock.jitter": 0.1}),
    Row(LATE_KEPT, "needs",
        Feature(
            "dapper_args.fleet.clock.deadline_s or over_selection above 1",
            lambda s: (
                value_of(s, "dapper_args.fleet.clock.deadline_s") is not None
                or value_of(s, "dapper_args.fleet.clock.over_selection") > 1
            ),
        ),
        "late: kept is for rounds that do not wait for everyone", "set deadline_s or over_selection as well",
        {**FLEET_OF_ONE, "dapper_args.fleet.clock.late": "kept"}),
    Row(given("dapper_args.fleet.clock.deadline_s"), "needs",
        Feature(
            "to be no later than dapper_args.fleet.round_s",
            lambda s: value_of(s, "dapper_args.fleet.clock.deadline_s") <= value_of(s, "dapper_args.fleet.round_s"),
            lambda s: f"{value_of(s, 'dapper_args.fleet.round_s'):g}",
        ),
        "levels are chosen for that time", "lower it",
        {**FLEET_OF_ONE, "dapper_args.fleet.clock.deadline_s": 601}),
)

OWN_SILOS = (
    Row(
        Feature(
            "silo_args other than known and may_call",
            lambda s: s.silo_args != SiloArgs(known=s.silo_args.known, may_call=s.silo_args.may_call),
        ),
        "needs", OWN_DATA, "there every silo has its own data", "set that partition, or leave silo_args out",
        {"silo_args.domain": "usps"}),
    Row(given("silo_args.known"), "needs", SECURE_SUMS,
        "it says with whom a silo sums", _LEAVE_IT_OUT,
        {**_OWN, "silo_args.known": "known.json"}),
    Row(given("silo_args.device"), "excludes", given("silo_args.level"),
        "either says how strong the silo is", _LEAVE_ONE_OUT,
        {**_OWN, "dapper_args.fleet.round_s": 600, "silo_args.device": "raspberry_pi_4", "silo_args.level": 1}),
    Row(given("silo_args.device"), "needs", FLEET,
        "what a device can run depends on dapper_args.fleet.round_s", "set that",
        {**_OWN, "silo_args.device": "raspberry_pi_4"}),
    _not_with_own("data_args.clients", ["a"] * 10),
    _not_with_own("data_args.client_share", 0.5),
    _not_with_own("data_args.validation_share", 0.1),
    _not_with_own(UNSEEN.label, "usps"),
    _not_with_own(_SILO_FILES.label, ["a.yaml"] * 10),
    Row(given("dapper_args.fleet.devices"), "excludes", OWN_DATA, _DEALS_OUT, _LEAVE_IT_OUT, {**_OWN, **FLEET_OF_ONE}),
    Row(given("dapper_args.fleet.continuous"), "excludes", OWN_DATA, _DEALS_OUT, _LEAVE_IT_OUT,
        {**_OWN, "dapper_args.fleet.round_s": 600, "dapper_args.fleet.continuous": True}),
)
# fmt: on
