"""A user's own data set, ``dataset: my_data.py:load``: domains that a function returns.

``load(**data_args.arguments)`` returns ``{domain: (train, test)}`` or ``{domain: (train, test, validation)}`` of
map-style data sets, each with a length and items ``(input, target)`` of one shape and dtype; sequences of whole numbers
may have any length, and are padded by batch. Targets that are single integers are classes.
"""

from __future__ import annotations

import inspect
import logging
import operator
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset

from fedml_dapper.config import DataArgs
from fedml_dapper.config.section import shown
from fedml_dapper.datasets.class_names import names_of_classes, note_on_missing, note_on_names, note_on_order
from fedml_dapper.datasets.domain import PARTS, Domain, Suite
from fedml_dapper.datasets.finite import not_finite, say_not_finite
from fedml_dapper.datasets.items import (
    Items,
    MapStyle,
    Source,
    describe_user_error,
    input_form,
    seeded_everywhere,
    unlike,
    unread_in,
)
from fedml_dapper.datasets.own_samples import MERGING
from fedml_dapper.datasets.padding import is_sequence
from fedml_dapper.datasets.readable import hindrance, say_unreadable
from fedml_dapper.datasets.rows import inputs_in_memory, part_of
from fedml_dapper.datasets.samples import Samples
from fedml_dapper.errors import USER_CODE_ERRORS, ConfigError, DapperError, DataError
from fedml_dapper.inputs import described

Load = Callable[..., object]

LOGGER = logging.getLogger(__name__)
_KEY = "data_args.dataset"
_LONGEST_NAME = 100
_MOST_ITEMS = 10**8
_COMPARED = 32
"""Largest number of items whose labels are compared with those that a data set states; fetching all may take long."""


def own_suite(load: Load, name: str, args: DataArgs) -> Suite:
    """Make a suite, called ``name``, of what ``load`` returns.

    Raises:
        ConfigError: ``data_args.arguments`` do not fit the function.
        DataError: The function fails, or returns something else than such data sets.
    """
    returned = _called(load, name, args)
    if not isinstance(returned, Mapping) or not returned:
        raise DataError(f"{_KEY}: {name} returns {_kind(returned)}; return {{domain: (train, test)}}, one or more")
    _check_names(name, returned)
    domains = tuple(_domain(name, str(domain), parts) for domain, parts in returned.items())
    _check_alike(name, domains)
    parts = _all(domains)
    classes = names_of_classes(f"{_KEY}: {name}", parts, args.classes)
    notes = [
        *(note for domain in domains for note in domain.notes),
        note_on_names(parts) if args.classes is None else None,
        note_on_order(parts, args.classes) if isinstance(args.classes, tuple) else None,
        _note_on_augmentation(domains, args),
        note_on_missing(parts if args.partition in MERGING else [_items_of(domain) for domain in domains], classes),
    ]
    return Suite(
        name=name,
        domains=domains,
        classes=classes,
        client_share=None,
        swap_in_missing_classes=False,
        notes=tuple(note for note in notes if note is not None),
    )


def _note_on_augmentation(domains: Sequence[Domain], args: DataArgs) -> str | None:
    """Return a warning where samples that are held out keep the transform of training, or the other way round."""
    if args.partition not in MERGING and args.validation_share is None:
        return None
    for domain in domains:
        transforms = [_transforms(samples) for samples in (domain.train, domain.test)]
        if transforms[0] and transforms[0] != transforms[1]:
            return (
                f"domain {domain.name}: its training items have a transform that its test items have not, and keep it"
                " where they are held out to validate or test on (validation_share, or partition"
                f" {' or '.join(MERGING)}); where it augments, so are those"
            )
    return None


def _transforms(samples: Samples) -> list[object]:
    """What a data set applies to its items, as torchvision's call it."""
    assert isinstance(samples, Items)
    found = [source.stated(key) for source in samples.sources for key in ("transform", "transforms")]
    return [each for each in found if each is not None]


def _called(load: Load, name: str, args: DataArgs) -> object:
    arguments = dict(args.arguments)
    name = getattr(load, "__name__", name)
    try:
        signature = inspect.signature(load)
        if "data_cache_dir" in signature.parameters and args.data_cache_dir is not None:
            arguments.setdefault("data_cache_dir", args.data_cache_dir)
        signature.bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"data_args.arguments: {name}{inspect.signature(load)}: {error}") from error
    try:
        with seeded_everywhere(0):  # each process that calls it has the same split
            return load(**arguments)
    except DapperError:
        raise
    except USER_CODE_ERRORS as error:
        raise DataError(f"{_KEY}: {name} fails: {describe_user_error(error)}") from error


