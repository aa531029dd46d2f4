"""Networks: what built-in ones are made by, and what others are."""

from __future__ import annotations

from fedml_dapper.config.compatibility.features import given
from fedml_dapper.config.compatibility.row import Ability, Capabilities, Feature, Row


def _name(capabilities: Capabilities) -> str:
    return f"it is `{capabilities.network}`"


_OWN = Ability("a network of your own", lambda c: None if c.is_built_in is None else not c.is_built_in, _name)
_BUILT_IN = Ability("a built-in network", lambda c: c.is_built_in, _name)
_HAS_NORM = Ability(
    "a network that can be had with it", lambda c: c.takes_norm, lambda c: f"`{c.network}` cannot, but {c.with_norm}"
)
_ARGUMENTS = Feature("model_args.arguments", lambda s: bool(s.model_args.arguments))
_MADE_BY_ARGUMENTS = "others are made in their own way"
_MOVE = "put what it is made with into model_args.arguments"

# fmt: off
ROWS = (
    Row(_ARGUMENTS, "needs", _OWN,
        "built-in ones are made by width and norm", "leave it out",
        {"model_args.model": "resnet10", "model_args.arguments": {"a": 1}}),
    Row(given("model_args.predictor"), "needs", _OWN,
        "built-in ones name theirs", "leave it out",
        {"model_args.model": "resnet10", "model_args.predictor": "fc"}),
    Row(given("model_args.width"), "needs", _BUILT_IN, _MADE_BY_ARGUMENTS, _MOVE,
        {"model_args.model": "networks.py:Whole", "model_args.width": 3}),
    Row(given("model_args.norm"), "needs", _BUILT_IN, _MADE_BY_ARGUMENTS, _MOVE,
        {"model_args.model": "networks.py:Whole", "model_args.norm": "group"}),
    Row(given("model_args.norm"), "needs", _HAS_NORM,
        "not every architecture has a variant of each norm", "leave it out",
        {"model_args.model": "lenet5", "model_args.norm": "group"}),
)
# fmt: on
