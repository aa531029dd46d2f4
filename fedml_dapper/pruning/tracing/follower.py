"""State of a network's tracing: which channels lie along its activations, and along its tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from fedml_dapper.pruning.tracing.channels import NONE, Channels

COMPUTED = "a weight is computed"
UNREGISTERED = "a weight is used that is none of the network's parameters, as those of layers in a plain list are not,"


@dataclass(frozen=True, eq=False)
class Mark:
    """The channels along one axis of an activation."""

    dim: int
    ids: Tensor


@dataclass(frozen=True)
class View:
    """A weight seen with its axes in another order, or among others."""

    name: str
    dims: tuple[int | None, ...]
    """Axis of the weight that lies along each axis of the view; None along those that only the view has."""


@dataclass(frozen=True, eq=False)
class Product:
    """A product of two activations: multiply-accumulates per example for each of the channels ``ids``."""

    layer: str
    ids: Tensor
    macs_per_element: int | Fraction


@dataclass
class Trace:
    """What one forward pass says about a network's channels."""

    channels: Channels = field(default_factory=Channels)
    bound: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    """(Tensor, axis) -> the channel of each entry. A tensor with several names has its first one here."""
    producers: set[tuple[str, int]] = field(default_factory=set)
    """(Weight, axis) of filters, which produce channels."""
    partners: dict[str, str] = field(default_factory=dict)
    """Matrix A of an adapter -> its matrix B."""
    borrowed: dict[str, str] = field(default_factory=dict)
    """Weight -> a layer that uses it, though another one holds it."""
    nameless: list[tuple[str, str]] = field(default_factory=list)
    """Layers whose weights are none of the model's parameters, and what they are."""
    macs: dict[str, int | Fraction] = field(default_factory=lambda: defaultdict(int))
    """Weight -> multiply-accumulates per entry and example."""
    products: list[Product] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    """Channels that the network puts out, by output."""
    ran: set[str] = field(default_factory=set)
    """Layers that were called."""

    @property
    def used(self) -> set[str]:
        """Layers that were called, or whose tensors were used."""
        return self.ran | {name.rpartition(".")[0] for name in (*self.macs, *(name for name, _ in self.bound))}


