"""Search spaces: which settings of a method a search varies, and in which ranges."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

from fedml_dapper.config import check, check_once, did_you_mean
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.run_folder.records import Record
from fedml_dapper.methods import Method

Number = int | float
Params = dict[str, Number]
"""Values of the settings that are searched, by name."""

_MAX_POINTS = 4096


class Range(Record):
    """Range of a setting, both ends included."""

    low: Number
    high: Number
    log: bool = False
    """Whether equal ratios count as equal steps."""
    integer: bool = False

    def distribution(self) -> BaseDistribution:
        """Return the range as optuna's distribution."""
        if self.integer:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def at(self, share: float) -> Number:
        """Return the value at ``share`` (0 to 1) of the way from low to high."""
        margin = 0.5 if self.integer else 0.0  # makes the outermost whole numbers as likely as others
        low = self.low - margin
        high = self.high + margin
        value = low * (high / low) ** share if self.log else low + share * (high - low)
        return min(max(round(value) if self.integer else value, self.low), self.high)


DEFAULT_RANGES: Mapping[str, Mapping[str, Range]] = {
    "dapperfl": {
        "alpha_0": Range(low=0.1, high=0.99),
        "alpha_min": Range(low=0.0, high=0.5),
        "eps": Range(low=0.01, high=0.5),  # the paper stops at 0.2, where its accuracy still rises
        "gamma": Range(low=1e-5, high=0.1, log=True),
    },
    "ditto": {"mu": Range(low=1e-4, high=1.0, log=True)},
    "fdse": {
        "beta": Range(low=1e-4, high=0.1, log=True),
        "lambda_": Range(low=1e-3, high=1.0, log=True),
        "tau": Range(low=0.1, high=1.0),
    },
    "feddyn": {"alpha": Range(low=1e-3, high=1.0, log=True)},
    "fedprox": {"mu": Range(low=1e-4, high=1.0, log=True)},
    "fedsr": {
        "alpha_cmi": Range(low=1e-5, high=0.1, log=True),
        "alpha_l2r": Range(low=1e-4, high=0.1, log=True),
    },
    "fpl": {"tau": Range(low=0.01, high=1.0, log=True)},
    "moon": {"mu": Range(low=0.01, high=10.0, log=True), "tau": Range(low=0.1, high=1.0)},
}
"""Method -> setting -> the range that is searched by default."""

_AT_MOST: Mapping[str, Sequence[tuple[str, str]]] = {"dapperfl": (("alpha_min", "alpha_0"),)}
"""Method -> pairs of settings of which the first must not exceed the second, where the method itself allows it."""


@dataclass(frozen=True)
class SearchSpace:
    """All combinations of ``ranges`` that ``method`` accepts, beside the settings that are ``fixed``."""

    method: type[Method[Any]]
    fixed: Mapping[str, Any]
    ranges: Mapping[str, Range]

    def accepts(self, params: Params) -> bool:
        """Whether the method accepts these values together."""
        try:
            checked = self.method.check_params({**self.fixed, **params})
        except ConfigError:
            return False
        return all(getattr(checked, low) <= getattr(checked, high) for low, high in _AT_MOST.get(self.method.name, ()))

    def points(self, seed: int) -> Iterator[Params]:
        """Yield quasi-random points (Sobol's sequence, scrambled), without those that are not accepted."""
        engine = torch.quasirandom.SobolEngine(len(self.ranges), scramble=True, seed=seed)  # type: ignore[no-untyped-call]  # torch ships it untyped
        for shares in engine.draw(_MAX_POINTS, dtype=torch.float64).tolist():
            point = {name: range_.at(share) for (name, range_), share in zip(self.ranges.items(), shares, strict=True)}
            if self.accepts(point):
                yield point

    def distributions(self) -> dict[str, BaseDistribution]:
        return {name: range_.distribution() for name, range_ in self.ranges.items()}


def search_space(
    method: type[Method[Any]], fixed: Mapping[str, Any], names: Sequence[str], ranges: Sequence[str]
) -> SearchSpace:
    """Make the space of ``names``, in their default ranges, and of ``ranges``, texts such as ``gamma=1e-5:0.1:log``.

    Raises:
        ConfigError: A name is no numeric setting of the method or has no range, or a range is malformed or holds values
            that the method refuses.
    """
    numeric = _numeric_settings(method)
    check_once(names, "--params")
    check_once([text.partition("=")[0] for text in ranges], "--range")
    found: dict[str, Range] = {}
    for text in ranges:
        name, _, bounds = text.partition("=")
        found[name] = _parse(text, bounds, _is_integer(method, name, numeric, f"--range {text}"))
    for name in names:
        _is_integer(method, name, numeric, "--params")
        default = DEFAULT_RANGES.get(method.name, {}).get(name)
        if name not in found:
            if default is None:
                raise ConfigError(f"--params {name}: no range is known for it; give one, --range {name}=LOW:HIGH")
            found[name] = default
    if not found:
        options = ", ".join(sorted(numeric)) or "none"
        raise ConfigError(f"nothing to search; name settings by --params; numeric ones of {method.name}: {options}")
    for name, range_ in found.items():
        for bound in (range_.low, range_.high):
            check(
                method.Params,
                {**fixed, name: bound},
                where=f"--range {name}={range_.low:g}:{range_.high:g}",
                prefix=f"dapper_args.params.{method.name}",
            )
    return SearchSpace(method, fixed, {name: found[name] for name in sorted(found)})


def _numeric_settings(method: type[Method[Any]]) -> dict[str, bool]:
    """Setting -> whether it takes integers only, for the numeric settings of a method."""
    numeric = {}
    for name, field in method.Params.model_fields.items():
        kinds = {field.annotation, *get_args(field.annotation)}
        if kinds & {int, float}:
            numeric[name] = float not in kinds
    return numeric


def _is_integer(method: type[Method[Any]], name: str, numeric: Mapping[str, bool], where: str) -> bool:
    if name not in numeric:
        raise ConfigError(f"{where}: `{name}` is no numeric setting of {method.name}{did_you_mean(name, numeric)}")
    return numeric[name]


def _parse(text: str, bounds: str, integer: bool) -> Range:
    low_text, _, rest = bounds.partition(":")
    high_text, colon, scale = rest.partition(":")
    try:
        low, high = ((int if integer else float)(part) for part in (low_text, high_text))
    except ValueError:
        kind = "whole numbers" if integer else "numbers"
        raise ConfigError(f"--range {text}: expected NAME=LOW:HIGH or NAME=LOW:HIGH:log with two {kind}") from None
    if colon and scale != "log":
        raise ConfigError(f"--range {text}: `{scale}` is no scale; write log, or leave it out")
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConfigError(f"--range {text}: both ends are finite numbers")
    if low >= high:
        raise ConfigError(f"--range {text}: the first number must be smaller than the second")
    if colon and low <= 0:
        raise ConfigError(f"--range {text}: a logarithmic range starts above 0")
    return Range(low=low, high=high, log=bool(colon), integer=integer)
