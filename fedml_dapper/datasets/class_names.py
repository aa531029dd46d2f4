"""Classes of a user's own data: their names, their number, and which of them no sample has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from fedml_dapper.config.class_names import fault_of_names
from fedml_dapper.datasets.class_numbers import count_classes
from fedml_dapper.datasets.items import Items
from fedml_dapper.errors import DataError, shortened

_MOST_NAMED = 5


def names_of_classes(where: str, parts: Sequence[Items], asked: int | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the classes, by label.

    Args:
        where: Beginning of error messages.
        parts: All parts of all domains.
        asked: Names or number of classes from the settings. Without them the names that the data sets state are taken,
            else numbers.

    Raises:
        DataError: Data sets state different names, or a part has a label beyond the last class, or numbers that mean
            other classes than the names that were asked for, as where a folder lacks a class.
    """
    labelled = [one.labels for one in parts if one.labels is not None]
    if asked is not None:
        _check_numbers(where, parts, asked)
    stated = asked if asked is not None else _stated_by_all(where, parts)
    if stated is None:
        return _numbered(count_classes(where, labelled))
    classes = _numbered(stated) if isinstance(stated, int) else tuple(stated)
    highest = max((int(labels.max()) for labels in labelled), default=-1)
    if highest >= len(classes):
        raise DataError(
            f"{where} has the class {highest}{_first_place(highest, parts)}, and there are {len(classes)} classes;"
            " they count from 0 (data_args.classes says how many)"
        )
    return classes


def _check_numbers(where: str, parts: Sequence[Items], asked: int | Sequence[str]) -> None:
    """Raise :class:`DataError` where data sets count some of the same classes otherwise.

    A data set that has some of the classes numbers those that it has: where one is missing, all later numbers differ.
    """
    known = dict[str, tuple[str, ...]]()
    if not isinstance(asked, int):
        known["data_args.classes"] = tuple(asked)
    for source in (source for one in parts for source in one.sources):
        try:
            names = _names(source.stated("classes"))
        except DataError:  # the classes that were asked for take the place of those that it cannot state
            continue
        for place, others in known.items():
            if names is not None and _counts_otherwise(names, others):
                raise DataError(
                    f"{where}: {source.name} states the classes {_listed(names)} and {place} {_listed(others)}, so a"
                    " number means one class here and another there; give all data sets the numbers of one list"
                )
        if names is not None:
            known.setdefault(source.name, names)


def _counts_otherwise(names: Sequence[str], others: Sequence[str]) -> bool:
    """Whether one of two lists is part of the other, and a name that both have stands at two places."""
    is_part = set(names) < set(others) or set(others) < set(names)
    return is_part and any(name in others and others.index(name) != place for place, name in enumerate(names))


def note_on_names(parts: Sequence[Items]) -> str | None:
    """Return a warning on the first data set whose ``classes`` cannot be read as names; None without one."""
    for one in parts:
        for source in one.sources:
            stated = source.stated("classes")
            if stated is not None and _names(stated) is None:
                return (
                    f"{source.name}: its `classes`, a {type(stated).__name__}, name no classes; a list has the name of"
                    " class 0 first (or set data_args.classes)"
                )
    return None


def note_on_order(parts: Sequence[Items], asked: Sequence[str]) -> str | None:
    """Return a warning on the first data set that states the names ``asked`` in another order, or None.

    Its targets are numbers in its own order, so results would be read under wrong names.
    """
    for one in parts:
        for source in one.sources:
            try:
                names = _names(source.stated("classes"))
            except DataError:  # the names that were asked for take their place
                continue
            if names is not None and names != tuple(asked) and set(names) == set(asked):
                return (
                    f"{source.name}: its `classes` are {_listed(names)}, and data_args.classes has the same in"
                    f" another order, {_listed(asked)}; targets are numbers, so leave the setting out unless it is"
                    " right"
                )
    return None


def note_on_missing(parts: Sequence[Items], classes: Sequence[str]) -> str | None:
    """Return a warning if no sample has one of the ``classes``, which are in the order of labels; None otherwise.

    ``parts`` are those that clients train on.
    """
    labelled = [one.labels for one in parts if one.labels is not None]
    if not labelled:
        return None
    occurring = set(torch.unique(torch.cat(labelled)).tolist())
    missing = [label for label in range(len(classes)) if label not in occurring]
    if not missing:
        return None
    named = ", ".join(str(label) for label in missing[:_MOST_NAMED])
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    note = f"no training item of any domain has the class {named}{more}, so nothing trains the network's output for it"
    if missing[0] == 0:
        note += "; classes count from 0: where yours count from 1, give target - 1"
    return note


def _stated_by_all(where: str, parts: Sequence[Items]) -> tuple[str, ...] | None:
    found = dict[str, tuple[str, ...]]()
    for source in (source for one in parts for source in one.sources):
        names = _names(source.stated("classes"))
        if names is not None:
            if fault := fault_of_names(names):
                raise DataError(f"{source.name}: its `classes` name {fault}; mend them, or set data_args.classes")
            found[source.name] = names
    if len(set(found.values())) > 1:
        (first, ones), (second, others) = next((a, b) for a in found.items() for b in found.items() if a[1] != b[1])
        raise DataError(f"{where}: classes differ: {_listed(ones)} in {first}, {_listed(others)} in {second}")
    return next(iter(found.values()), None)


def _names(stated: object) -> tuple[str, ...] | None:
    """Read names by label from a list, an array, or a dict from or to labels; None from anything else."""
    if isinstance(stated, np.ndarray):
        stated = stated.tolist()
    elif isinstance(stated, Mapping):
        stated = _by_label(stated)
    if not isinstance(stated, list | tuple) or not stated or any(isinstance(one, bytes) for one in stated):
        return None
    return tuple(map(str, stated))


def _listed(names: Sequence[str]) -> str:
    return shortened(", ".join(names))


def _by_label(stated: Mapping[object, object]) -> list[object] | None:
    """Order the names of ``{name: label}`` or ``{label: name}``; None where the labels are not 0, 1, 2 ..."""
    names = {key: name for key, name in stated.items() if isinstance(key, int)}
    names = names or {label: name for name, label in stated.items() if isinstance(label, int)}
    return [names[label] for label in range(len(names))] if names.keys() == set(range(len(stated))) else None


def _first_place(label: int, parts: Sequence[Items]) -> str:
    """The first sample of the class ``label``, in brackets, for an error."""
    for one in parts:
        if one.labels is not None and (found := torch.nonzero(one.labels == label)).numel():
            return f" ({one.sources[0].name}, item {int(found[0])})"
    return ""


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(str(label) for label in range(count))