class Follower:
    """The trace so far, and the ways in which layers and operations add to it.

    ``by_heads`` says what happens where a view spreads channels over several axes, such as heads and the channels of
    each head. With it, the channels of a head are joined, and followed on. Without it, all of them are held.
    """

    def __init__(self, model: nn.Module, batch: int, *, by_heads: bool = False) -> None:
        self.by_heads = by_heads
        self.trace = Trace()
        self.channels = self.trace.channels
        self.marks = cast("MutableMapping[Tensor, Mark]", WeakTensorKeyDictionary())
        self.batch = batch
        self.paused = False
        self.by_example = True
        """Whether the running operation is done for each example; one on weights alone is done once per batch."""
        self._of_weights = WeakTensorKeyDictionary()
        self.stack: list[str] = []
        self.views = cast("MutableMapping[Tensor, View]", WeakTensorKeyDictionary())
        self._names: dict[int, str] = {}
        self._parameters = set[str]()
        for name, tensor in model.state_dict(keep_vars=True).items():
            self._names.setdefault(id(tensor), name)
            if isinstance(tensor, nn.Parameter):
                self._parameters.add(name)

    @property
    def layer(self) -> str:
        return self.stack[-1] if self.stack else ""

    def record_dependency(self, given: Sequence[Tensor], results: Iterable[Tensor]) -> None:
        """Note that ``results`` were computed from ``given``."""
        if self._are_weights(given):
            for each in results:
                self._of_weights[each] = None

    @contextmanager
    def looking_at(self, given: Sequence[Tensor]) -> Iterator[None]:
        """Note the tensors given to the operation that is followed in the block, in which our own operations run."""
        before = self.by_example
        self.by_example = not self._are_weights(given)
        try:
            yield
        finally:
            self.by_example = before

    def _are_weights(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether these are parameters and buffers, or were computed from such alone."""
        return bool(tensors) and all(self.name(each) is not None or each in self._of_weights for each in tensors)

    def name(self, tensor: Tensor | None) -> str | None:
        """Return the model's name for a parameter or buffer; None for other tensors."""
        return self._names.get(id(tensor))

    def weight(self, tensor: Tensor) -> str | None:
        """Return the model's name for the parameter or buffer that ``tensor`` is, or is a view of; None for others."""
        name = self.name(tensor)
        return self.views[tensor].name if name is None and tensor in self.views else name

    def place(self, tensor: Tensor | None, dim: int) -> tuple[str, int] | None:
        """Return the parameter or buffer, and its axis, that lies along an axis of ``tensor``; None for other tensors.

        ``tensor`` may be a view of it.
        """
        name = self.name(tensor)
        if name is not None:
            return name, dim
        view = None if tensor is None else self.views.get(tensor)
        axis = None if view is None else view.dims[dim]
        return None if view is None or axis is None else (view.name, axis)

    def is_matrix(self, tensor: Tensor) -> bool:
        """Return whether the last two axes of ``tensor`` are those of a parameter, and all others repeat it."""
        *others, rows, columns = (self.place(tensor, dim) for dim in range(tensor.dim()))
        repeats = all(place is None or tensor.shape[dim] == 1 for dim, place in enumerate(others))
        return repeats and rows is not None and columns is not None and rows[0] in self._parameters

    def mark(self, tensor: Tensor, dim: int, ids: Tensor) -> None:
        """Note that the channels ``ids`` lie along ``dim`` of an activation, if there are several of them."""
        if len(ids) > 1 and bool((ids >= 0).any()):
            self.marks[tensor] = Mark(dim, ids)

    def hold(self, ids: Iterable[Tensor], why: str) -> None:
        """Never drop these channels, because of the layer that runs."""
        for each in ids:
            self.channels.hold(each, self.layer, why)

    def join(self, left: Tensor, right: Tensor, why: str, *, added: bool = False) -> None:
        self.channels.join(left, right, self.layer, why, added=added)

    def bind(self, tensor: Tensor | None, dim: int, ids: Tensor) -> None:
        """Note that the entries of a parameter or buffer along ``dim`` belong to the channels ``ids``."""
        place = self.place(tensor, dim)
        if place is None:
            if tensor is not None:
                self.hold([ids, self._ids(tensor)], _nameless(tensor))
        elif place in self.trace.bound:
            self.join(self.trace.bound[place], ids, "a weight is used in several ways")
        else:
            self.trace.bound[place] = ids

    def _ids(self, tensor: Tensor) -> Tensor:
        mark = self.marks.get(tensor)
        return no_channels(0) if mark is None else mark.ids

    def keep(self, tensor: Tensor | None, why: str) -> None:
        """Note that a parameter or buffer is never cut."""
        for dim, size in enumerate(() if tensor is None else tensor.shape):
            place = self.place(tensor, dim)
            if place is not None:
                self.hold([self.trace.bound.get(place, no_channels(0))], why)
                self.trace.bound[place] = no_channels(size)

    def give_up(self, tensors: Iterable[Tensor], why: str) -> None:
        """Hold all channels of ``tensors``, as they reach an operation whose effect on channels is not known."""
        for tensor in tensors:
            if tensor in self.marks:
                self.hold([self.marks[tensor].ids], why)
            self.keep(tensor, why)

    def produce(self, weight: Tensor, dim: int) -> Tensor:
        """Return the channels of a weight's filters: new ones at its first use."""
        place = self.place(weight, dim)
        if place is None:
            self.trace.nameless.append((self.layer, _nameless(weight)))
            self.hold([self._ids(weight)], _nameless(weight))
            return no_channels(weight.shape[dim])
        self.trace.producers.add(place)
        if holder(place[0]) != self.layer:
            self.trace.borrowed[place[0]] = self.layer
        if place not in self.trace.bound:
            self.trace.bound[place] = self.channels.fresh(weight.shape[dim])
        return self.trace.bound[place]

    def count(self, weight: Tensor, uses: int | Fraction) -> None:
        """Note that each entry of a weight is multiplied ``uses`` times in the pass, on average."""
        name = self.weight(weight)
        if name is None:
            self.product(no_channels(weight.numel()), uses * weight.numel())
        elif self.by_example:
            self.trace.macs[name] += _share(uses, self.batch)

    def product(self, ids: Tensor, macs: int | Fraction) -> None:
        """Note a product of activations with the channels ``ids`` and so many multiply-accumulates in all."""
        if self.by_example:
            self.trace.products.append(Product(self.layer, ids, _share(macs, len(ids) * self.batch)))

    def mark_of(self, x: Tensor) -> Mark | None:
        """Return the channels of an activation, or of a parameter that is used as one."""
        if x not in self.marks:
            self.adopt(x, None, x.dim())
        return self.marks.get(x)

    def along(self, x: Tensor, dim: int, why: str) -> Tensor:
        """Return the channels along the axis ``dim`` of ``x``; channels along another axis are held."""
        mark = self.mark_of(x)
        if mark is not None and mark.dim == dim:
            return mark.ids
        if mark is not None:
            self.hold([mark.ids], why)
        return no_channels(x.shape[dim])

    def whole_blocks(self, ids: Tensor, blocks: int, why: str) -> Tensor:
        """Join neighbouring channels block by block; NONE for blocks with an entry that is never cut."""
        per_block = ids.view(blocks, -1)
        self.join(per_block[:, :1].expand_as(per_block).flatten(), ids, why)
        return torch.where((per_block >= 0).all(dim=1), per_block[:, 0], NONE)

    def adopt(self, tensor: Tensor, like: Mark | None, dims: int) -> bool:
        """Bind a parameter that is used as an activation, and return False where ``tensor`` is no parameter.

        It is cut as the mark ``like`` of what it is combined with, in a result of ``dims`` axes, or else along its only
        axis.
        """
        if tensor in self.views:
            self.keep(tensor, "a parameter has a form of its own")
            return True
        name = self.name(tensor)
        if name is None:
            return False
        sizes = [dim for dim, size in enumerate(tensor.shape) if size > 1]
        dim = -1 if like is None else like.dim - dims + tensor.dim()
        if any((name, each) in self.trace.bound for each in range(tensor.dim())):
            if sizes and len(sizes) == 1 and (name, sizes[0]) in self.trace.bound:
                self.mark(tensor, sizes[0], self.trace.bound[name, sizes[0]])
            else:
                self.keep(tensor, "a weight is used in several ways")
        elif like is not None and dim in sizes:
            for each, size in enumerate(tensor.shape):
                self.bind(tensor, each, like.ids if each == dim else no_channels(size))
            self.mark(tensor, dim, like.ids)
        elif like is None and len(sizes) == 1:
            self.bind(tensor, sizes[0], self.channels.fresh(tensor.shape[sizes[0]], produced=False))
            self.mark(tensor, sizes[0], self.trace.bound[name, sizes[0]])
        else:
            self.keep(tensor, "a parameter has a form of its own")
        return True


def holder(tensor: str) -> str:
    """Return the layer that holds a parameter or buffer."""
    return tensor.rpartition(".")[0]


def _nameless(weight: Tensor) -> str:
    """Return what a weight is that has no name in the network."""
    return UNREGISTERED if isinstance(weight, nn.Parameter) else COMPUTED


def _share(macs: int | Fraction, among: int) -> int | Fraction:
    """Return the share as an integer if it is whole, as integers are faster."""
    share = Fraction(macs, among)
    return share.numerator if share.denominator == 1 else share


def no_channels(size: int) -> Tensor:
    """Return the channels of an axis that has none."""
    return torch.full((size,), NONE)
