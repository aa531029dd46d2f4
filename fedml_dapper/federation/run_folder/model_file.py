"""Model files: weights under the network's own names, with what is needed to build the network for them.

The global model of a run and exported slim models are such files. The metadata hold one JSON document with the round
and a :class:`ModelOrigin`. It is a single entry, since safetensors writes several in any order, and files of equal
models are to be equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, ValidationError
from torch import Tensor

from fedml_dapper import __version__
from fedml_dapper.config import Reference, Settings, check, path_of, sources
from fedml_dapper.config.references import references
from fedml_dapper.datasets import Preprocessing
from fedml_dapper.errors import ConfigError, DataError, ProtocolError
from fedml_dapper.federation.experiment import Experiment, build_problem
from fedml_dapper.federation.run_folder.own_code import check_consent, note_code
from fedml_dapper.federation.run_folder.records import Record
from fedml_dapper.federation.run_folder.tensor_file import metadata_of, read_tensors, write_tensors
from fedml_dapper.federation.wire.settings_shared import shared_settings
from fedml_dapper.inputs import Inputs, is_mask
from fedml_dapper.methods import Method, build_method
from fedml_dapper.models import Backbone, build_backbone
from fedml_dapper.models.adapters import has_adapters, merged
from fedml_dapper.process.provenance import commit
from fedml_dapper.pruning import ChannelLayout, PruningPlan, Tensors, Widths, plan_window

_ABOUT = "about"
_ROUND = "round"
_SECTIONS = ("model_args", "train_args", "dapper_args")
CODE = ("model_args.model", "train_args.task", "dapper_args.method")
"""Settings that may name code without which the model cannot be rebuilt."""


class InputPart(Record):
    """One of several tensors that an input consists of."""

    shape: tuple[int, ...]
    """Shape of a batch of one."""
    dtype: str
    fill: int
    """Value that stands for the data: 1 for a mask that begins with 1, as an all-zero mask would leave nothing; else
    0."""

    @classmethod
    def of(cls, part: Tensor) -> InputPart:
        """Describe ``part``, a batch of one, by its shape, its dtype and whether it is a mask."""
        fill = int(part.numel() > 0 and is_mask(part) and part.flatten()[0] == 1)
        return cls(shape=tuple(part.shape), dtype=str(part.dtype).removeprefix("torch."), fill=fill)

    @property
    def example(self) -> Tensor:
        """A batch of one, filled with one value."""
        return torch.full(self.shape, self.fill, dtype=getattr(torch, self.dtype))


class ModelOrigin(Record):
    """Origin of a model: the experiment that made it, and all that is needed to build its network but the weights."""

    version: str
    """Version of this package."""
    commit: str | None
    """Commit of this package's source, where it ran from a clone."""
    suite: str
    """Label of the data."""
    method: str
    classes: tuple[str, ...]
    """Names of the classes, by label; empty where targets are no classes."""
    input_shape: tuple[int, ...] | None
    """Shape of a batch of one; None where an input is several tensors."""
    input_dtype: str | None
    input_parts: dict[str, InputPart] | tuple[InputPart, ...] | None = Field(
        default=None, exclude_if=lambda parts: parts is None
    )
    """The several tensors of an input, by name or in order; None where it is one."""
    preprocessing: Preprocessing | None
    """How pictures become inputs, where the data are pictures."""
    seed: int
    settings: dict[str, Any]
    """Sections of the experiment's settings: network, task, method, levels."""
    sources: dict[str, str]
    """Object and digest of its source, by the setting that names it, of code from outside of the package."""

    @property
    def example(self) -> Inputs:
        """A batch of one input: zeros, and ones for masks among several tensors."""
        if isinstance(self.input_parts, dict):
            return {name: part.example for name, part in self.input_parts.items()}
        if self.input_parts is not None:
            return tuple(part.example for part in self.input_parts)
        assert self.input_shape is not None
        assert self.input_dtype is not None
        return torch.zeros(self.input_shape, dtype=getattr(torch, self.input_dtype))


class _About(Record):
    round: int
    origin: ModelOrigin | None
    kept: dict[str, tuple[int, ...]] | None = Field(default=None, exclude_if=lambda kept: kept is None)
    """Kept channels by group, of groups that the tensors' sizes do not tell; None where there are none."""