def _check_names(name: str, returned: Mapping[Any, object]) -> None:
    """Raise :class:`DataError` where a domain's name is no text or number, not fit to be shown, or taken."""
    known = set[str]()
    for given in returned:
        if isinstance(given, bool) or not isinstance(given, str | int | float | np.number):
            raise DataError(
                f"{_KEY}: {name} calls a domain {shown(given)} ({type(given).__name__}); a name is a text or a number"
            )
        domain = str(given)
        if not domain.strip() or not domain.isprintable() or len(domain) > _LONGEST_NAME:
            raise DataError(
                f"{_KEY}: {name} calls a domain {domain[:_LONGEST_NAME]!r}; a name has 1 to {_LONGEST_NAME} letters"
                " that can be printed"
            )
        if domain in known:
            raise DataError(f"{_KEY}: {name} calls two domains `{domain}`; give each a name of its own")
        known.add(domain)


def _domain(name: str, domain: str, parts: object) -> Domain:
    if not isinstance(parts, list | tuple) or len(parts) not in (2, 3):
        raise DataError(
            f"{_KEY}: {name} gives {_kind(parts)} for domain {domain}; give (train, test) or (train, test, validation)"
        )
    train, test, *rest = (
        _items(f"{name}, domain {domain}, {part}", source) for part, source in zip(PARTS, parts, strict=False)
    )
    found = (_note_of(items) for items in (train, test, *rest))
    notes = tuple(note for note in found if note is not None)
    return Domain(domain, train, test, name, is_subset=False, validation=rest[0] if rest else None, notes=notes)


def _note_of(items: Items) -> str | None:
    """Return a warning on inputs that are not finite, if all lie in memory; others are checked batch by batch."""
    [source] = items.sources
    inputs = inputs_in_memory(source.dataset)
    indices = [] if inputs is None else not_finite(inputs)
    return say_not_finite(source.name, indices, len(items)) if indices else None


def _items(name: str, source: object) -> Items:
    if isinstance(source, DataLoader):
        raise DataError(
            f"{name}: a DataLoader, and clients make batches of their own; give its data set, `loader.dataset`"
        )
    if not isinstance(source, Sized) or isinstance(source, str | Mapping):
        raise DataError(
            f"{name}: {_kind(source)} has no length; give a map-style data set, with __len__ and __getitem__"
        )
    try:
        length = len(source)
    except USER_CODE_ERRORS as error:
        raise DataError(
            f"{name}: {_kind(source)} has no length: {describe_user_error(error)}; give it a __len__ that says how many"
            " items it has"
        ) from error
    if length == 0:
        raise DataError(f"{name}: has no samples; leave the domain out, or give it some")
    if length > _MOST_ITEMS:
        raise DataError(f"{name}: says that it has {length:,} items, more than can be numbered; mend its __len__")
    if _is_pair_of_arrays(source):
        raise DataError(
            f"{name}: a {type(source).__name__} of inputs and targets is no data set; TensorDataset(inputs, targets) of"
            " torch.utils.data makes one of two tensors"
        )
    held = cast(MapStyle, source)
    places = torch.stack([torch.zeros(length, dtype=torch.int64), torch.arange(length)], dim=1)
    items = Items((Source(name, held),), places, None, seen_whole=inputs_in_memory(held) is not None)
    target = items.first.targets
    if target.dim() != 1 or target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        return items
    with seeded_everywhere(0):  # items that draw have the same labels in every process
        labels = _stated_labels(items.sources[0], length)
        if labels is None or len(labels) != length or _contradicted(items, labels):
            labels = _labels_of(items.sources[0], length)
    lowest = int(labels.min())
    if lowest < 0:
        index = int(labels.argmin())
        raise DataError(f"{name}: has the class {lowest} (item {index}); classes count from 0")
    return replace(items, labels=labels)


def _is_pair_of_arrays(source: object) -> bool:
    """Whether ``source`` is all inputs and all targets side by side, where a data set has items."""
    if not isinstance(source, list | tuple) or len(source) != 2:
        return False
    return all(isinstance(part, Tensor | np.ndarray) and part.ndim for part in source) and len(source[0]) == len(
        source[1]
    )


