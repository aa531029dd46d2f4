"""Samples of any kind, from a map-style data set whose items are fetched when a batch needs them."""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from fedml_dapper.datasets.finite import at_least_two_bytes, not_finite, say_not_finite
from fedml_dapper.datasets.padding import is_sequence, padded
from fedml_dapper.datasets.readable import hindrance, say_unreadable
from fedml_dapper.datasets.rows import rows_at
from fedml_dapper.datasets.samples import Batch, Samples
from fedml_dapper.errors import USER_CODE_ERRORS, DapperError, DataError, shortened
from fedml_dapper.inputs import Inputs, as_inputs, channels_last, mapped, moved, tensors_of
from fedml_dapper.randomness.seeding import seed_torch

LOGGER = logging.getLogger(__name__)
_WANTED = (
    "an item is (input, target), both tensors, arrays or numbers, of one shape and dtype in all items; sequences of"
    " whole numbers may differ in length"
)
_DEPTH = 3
"""How deep tensors may lie in an item, ``({name: tensor}, target)``, and one more."""
_LONGEST_MESSAGE = 400
"""Most letters of an error of the user's code that are shown."""


class MapStyle(Protocol):
    """A ``torch.utils.data.Dataset`` with a length."""

    def __getitem__(self, index: int, /) -> object:
        """Return one item, ``(input, target)``."""

    def __len__(self) -> int:
        """Number of items."""


@dataclass(frozen=True, eq=False)
class Source:
    """A user's data set, and its name in messages."""

    name: str
    dataset: MapStyle

    def item(self, index: int) -> object:
        """Return the item at ``index``.

        Raises:
            DataError: The data set raises; the message names it.
        """
        try:
            return self.dataset[index]
        except DapperError:
            raise
        except USER_CODE_ERRORS as error:
            raise DataError(f"{self.name}: item {index} cannot be had: {describe_user_error(error)}") from error

    def stated(self, key: str) -> object:
        """Return the data set's attribute ``key``; None where it has none.

        Raises:
            DataError: The data set raises; the message names it.
        """
        try:
            return getattr(self.dataset, key, None)
        except USER_CODE_ERRORS as error:
            raise DataError(f"{self.name}: its `{key}` cannot be had: {describe_user_error(error)}") from error


