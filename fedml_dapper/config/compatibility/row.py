"""A row of the table of what goes with what, and what its two sides may ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from fedml_dapper.config.settings import Settings

Relation: TypeAlias = Literal["excludes", "needs"]


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What rows ask besides settings: what the method of an experiment, its network, task and data are able to.

    None stands for what nobody has looked at yet; rows that ask for it are passed over.
    """

    method: str = ""
    """The method's name, for messages; so are the names of network and task."""
    network: str = ""
    task: str = ""
    remedy: str = ""
    """What to do where task or network lack what the method needs."""

    needs_sgd: bool | None = None
    sees_batches: bool | None = None
    needs_representations: bool | None = None
    needs_labels: bool | None = None
    needs_adapters: bool | None = None
    takes_scope: bool | None = None
    """Whether the method slims under ``dapper_args.pruning.scope``, or not at all."""
    scopes: tuple[str, ...] = ()
    """Those that it slims under."""
    cuts_depth: bool | None = None
    """Whether the method makes a network smaller by whole blocks."""
    allows_personal_layers: bool | None = None
    names_its_own: bool = False
    """Whether the method says itself what clients keep."""
    has_batchnorm: bool | None = None
    """Of the network."""
    has_representations: bool | None = None
    """Of the network, under a linear predictor."""
    has_adapters: bool | None = None
    """Whether the network has adapters that can be cut."""
    has_labels: bool | None = None
    """Of the task: one class a sample."""

    takes_robust_means: bool | None = None
    tests_on_training_data: bool | None = None
    beyond_sums: str | None = None
    """What the server learns besides sums; empty where nothing."""
    takes_late_uploads: bool | None = None
    takes_edges: bool | None = None
    serves_newcomers: bool | None = None
    fits_all_levels: bool | None = None
    """Whether nobody trains a larger model than its level's."""
    compares_personal_gains: bool | None = None
    """Whether clients keep gains by which channels are compared."""
    sends_statistics: bool | None = None
    """Whether BatchNorm's are part of uploads."""
    whole_numbers: tuple[str, ...] | None = None
    """Integer tensors that uploads have, besides BatchNorm's counters."""

    is_built_in: bool | None = None
    """Whether the network is."""
    takes_norm: bool | None = None
    """Whether the network can be had with ``model_args.norm``."""
    with_norm: str = ""
    """Networks that can."""

    partition: str | None = None
    """The partition in use, which may be the suite's own."""


@dataclass(frozen=True)
class Feature:
    """Something that settings ask for."""

    label: str
    """As messages and the page have it, keys whole."""
    is_on: Callable[[Settings], bool]
    now: Callable[[Settings], object] | None = None
    """What a message adds in brackets: the value at hand; nothing where that is an empty text."""

    def holds(self, settings: Settings, capabilities: Capabilities) -> bool | None:
        """Whether it is on."""
        del capabilities
        return self.is_on(settings)

    def shown(self, settings: Settings, capabilities: Capabilities) -> str:
        """Its label in a message, with what is set now."""
        del capabilities
        return _with(self.label, "" if self.now is None else self.now(settings))


@dataclass(frozen=True)
class Ability:
    """Something that a method, network, task or data set does or has; otherwise as :class:`Feature`."""

    label: str
    is_on: Callable[[Capabilities], bool | None]
    """None where that is not known."""
    now: Callable[[Capabilities], object]

    def holds(self, settings: Settings, capabilities: Capabilities) -> bool | None:
        """Whether it is on."""
        del settings
        return self.is_on(capabilities)

    def shown(self, settings: Settings, capabilities: Capabilities) -> str:
        """Its label in a message, with what is set now."""
        del settings
        return _with(self.label, self.now(capabilities))


def _with(label: str, now: object) -> str:
    return label if now == "" else f"{label} ({now})"


Side: TypeAlias = Feature | Ability


@dataclass(frozen=True)
class Row:
    """``this`` excludes or needs ``that``."""

    this: Side
    relation: Relation
    that: Side
    why: str
    remedy: str
    """What to do, in words that follow a semicolon."""
    example: Mapping[str, Any]
    """Settings that break this row and no other, by whole keys; defaults for all others."""
    own_remedy: Callable[[Capabilities], str] | None = None
    """What to do in place of ``remedy``, where a method says that itself."""

    @property
    def is_about_settings(self) -> bool:
        """Whether settings alone decide."""
        return isinstance(self.this, Feature) and isinstance(self.that, Feature)

    def refusal(self, settings: Settings, capabilities: Capabilities) -> str | None:
        """What is wrong and what to do; None where nothing is, or where that is not known yet."""
        if not self.this.holds(settings, capabilities):
            return None
        if self.that.holds(settings, capabilities) is not (self.relation == "excludes"):
            return None
        verb = "does not go with" if self.relation == "excludes" else "needs"
        this = self.this.shown(settings, capabilities)
        that = self.that.shown(settings, capabilities)
        remedy = self.remedy if self.own_remedy is None else self.own_remedy(capabilities)
        return f"{this} {verb} {that}: {self.why}; {remedy}"