def _contradicted(items: Items, stated: Tensor) -> bool:
    """Return whether any of some items, spread over all, has another label than is ``stated``; the log says which."""
    if items.seen_whole:
        return False
    for index in range(0, len(items), -(-len(items) // _COMPARED)):
        try:
            found = items.take(torch.tensor([index])).first.targets
        except DataError:  # that item says so itself when it is needed
            continue
        if found.shape != (1,) or int(found) != int(stated[index]):
            LOGGER.warning(
                "%s: item %d has the target %s, and what the data set states of it is %d; the items' own are taken",
                items.sources[0].name, index, found.squeeze().tolist(), stated[index],
            )  # fmt: skip
            return True
    return False


def _labels_of(source: Source, length: int) -> Tensor:
    """Fetch all items one after another for their classes, int64 (N,)."""
    labels = []
    first: object = None
    for index in range(length):
        item = source.item(index)
        first = item if index == 0 else first
        if not isinstance(item, list | tuple) or len(item) != 2:
            raise DataError(f"{source.name}: item {index} is {_kind(item)}; an item has to be (input, target)")
        if unread := unread_in(item):
            raise DataError(say_unreadable(f"{source.name}: item {index}", unread[0]))
        if input_form(item) != input_form(first):
            raise unlike(f"{source.name}: item {index}", item, "item 0", first)
        try:
            labels.append(operator.index(cast(Any, item[1])))
        except USER_CODE_ERRORS as error:
            raise DataError(
                f"{source.name}: item {index} has the target {item[1]!s:.40} ({type(item[1]).__name__}), and item 0"
                " a class; a class is one whole number from 0 on"
            ) from error
    try:
        return torch.tensor(labels)
    except (ValueError, RuntimeError) as error:  # beyond what int64 holds
        index = max(range(length), key=lambda place: abs(labels[place]))
        raise DataError(
            f"{source.name}: item {index} has the target {labels[index]!s:.40}, which no class is; number the classes"
            " from 0 on"
        ) from error


def _stated_labels(source: Source, length: int) -> Tensor | None:
    """All labels without fetching an item, if the data set has them in one of the usual places."""
    dataset = source.dataset
    if isinstance(dataset, Subset):
        whole = _stated_labels(Source(source.name, cast(MapStyle, dataset.dataset)), -1)
        return None if whole is None else part_of(whole, dataset)
    if isinstance(dataset, TensorDataset):
        stated: object = dataset.tensors[1] if len(dataset.tensors) == 2 else None
    else:
        stated = next((value for value in map(source.stated, ("targets", "labels")) if value is not None), None)
    if not isinstance(stated, list | tuple | np.ndarray | Tensor):
        return None
    try:
        labels = torch.as_tensor(stated)
    except (TypeError, ValueError, RuntimeError):  # words, lists of lists, beyond what int64 holds
        return None
    if hindrance(labels):
        return None
    fits = labels.dim() == 1 and length in (-1, len(labels)) and not labels.is_floating_point()
    return labels.to(torch.int64) if fits else None


def _check_alike(name: str, domains: tuple[Domain, ...]) -> None:
    first, *others = _all(domains)
    wanted = _inputs_of(first)
    for one in others:
        found = _inputs_of(one)
        if found != wanted:
            raise DataError(
                f"{one.sources[0].name}: inputs are {found}, and those of {first.sources[0].name} {wanted}; bring them"
                " to one shape and dtype"
            )
        if (one.labels is None) != (first.labels is None):
            raise DataError(
                f"{one.sources[0].name}: targets are {_targets_of(one)}, and those of {first.sources[0].name}"
                f" {_targets_of(first)}; make them of one kind"
            )
    if len({domain.validation is None for domain in domains}) > 1:
        raise DataError(
            f"{_KEY}: {name} gives validation samples for some domains only; give all domains some, or none"
        )


def _inputs_of(items: Items) -> str:
    return described(items.first.inputs, _look_of_input)


def _look_of_input(batch: Tensor) -> str:
    """Dtype and shape of a sample, whose length does not count if it is a sequence."""
    return _look_of(batch).partition(" ")[0] + " of any length" if is_sequence(batch[0]) else _look_of(batch)


def _targets_of(items: Items) -> str:
    return _look_of(items.first.targets) if items.labels is None else "classes"


def _look_of(batch: Tensor) -> str:
    """Dtype and shape of a sample."""
    return f"{str(batch.dtype).removeprefix('torch.')} {tuple(batch.shape[1:])}"


def _items_of(domain: Domain) -> Items:
    """The training samples of ``domain``, which are the user's items."""
    return cast(Items, domain.train)


def _all(domains: tuple[Domain, ...]) -> list[Items]:
    return [cast(Items, part) for domain in domains for part in domain.parts]


def _kind(found: object) -> str:
    return f"a {type(found).__name__}"