@dataclass(frozen=True, eq=False)
class Items(Samples):
    """The items of ``sources`` at ``places``, rows (source, index) of int64 (N, 2).

    Inputs and targets are what the data sets give, collated as a ``DataLoader`` does it, but with sequences padded to
    the longest of the batch (``padding``); float64 and float8 become float32. What a data set draws from torch's,
    numpy's or Python's global generator follows from the batch's stream, so that runs repeat.
    """

    sources: tuple[Source, ...]
    places: Tensor
    labels: Tensor | None
    device: torch.device = torch.device("cpu")  # noqa: RUF009  # it cannot change
    seen_whole: bool = False
    """Whether all inputs were checked for NaN and infinity already; otherwise each batch is."""
    warned: set[tuple[str, int]] = field(default_factory=set)
    """Data set and index of the items that a warning was given for."""

    def __len__(self) -> int:
        return len(self.places)

    @property
    def example(self) -> Inputs:
        """The first input."""
        return self.first.inputs

    @property
    def first(self) -> Batch:
        with seeded_everywhere(0):
            return self._collated(self.places[:1])

    def take(self, indices: Tensor) -> Items:
        chosen = indices.cpu()
        return replace(self, places=self.places[chosen], labels=None if self.labels is None else self.labels[chosen])

    def split(self, sizes: Sequence[int]) -> list[Samples]:
        return [self.take(indices) for indices in torch.split(torch.arange(len(self)), list(sizes))]

    def joined(self, others: Sequence[Samples]) -> Items:
        items = [self, *(samples for samples in others if isinstance(samples, Items))]
        labels = [one.labels for one in items if one.labels is not None]
        sources: tuple[Source, ...] = ()
        places = []
        for one in items:
            places.append(one.places + torch.tensor([len(sources), 0]))
            sources += one.sources
        return replace(
            self,
            sources=sources,
            places=torch.cat(places),
            labels=torch.cat(labels) if len(labels) == len(items) else None,
        )

    def to(self, device: torch.device | str) -> Items:
        """Return the same samples with batches on ``device``; the items stay where they are."""
        return self if self.device == torch.device(device) else replace(self, device=torch.device(device))

    def draw(self, indices: Tensor, generator: torch.Generator) -> Batch:
        seed = int(torch.randint(2**32, (), generator=generator))
        return self._fetched(self.places[indices], seed)

    def batches(self, batch_size: int) -> Iterator[Batch]:
        for places in torch.split(self.places, batch_size):
            yield self._fetched(places, 0)

    def pictures(self, indices: Tensor) -> Tensor | None:
        """Inputs of 1 or 3 channels as pictures, from their darkest to their brightest value."""
        if not len(indices):
            return None
        inputs = self._collated(self.places[indices.cpu()]).inputs
        if not isinstance(inputs, Tensor) or inputs.dim() != 4 or inputs.shape[1] not in (1, 3):
            return None
        values = inputs.float().flatten(1)
        low, high = (bound.view(-1, 1, 1, 1) for bound in (values.min(1).values, values.max(1).values))
        scaled = (inputs.float() - low) / (high - low).clamp(min=1e-12)
        return (scaled * 255).round().to(torch.uint8).expand(-1, 3, -1, -1)

    def _fetched(self, places: Tensor, seed: int) -> Batch:
        """The batch at ``places`` on the device; what the data sets draw for it is drawn from ``seed``."""
        batch = self._looked_up(places)
        if batch is None:
            with seeded_everywhere(seed):
                batch = self._collated(places)
        return self._moved(batch)

    def _looked_up(self, places: Tensor) -> Batch | None:
        """What :meth:`_collated` returns, by one look-up, where the items are rows of tensors; None elsewhere."""
        if len(self.sources) > 1:
            return None
        rows = rows_at(self.sources[0].dataset, places[:, 1])
        return None if rows is None else self._as_batch(*rows, places)

    def _collated(self, places: Tensor) -> Batch:
        items = [self.sources[source].item(index) for source, index in places.tolist()]
        if unreadable := unread_in(items[0]):  # collating these may work, and takes torch seconds of preparation
            raise self._unreadable(unreadable[0], items, places)
        try:
            batch = default_collate(padded(items))
        except (TypeError, ValueError, RuntimeError, KeyError) as error:
            raise self._unlike(items, places, error) from error
        if len({input_form(item) for item in items}) > 1:  # collating would drop names, or mix 0 to 255 with 0 to 1
            raise self._unlike(items, places, TypeError("inputs of several dtypes, or of other names"))
        is_pair = isinstance(batch, list | tuple) and len(batch) == 2
        inputs, targets = (_inputs_of(items[0], batch[0]), batch[1]) if is_pair else (None, None)
        if inputs is None or not isinstance(targets, Tensor):
            name, _ = self._place_of(places[0])
            looks = shortened(_described(items[0]))
            raise DataError(
                f"{name}: its items are {looks}; an item has to be (input, target), both tensors, arrays or numbers"
                f"{_way_out(items[0])}"
            )
        unread = next(filter(hindrance, (*tensors_of(inputs), targets)), None)
        if unread is not None:
            raise self._unreadable(unread, items, places)
        return self._as_batch(inputs, targets, places)

    def _as_batch(self, inputs: Inputs, targets: Tensor, places: Tensor) -> Batch:
        inputs = channels_last(mapped(inputs, _at_most_float32))
        targets = _at_most_float32(targets)
        if not self.seen_whole:
            self._warn_of(inputs, places)
        return Batch(inputs, targets if self.labels is None else targets.to(torch.int64))

    def _warn_of(self, inputs: Inputs, places: Tensor) -> None:
        """Warn once for each item that is not finite."""
        for row in not_finite(inputs):
            name, index = self._place_of(places[row])
            if (name, index) not in self.warned:
                self.warned.add((name, index))
                LOGGER.warning("%s", say_not_finite(name, [index], 1))

    def _place_of(self, place: Tensor) -> tuple[str, int]:
        """The name of the data set at ``place``, and the index there."""
        source, index = place.tolist()
        return self.sources[source].name, index

    def _unlike(self, items: Sequence[object], places: Tensor, error: Exception) -> DataError:
        """Return the error for ``items`` that make no batch, which names the first item unlike the one at the start."""
        unread = next((tensor for item in items for tensor in unread_in(item)), None)
        if unread is not None:
            return self._unreadable(unread, items, places)
        looks = [(input_form(item), _described(item)) for item in items]
        by_input = (number for number, (form, _) in enumerate(looks) if form != looks[0][0])
        by_target = (number for number, (_, look) in enumerate(looks) if look != looks[0][1])
        differing = next(by_input, next(by_target, 0))
        name, index = self._place_of(places[differing])
        if differing:
            first, before = self._place_of(places[0])
            other = f"item {before}" if first == name else f"item {before} of {first}"
            return unlike(f"{name}: item {index}", items[differing], other, items[0])
        reason = shortened(" ".join(str(error).split()))
        look = shortened(_described(items[0]))
        return DataError(f"{name}: its items, {look}, make no batch ({reason}); {_WANTED}{_conversion(items[0])}")

    def _unreadable(self, tensor: Tensor, items: Sequence[object], places: Tensor) -> DataError:
        """Return the error for a ``tensor``, in ``items`` or made of them, whose values cannot be read."""
        number = next((number for number, item in enumerate(items) if unread_in(item)), 0)
        name, index = self._place_of(places[number])
        return DataError(say_unreadable(f"{name}: item {index}", tensor))

    def _moved(self, batch: Batch) -> Batch:
        return Batch(moved(batch.inputs, self.device), batch.targets.to(self.device))


