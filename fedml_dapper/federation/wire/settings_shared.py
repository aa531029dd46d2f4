"""Settings on which all processes of a run have to agree, and the comparison of two processes' settings.

Two versions of this package may know different settings. A side that does not know a setting behaves as if it were at
its default, so the other side has to have it there. A setting that both know has to be equal, also where one side has
it at a default that changed between the versions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, JsonValue

from fedml_dapper import __version__
from fedml_dapper.config import Settings, named_by_source, present_name, sources, with_present_names
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.wire.versions import EARLIEST, is_older
from fedml_dapper.methods import Method

_OF_THE_MACHINE = frozenset(
    {
        "common_args.training_type",
        "data_args.data_cache_dir",
        "data_args.download",
        "device_args.using_gpu",
        "device_args.gpu_id",
        "device_args.threads",
        "device_args.workers",
        "comm_args",
        "tracking_args",
        "client_specific_args",
        "silo_args",
        "dapper_args.output_dir",
        "dapper_args.checkpoint_every",
        "dapper_args.checkpoints_kept",
        "dapper_args.round_timeout_s",
        "dapper_args.join_timeout_s",
        "dapper_args.check_in",
        "dapper_args.min_clients_per_round",
    }
)
"""Settings in which two sides may differ, by dotted key: they change nothing of the result."""
_METHOD = "dapper_args.method"
_PARAMS = "dapper_args.params"
_COMM_ROUND = "train_args.comm_round"


def _under_present_names(values: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {present_name(key): value for key, value in values.items()}


def _present_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(map(present_name, keys)))


class SharedSettings(BaseModel):
    """Settings of one process on which all processes of a run have to agree."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    """The process's version of this package."""
    method: str
    values: Annotated[dict[str, JsonValue], AfterValidator(_under_present_names)]
    """Value by dotted key, defaults included. Settings of the method have keys ``dapper_args.params.<name>.<key>``;
    ``comm_round`` is included only where the method depends on it. Code and data from outside of this package stand as
    a name and a digest of their source."""
    chosen: Annotated[tuple[str, ...], AfterValidator(_present_keys)]
    """Keys of the settings that are not at their defaults."""

    @classmethod
    def of(cls, settings: Settings, method: Method[Any], named: Mapping[str, str] | None = None) -> SharedSettings:
        """Collect the shared settings of an experiment.

        Args:
            settings: The experiment's.
            method: The experiment's, with its own settings.
            named: Code and data from outside of this package, by setting; by default those of :func:`sources`.
        """
        named = sources(settings) if named is None else named
        found = {key: rest for key, *rest in _leaves(settings) if not _is_left_out(key, method)}
        found |= {key: rest for key, *rest in _leaves(method.params, f"{_PARAMS}.{method.name}.")}
        found |= {key: [source, True] for key, source in named.items()}
        values = {key: value for key, (value, _) in found.items()}
        chosen = tuple(sorted(key for key, (_, is_chosen) in found.items() if is_chosen))
        return cls(version=__version__, method=method.name, values=values, chosen=chosen)

    @classmethod
    def of_experiment(cls, experiment: Experiment) -> SharedSettings:
        """Collect the shared settings of ``experiment``, as this process has them."""
        return cls.of(experiment.settings, experiment.method, experiment.sources)

    @classmethod
    def recorded(
        cls,
        sections: Mapping[str, Any],
        ours: SharedSettings,
        method: str | None = None,
        params: Mapping[str, Any] | None = None,
        named: Mapping[str, str] | None = None,
        version: str = EARLIEST,
    ) -> SharedSettings:
        """Read settings that were written section by section, which does not tell chosen values from defaults.

        Args:
            sections: The settings.
            ours: This process's settings, for the names that its version knows.
            method: Name of the method; by default that of ``ours`` where the same method is set.
            params: All settings of the method; by default those in ``sections``, the others being at their defaults.
            named: Code and data from outside of this package, by setting.
            version: Version of this package that wrote ``sections``.
        """
        sections = with_present_names(sections)
        given = sections.get("dapper_args", {})
        if method is None:
            method = ours.method if given.get("method") == ours.values.get(_METHOD) else str(given.get("method"))
        params = given.get("params", {}).get(method, {}) if params is None else params
        found = dict(_flattened(sections, ours.values))
        values = {key: value for key, value in found.items() if key in ours.values or not _is_left_out(key)}
        values |= {f"{_PARAMS}.{method}.{key}": value for key, value in params.items()} | dict(named or {})
        return cls(version=version, method=method, values=values, chosen=tuple(sorted(values)))

    @property
    def digest(self) -> str:
        """Digest of the method and of all settings that are not at their defaults."""
        chosen = {key: self.values[key] for key in self.chosen}
        return _digest({"method": self.method, "chosen": chosen})

    def difference(self, ours: SharedSettings) -> str:
        """Return every setting in which this experiment differs from ``ours``, with both values; empty if none does.

        For example ``train_args.epochs is 5 there and 1 here``.
        """
        found = []
        for key in sorted(self.values.keys() | ours.values.keys()):
            if self.method != ours.method and key.startswith(f"{_PARAMS}."):  # the methods differ, which is said once
                continue
            if key in self.values and key in ours.values:
                there = self.values[key]
                here = ours.values[key]
                found.append("" if there == here else f"{key} is {there} there and {here} here")
            elif key in self.values:
                found.append(self._unmatched(key, ours, "there", "here"))
            else:
                found.append(ours._unmatched(key, self, "here", "there"))
        return "; ".join(filter(None, found))

    def _unmatched(self, key: str, other: SharedSettings, place: str, elsewhere: str) -> str:
        """Return what is wrong with a setting that this side alone has; empty where nothing is."""
        value = self.values[key]
        if any(one.startswith(f"{key}.") for one in other.values):
            return f"{key} is given {elsewhere} and {value} {place}"
        if key not in self.chosen or any(key.startswith(f"{one}.") for one in other.values):
            return ""  # it is at its default, or in an optional section that the other side leaves out
        if is_older(other.version, self.version):
            advice = f"upgrade version {other.version}, or leave it at its default"
        elif is_older(self.version, other.version):
            advice = f"go on with version {self.version}"
        else:
            advice = "both sides need the same code"
        return f"{key} is {value} {place}, and version {other.version} {elsewhere} does not know it: {advice}"


