from __future__ import annotations

from collections.abc import Callable

import pytest

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import build_experiment

SettingsFactory = Callable[..., Settings]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method=daperfl", "unknown method `daperfl`; did you mean `dapperfl`?"),
        (
            "dapper_args.params.dapperfl.gama=1",
            "unknown key `gama` in dapper_args.params.dapperfl; did you mean `gamma`",
        ),
        ("dapper_args.params.dapperfl.gamma=-1", "`gamma` in dapper_args.params.dapperfl is -1"),
        ("dapper_args.params.fedavg.mu=1", "unknown key `mu` in dapper_args.params.fedavg"),
        ("dapper_args.params.moan.mu=1", "unknown method `moan`"),
        ("ratios=[0.0, 0.99]", "smallest share of this scope"),
    ],
)
def test_mistakes_in_method_settings_are_named(tiny_settings: SettingsFactory, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_experiment(tiny_settings(override))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("method=moon", "strict=true"),
            "levels.strict needs a method that does not train the full model on every client (`moon` trains the full",
        ),
        (
            ("method=fedmp", "scope=official_mask"),
            "scope other than auto (official_mask) needs a method that slims so (`fedmp` slims by internal or grouped)",
        ),
    ],
)
def test_slimming_that_a_method_cannot_do_is_refused(
    tiny_settings: SettingsFactory, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        build_experiment(tiny_settings(*overrides))
    assert message in str(caught.value)


def test_same_seed_same_partition_levels_and_start_for_all_methods(tiny_settings: SettingsFactory) -> None:
    first, second = (build_experiment(tiny_settings(f"method={name}")) for name in ("dapperfl", "fedavg"))
    assert first.profiles == second.profiles
    for one, other in zip(first.clients, second.clients, strict=True):
        batch_one, batch_other = next(one.batches(1, 1)), next(other.batches(1, 1))
        assert batch_one.inputs.equal(batch_other.inputs)
    weights = second.method.problem.backbone.state_dict()
    assert all(tensor.equal(weights[name]) for name, tensor in first.method.problem.backbone.state_dict().items())