@dataclass(frozen=True)
class ModelFile:
    """Content of a model's file."""

    path: Path
    weights: dict[str, Tensor]
    round: int
    """Round after which the model was written."""
    origin: ModelOrigin | None
    """None in files of earlier versions."""
    kept: dict[str, Tensor]
    """Kept channels by group, int64, where it matters which they are (:func:`filled_channels`)."""


def origin_of(experiment: Experiment) -> ModelOrigin:
    """Describe the origin of models of ``experiment``."""
    problem = experiment.method.problem
    shared = shared_settings(experiment.settings, named={})
    params = experiment.method.params.model_dump(mode="json")
    shared["dapper_args"]["params"] = {experiment.method.name: params}  # all values, as a later default may differ
    return ModelOrigin(
        version=__version__,
        commit=commit(),
        suite=experiment.suite_label,
        method=experiment.method.name,
        classes=experiment.classes,
        **_inputs_of(problem.example),
        preprocessing=experiment.preprocessing,
        seed=problem.seed,
        settings={section: shared[section] for section in _SECTIONS},
        sources={key: source for key, source in experiment.sources.items() if key in CODE},
    )


def _inputs_of(example: Inputs) -> dict[str, Any]:
    """Return the fields of a :class:`ModelOrigin` that describe inputs."""
    if isinstance(example, Tensor):
        return {"input_shape": tuple(example.shape), "input_dtype": str(example.dtype).removeprefix("torch.")}
    parts = (
        {name: InputPart.of(part) for name, part in example.items()}
        if isinstance(example, dict)
        else tuple(map(InputPart.of, example))
    )
    return {"input_shape": None, "input_dtype": None, "input_parts": parts}


def save_model(
    weights: Tensors, path: Path, round_: int, origin: ModelOrigin, kept: Mapping[str, Tensor] | None = None
) -> None:
    """Write the model of ``round_``; an older file at ``path`` stays until the new one is complete.

    ``kept`` are the kept channels of a slim model's groups where it matters which they are (:func:`filled_channels`).
    """
    told = {name: tuple(channels.tolist()) for name, channels in (kept or {}).items()}
    write_tensors(weights, {_ABOUT: _About(round=round_, origin=origin, kept=told or None).model_dump_json()}, path)


def read_model(path: Path) -> ModelFile:
    """Read a file of :func:`save_model`; raise :class:`DataError` where there is none, or another one."""
    if not path.is_file():
        raise DataError(
            f"no global model at {path}; a run writes it with its first checkpoint, or when it is cut short"
        )
    about = _about(path)
    if about is None:
        raise DataError(f"{path} does not say after which round it was written; it is none of a run's")
    kept = {name: torch.tensor(channels) for name, channels in (about.kept or {}).items()}
    return ModelFile(path, read_tensors(path, "global model"), about.round, about.origin, kept)


def round_of_model(path: Path) -> int | None:
    """Return the round of the model at ``path``; None where :func:`save_model` wrote no such file."""
    try:
        about = _about(path)
    except DataError:
        return None
    return None if about is None else about.round


@dataclass(frozen=True, eq=False)
class Rebuilt:
    """A model that was rebuilt from its file."""

    file: ModelFile
    origin: ModelOrigin
    model: Backbone
    """On the CPU, in evaluation mode."""
    method: Method[Any]
    """The method that trained it."""
    plan: PruningPlan
    """The part of the global model that it is."""


def load_model(path: Path | str, *, trust_code: bool = False) -> Backbone:
    """Load the network of a model file with its weights; see :func:`rebuild`."""
    return rebuild(path, trust_code=trust_code).model


def rebuild(path: Path | str, *, trust_code: bool = False) -> Rebuilt:
    """Rebuild the network of a ``global_model.safetensors``, or of an exported ``model.safetensors``, with its weights.

    It is as narrow as the file's tensors are, with adapters merged where the file has them so; neither data nor
    experiment file are needed. Code of a network of one's own is looked for where it was, then beside ``path``. It runs
    only where a run of this user's ran it on this machine, or with ``trust_code``.

    Args:
        path: The file.
        trust_code: Whether to run whatever code the file names, by which it can do all that you can.

    Raises:
        DataError: The file is of another kind, or of a version that did not write what is needed.
        ConfigError: The network's code is missing, has changed, or is not known to be this user's.
    """
    file = read_model(path_of(path))
    if file.origin is None:
        raise DataError(
            f"{path} was written by an earlier version, which did not say how its network is built; go by the run's"
            " folder: fedml_dapper.Run.open(FOLDER).model()"
        )
    method = rebuild_method(file.origin, file.path, trust_code)
    layout = method.problem.layout
    widths = layout.widths_of({name: tuple(tensor.shape) for name, tensor in file.weights.items()})
    omitted = frozenset(layout.tensors.keys() - file.weights.keys())
    plan = None if widths is None else _plan(layout, widths, file.kept, omitted)
    model = None if plan is None else method.local_model(plan)
    if model is not None and not has_adapters(file.weights):
        model = merged(model)
    if plan is None or model is None or model.state_dict().keys() != file.weights.keys():
        raise DataError(f"{path} holds tensors that do not fit the network it names; it was changed")
    model.load_state_dict(file.weights)
    return Rebuilt(file, file.origin, model.eval(), method, plan)