def _inputs_of(item: object, collated: object) -> Inputs | None:
    """Return the inputs of a batch whose first item is ``item``; None where these are none.

    A list of numbers is none: it is more likely meant as one tensor than as several.
    """
    given = item[0] if isinstance(item, list | tuple) else None
    if isinstance(given, list | tuple) and not all(isinstance(part, Tensor | np.ndarray) for part in given):
        return None
    return as_inputs(collated)


def input_form(item: object) -> object:
    """Return what the inputs of all items have in common: dtype and shape of each tensor or array, and its name.

    A sequence may have any length.
    """
    return _form_of(item[0]) if isinstance(item, list | tuple) and item else None


def _form_of(part: object, depth: int = _DEPTH) -> object:
    if isinstance(part, Mapping) and depth:
        return frozenset((name, _form_of(value, depth - 1)) for name, value in part.items())
    if isinstance(part, list | tuple) and depth:
        return tuple(_form_of(value, depth - 1) for value in part)
    if isinstance(part, Tensor | np.ndarray):
        shape = "of any length" if is_sequence(part) else tuple(part.shape)
        return str(part.dtype).removeprefix("torch.").replace("float64", "float32"), shape
    return None


def unlike(place: str, item: object, other: str, first: object) -> DataError:
    """Return the error for ``item`` at ``place``, which makes no batch with ``first``, found at ``other``."""
    found = shortened(_described(item))
    return DataError(f"{place} is {found}, and {other} is {shortened(_described(first))}; {_WANTED}")


def unread_in(item: object, depth: int = _DEPTH) -> list[Tensor]:
    """Tensors in an item whose values cannot be read, as far as tensors may lie in it."""
    if isinstance(item, Mapping | list | tuple):
        parts = item.values() if isinstance(item, Mapping) else item
        return [tensor for part in parts for tensor in unread_in(part, depth - 1)] if depth else []
    return [item] if isinstance(item, Tensor) and hindrance(item) else []


def _at_most_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.float64 else at_least_two_bytes(tensor)


def _described(item: object, depth: int = _DEPTH) -> str:
    """Describe an item by kinds, dtypes and shapes, and what lies deeper in it than ``depth`` as a list or dict."""
    if isinstance(item, Mapping) and depth:
        return f"{{{', '.join(f'{name}: {_described(part, depth - 1)}' for name, part in item.items())}}}"
    if isinstance(item, list | tuple) and depth:
        return f"({', '.join(_described(part, depth - 1) for part in item)})"
    if isinstance(item, Tensor | np.ndarray):
        return f"{type(item).__name__} {str(item.dtype).removeprefix('torch.')} {tuple(item.shape)}"
    return type(item).__name__


def _way_out(item: object) -> str:
    """Advice on an item of another form, in brackets or after a semicolon."""
    if not isinstance(item, list | tuple):
        return "; take the target out of the dict: ({...}, target)" if isinstance(item, Mapping) else ""
    if len(item) == 2 and isinstance(item[1], Mapping | list | tuple):
        shown = "{...}" if isinstance(item[0], Mapping) else "input"
        return f"; the target is one tensor, array or number, as in ({shown}, label)"
    if any(isinstance(part, str | bytes) for part in item):
        return " (words are no targets: give each class its number, and data_args.classes their names)"
    if item and isinstance(item[0], list) and all(isinstance(part, int | float) for part in item[0]):
        return "; torch.tensor(input) makes one tensor of a list of numbers"
    if len(item) > 2:
        return "; put inputs of several tensors together: ((first, second), target)"
    return "; an input may be a tuple of tensors, or a dict of them by name" if len(item) == 2 else ""


def _conversion(item: object) -> str:
    """Advice on an item with a part that is no tensor yet, after a semicolon; empty where there is none."""
    parts = item if isinstance(item, list | tuple) else [item]
    if any(hasattr(part, "getpixel") for part in parts):  # a picture of PIL, which need not be installed
        return "; torchvision.transforms.ToTensor() makes a tensor of a picture"
    return ""


def describe_user_error(error: BaseException, file: str | None = None) -> str:
    """Describe an error of the user's code on one line: its kind, its words, and the last line of ``file``, or else the
    last one that is no library's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file]
    own = own or [frame for frame in frames if "site-packages" not in frame.filename and frame.filename != __file__]
    frame = (own or frames)[-1]
    summary = shortened(" ".join(f"{type(error).__name__}: {error}".split()), _LONGEST_MESSAGE).removesuffix(":")
    return f"{summary} ({Path(frame.filename).name}, line {frame.lineno})"


@contextmanager
def seeded_everywhere(seed: int) -> Iterator[None]:
    """Start the global generators of torch, numpy and Python from ``seed``, and restore them afterwards."""
    before_python = random.getstate()
    before_numpy = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed)
        np.random.seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before_python)
            np.random.set_state(before_numpy)