def shared_settings(settings: Settings, named: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return shared settings section by section, as files record them; for ``named`` see :meth:`SharedSettings.of`."""
    values = settings.model_dump(mode="json")
    for key in _OF_THE_MACHINE:
        section, _, name = key.partition(".")
        place, last = (values[section], name) if name else (values, section)
        place.pop(last, None)
    return named_by_source(values, sources(settings) if named is None else named)


def digest_of_sections(sections: Mapping[str, Any]) -> str:
    """Return the digest in messages of schema 4, which covers every setting and so every default."""
    return _digest(sections)


def settings_difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Return every setting that differs between two records of one version, with both values.

    Both are written section by section, as :func:`shared_settings` returns them.
    """
    left = dict(_flattened(theirs))
    right = dict(_flattened(ours))
    differing = sorted(key for key in left.keys() | right.keys() if left.get(key) != right.get(key))
    return "; ".join(f"{key} is {left.get(key)} there and {right.get(key)} here" for key in differing)


def changed_params(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Return every setting of a method that differs, with both values, among those that both sides know.

    Settings that one side does not know are left out, since versions differ in them.
    """
    known = theirs.keys() & ours.keys()
    return settings_difference({key: theirs[key] for key in known}, {key: ours[key] for key in known})


def _is_left_out(key: str, method: Method[Any] | None = None) -> bool:
    """Return whether a setting is one of the machine's, does not matter to ``method``, or is recorded elsewhere."""
    if key == _COMM_ROUND:
        return method is None or not method.fixed_comm_round
    return any(key == one or key.startswith(f"{one}.") for one in (_PARAMS, *_OF_THE_MACHINE))


def _leaves(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, JsonValue, bool]]:
    """Yield every setting below ``section``: its dotted key, its value, and whether the value is not the default."""
    dumped = section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            is_chosen = field.is_required() or value != field.get_default(call_default_factory=True)
            yield f"{prefix}{name}", dumped[name], is_chosen


def _flattened(values: Mapping[str, Any], whole: Collection[str] = (), prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield values by dotted key; mappings whose key is among ``whole`` stay in one piece."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key not in whole:
            yield from _flattened(value, whole, f"{key}.")
        else:
            yield key, value


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