def _plan(
    layout: ChannelLayout, widths: Widths, kept: Mapping[str, Tensor], omitted: frozenset[str]
) -> PruningPlan | None:
    """Return a plan of these widths, with the channels that ``kept`` names; None where they do not fit the layout."""
    plan = PruningPlan({**plan_window(layout, widths).kept, **kept}, omitted)
    try:
        plan.check(layout)
    except ProtocolError:
        return None
    return plan if plan.widths == widths else None


def note_model(path: Path) -> None:
    """Note that the code that the model file at ``path`` names is this user's, who has just written them there."""
    origin = read_model(path).origin
    assert origin is not None, "this version writes it"
    note_code(_settings_of(origin, path))


def rebuild_method(origin: ModelOrigin, path: Path, trust_code: bool) -> Method[Any]:
    """Build the method, with its network, of the model file at ``path``, whose origin is ``origin``.

    Raises:
        ConfigError: The network's code is missing, has changed, or is neither this user's nor trusted.
    """
    settings = _settings_of(origin, path)
    check_code(origin.sources, settings, path)
    check_consent(settings, CODE, path, trust_code)
    settings = settings.model_copy(
        update={
            "model_args": settings.model_args.model_copy(update={"weights": None}),  # the file has later ones
            "common_args": settings.common_args.model_copy(update={"random_seed": origin.seed}),
        }
    )
    example = origin.example
    backbone = build_backbone(settings.model_args, len(origin.classes), origin.seed, example)
    return build_method(settings.dapper_args, build_problem(settings, backbone, example))


def check_code(recorded: dict[str, str], settings: Settings, path: Path) -> None:
    """Check that the code that ``settings`` name is that of the model at ``path``, whose sources are ``recorded``.

    Raises:
        ConfigError: It is not, or a program passed the network, so that there is no code to build it from.
    """
    if settings.model_args.model is None:
        raise ConfigError(
            f"{path}: a program passed the network, {recorded.get('model_args.model')}, so that only it can build it;"
            " load the file's tensors into it there"
        )
    here = sources(settings)
    for key in CODE:
        if key in recorded and here.get(key) != recorded[key]:
            raise ConfigError(
                f"{key}: {path} was made with {recorded[key]}, here is {here.get(key, 'none')}; put the file that it"
                " was made with where it was, or beside the model"
            )


def _settings_of(origin: ModelOrigin, path: Path) -> Settings:
    """Return the settings in the model file at ``path``, with the code that they name where it is here."""
    return _with_code_from(check(Settings, origin.settings, where=str(path)), path.parent)


def _with_code_from(settings: Settings, folder: Path) -> Settings:
    """Return ``settings`` that name the files of code in ``folder`` where theirs are missing or relative."""
    for key, value in references(settings):
        reference = Reference.parse(value) if key in CODE else None
        if reference is None or reference.file is None:
            continue
        named = reference.file
        beside = folder / named.name
        if beside.is_file() and not (named.is_absolute() and named.is_file()):
            section, name = key.split(".")
            moved = getattr(settings, section).model_copy(update={name: f"{beside}:{reference.name}"})
            settings = settings.model_copy(update={section: moved})
    return settings


def _about(path: Path) -> _About | None:
    """Return the round and origin in the file's metadata; None where it is no model's file."""
    metadata = metadata_of(path, "global model")
    if _ABOUT not in metadata:
        round_ = metadata.get(_ROUND, "")  # all that earlier versions wrote
        return _About(round=int(round_), origin=None) if round_.isdecimal() else None
    try:
        return _About.model_validate_json(metadata[_ABOUT])
    except ValidationError as error:
        mistake = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise DataError(f"{path} is of another version of this package: {mistake}; read it with that one") from error
