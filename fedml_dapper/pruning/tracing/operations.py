"""Rules for everything between the layers, as elementary operations: where channels go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from fedml_dapper.models.dispatch_mode import DispatchMode
from fedml_dapper.models.running import first_line, nested_tensor_hint
from fedml_dapper.pruning.tracing.channels import RANGE, SPREAD
from fedml_dapper.pruning.tracing.follower import Follower, Mark, View, no_channels

aten = torch.ops.aten
_SAME_FORM = {
    aten.hardswish, aten.hardswish_, aten.zeros_like, aten.ones_like, aten.full_like, aten.empty_like, aten.rand_like,
    aten.randn_like, aten._to_copy,
}  # fmt: skip
"""Operations whose result has the form of their input, beside those that torch tags as pointwise."""
_PRODUCTS = {aten.mul, aten.mul_, aten.div, aten.div_}
"""Pointwise operations that do not add channels to each other, but let one scale another."""
_MOVES = {
    aten.view, aten._unsafe_view, aten.permute, aten.transpose, aten.t, aten.unsqueeze, aten.squeeze, aten.expand,
    aten.alias, aten.detach, aten.repeat, aten.select, aten.slice, aten.split, aten.split_with_sizes, aten.unbind,
    aten.reshape, aten._reshape_alias, aten.unfold,
}  # fmt: skip
"""Operations that move values without changing any."""
_RESHAPES = {aten.view, aten._unsafe_view, aten.reshape, aten._reshape_alias}
"""Those among them that depend on where values lie in memory."""
_ALONG_AXES = {
    aten.mean, aten.sum, aten.amax, aten.amin, aten.prod, aten.var, aten.std, aten.var_mean, aten._softmax,
    aten._log_softmax, aten.softmax, aten.log_softmax, aten.cumsum, aten.logsumexp, aten.max, aten.min, aten.argmax,
    aten.argmin, aten.linalg_vector_norm, aten.norm, aten.flip, aten.roll, aten.sort, aten.topk,
}  # fmt: skip
"""Operations with an argument for the axes they work along; they treat what lies along the others alike."""
_ON_LAST_AXES = {
    **dict.fromkeys((aten.avg_pool1d, aten.max_pool1d, aten.adaptive_avg_pool1d, aten.adaptive_max_pool1d), 1),
    **dict.fromkeys((aten.upsample_nearest1d, aten.upsample_linear1d, aten._upsample_nearest_exact1d), 1),
    **dict.fromkeys((aten.reflection_pad1d, aten.replication_pad1d), 1),
    **dict.fromkeys((aten.avg_pool2d, aten.max_pool2d_with_indices, aten._adaptive_avg_pool2d), 2),
    **dict.fromkeys((aten.adaptive_max_pool2d, aten.upsample_nearest2d, aten.upsample_bilinear2d), 2),
    **dict.fromkeys((aten.upsample_bicubic2d, aten._upsample_bilinear2d_aa, aten._upsample_bicubic2d_aa), 2),
    **dict.fromkeys((aten._upsample_nearest_exact2d, aten.reflection_pad2d, aten.replication_pad2d), 2),
    **dict.fromkeys((aten.avg_pool3d, aten.max_pool3d_with_indices, aten._adaptive_avg_pool3d), 3),
    **dict.fromkeys((aten.adaptive_max_pool3d, aten.upsample_nearest3d, aten.upsample_trilinear3d), 3),
    **dict.fromkeys((aten._upsample_nearest_exact3d, aten.reflection_pad3d, aten.replication_pad3d), 3),
}
"""Operations that work on the last axes alone, and on how many of them."""
_OTHER_PRODUCTS = {aten.dot: 0, **dict.fromkeys((aten.addmm_, aten.addbmm), 1)}
"""Other products of matrices and vectors, most of them added to something, and the index of their left factor."""
_REPEATED = {aten.expand, aten.repeat}
"""Operations that give weights to each example, as for learnt queries."""


class Operations(DispatchMode):  # type: ignore[no-untyped-call]
    """A mode that follows channels through everything between the layers, as torch's elementary operations."""

    def __init__(self, follower: Follower) -> None:
        super().__init__()
        self._follower = follower

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        results = [each for each in tree_leaves(out) if isinstance(each, Tensor)]
        if func.overloadpacket not in _REPEATED:
            self._follower.record_dependency(tensors, results)
        if not self._follower.paused:
            try:
                with self._follower.looking_at(tensors):
                    self._follow(func, args, kwargs or {}, tensors, out)
            except Exception as error:  # noqa: BLE001  # an operation in a form that its rule does not foresee
                name = func.overloadpacket.__name__
                self._follower.give_up(tensors, f"`{name}` cannot be followed ({first_line(error)})")
        return out

    def _follow(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Tensor], out: Any
    ) -> None:
        follower = self._follower
        packet = func.overloadpacket
        if packet in (aten.mm, aten.bmm):
            self._matrix_product(args[0], args[1], out)
        elif packet in (aten.addmm, aten.baddbmm):
            self._matrix_product(args[1], args[2], out)
            if kwargs.get("beta", 1) != 0:
                self._elementwise([out, args[0]], out, added=True)
        elif packet in (aten.mv, aten.addmv):
            *summand, matrix, vector = args
            self._vector_product(matrix, vector, out)
            self._elementwise([out, *summand], out, added=True)
        elif packet in _OTHER_PRODUCTS:
            left = args[_OTHER_PRODUCTS[packet]]
            summands = left.shape[-1] * (len(left) if packet is aten.addbmm else 1)
            follower.product(no_channels(1), out.numel() * summands)
            follower.give_up(tensors, f"`{packet.__name__}` sums over channels")
        elif not any(each in follower.marks or follower.weight(each) for each in tensors):
            return
        elif torch.Tag.pointwise in func.tags or packet in _SAME_FORM:
            self._elementwise(tensors, out, added=packet not in _PRODUCTS)
        elif packet in (aten.cat, aten.stack):
            self._side_by_side(func, args, kwargs, out)
        elif packet in _MOVES:
            self._moved(func, args, kwargs, out)
        else:
            touched = self._touched(func, args, kwargs)
            if len(tensors) == 1 and touched is not None:
                self._along(tensors[0], touched, out, packet.__name__)
            else:
                follower.give_up(tensors, f"`{packet.__name__}` is not known{nested_tensor_hint(packet.__name__)}")

    def _elementwise(self, tensors: Sequence[Tensor], out: Tensor, added: bool) -> None:
        follower = self._follower
        dims = out.dim()
        found = {
            at: Mark(mark.dim + dims - each.dim(), mark.ids)
            for at, each in enumerate(tensors)
            if (mark := follower.marks.get(each)) is not None
        }
        first = next(iter(found.values()), None)
        for at, each in enumerate(tensors):
            if at not in found and follower.adopt(each, first, dims) and each in follower.marks:
                mark = follower.marks[each]
                found[at] = Mark(mark.dim + dims - each.dim(), mark.ids)
                first = first or found[at]
        if first is None:
            return
        if any(mark.dim != first.dim for mark in found.values()):
            follower.hold([mark.ids for mark in found.values()], "channels lie along different axes")
            return
        for at, each in enumerate(tensors):
            dim = first.dim - dims + each.dim()
            if at in found:
                follower.join(first.ids, found[at].ids, "they meet values that are never cut", added=added)
            elif dim >= 0 and each.shape[dim] > 1:
                follower.hold([first.ids], "they meet values of a fixed size")
        follower.mark(out, first.dim, first.ids)

    def _side_by_side(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> None:
        follower = self._follower
        stacked = func.overloadpacket is aten.stack
        # torch.cat passes over vectors of nothing, with which caches of keys and values begin
        parts = [part for part in args[0] if stacked or part.shape != (0,)]
        where = (kwargs.get("dim", args[1] if len(args) > 1 else 0)) % out.dim()
        marks = [follower.mark_of(part) for part in parts]
        dims = {mark.dim for mark in marks if mark is not None}
        if len(dims) != 1:
            follower.give_up(parts, "parts whose channels lie along different axes are put together")
            return
        [dim] = dims
        ids = [
            no_channels(part.shape[dim]) if mark is None else mark.ids for part, mark in zip(parts, marks, strict=True)
        ]
        if dim == where and not stacked:
            follower.mark(out, dim, torch.cat(ids))
            return
        for each in ids[1:]:
            follower.join(ids[0], each, "they meet parts of a fixed size")
        follower.mark(out, dim + (stacked and where <= dim), ids[0])

    def _moved(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        follower = self._follower
        moved = args[0]
        if self._turned(func, args, kwargs, out):
            return
        mark = follower.mark_of(moved)
        if mark is None:
            return
        roots = self._follower.channels.roots(mark.ids)
        labels = _along_axis(roots, mark.dim, moved).contiguous()
        # moved like the values, the labels say which channel each entry of the results belongs to
        moves = list(zip(tree_leaves(out), tree_leaves(func(labels, *args[1:], **kwargs)), strict=True))
        parts = []
        for result, places in moves:
            varying = _varying(places)
            if follower.by_heads and places.numel() and len(varying) > 1:
                follower.mark(result, varying[-2], self._heads(places, varying))
                continue
            if not places.numel() or len(varying) != 1:
                follower.hold([mark.ids], SPREAD if varying else "a single channel is taken")
                continue
            [dim] = varying
            ids = _line(places, dim)
            follower.mark(result, dim, ids)
            parts.append(ids)
        if len(parts) > 1 and len({len(part) for part in parts}) == 1 and len(torch.cat(parts)) == len(roots):
            follower.channels.split(parts, follower.layer)
        elif any(not bool(torch.isin(roots, each).all()) for each in parts):
            follower.hold([mark.ids], RANGE)

    def _turned(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> bool:
        """Follow a weight whose axes are only put elsewhere, as in ``x @ weight.T``; return False for other moves."""
        follower = self._follower
        moved = args[0]
        name = follower.weight(moved)
        if name is None or moved in follower.marks or not isinstance(out, Tensor):
            return False
        dims: list[int | None] = [None] * out.dim()
        own = [(dim, place[1]) for dim in range(moved.dim()) if (place := follower.place(moved, dim)) is not None]
        several = [(dim, axis) for dim, axis in own if moved.shape[dim] > 1]
        if len(several) < 2:
            return False  # a vector, which is followed as activations are
        for dim, axis in several:
            numbers = torch.arange(moved.shape[dim], device=moved.device)
            labels = _along_axis(numbers, dim, moved)
            labels = func(labels.contiguous() if func.overloadpacket in _RESHAPES else labels, *args[1:], **kwargs)
            match _varying(labels):
                case [found] if dims[found] is None and torch.equal(_line(labels, found), numbers):
                    dims[found] = axis
                case _:
                    return False
        follower.views[out] = View(name, tuple(dims))
        return True

    def _heads(self, places: Tensor, varying: Sequence[int]) -> Tensor:
        """Return the channels along the last but one of the ``varying`` axes, and join those along the others.

        Views of attention end in the axes (heads, channels of a head); an axis for queries, keys and values may stand
        before.
        """
        whole = tuple(slice(None) if dim in varying else 0 for dim in range(places.dim()))
        heads = places[whole].movedim(len(varying) - 2, 0).flatten(1)
        self._follower.join(heads[:, :1].expand_as(heads).flatten(), heads.flatten(), SPREAD)
        return heads[:, 0]

    def _touched(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[set[int], bool] | None:
        """Return the axes along which an operation works, and whether it drops them; None for an unknown operation."""
        packet = func.overloadpacket
        x = args[0]
        if packet in _ON_LAST_AXES:
            return {x.dim() - 1 - each for each in range(_ON_LAST_AXES[packet])}, False
        if packet is aten.constant_pad_nd:
            return {x.dim() - 1 - each // 2 for each, size in enumerate(args[1]) if size}, False
        if packet not in _ALONG_AXES:
            return None
        values = {argument.name: argument.default_value for argument in func._schema.arguments}
        values.update(zip(values, args, strict=False))
        values.update(kwargs)
        dims = values.get("dim", values.get("dims"))
        listed = dims if isinstance(dims, Sequence) else [] if dims is None else [dims]
        axes = {each % x.dim() for each in listed or range(x.dim())}
        return axes, values.get("keepdim") is False

    def _along(self, x: Tensor, touched: tuple[set[int], bool], out: Any, name: str) -> None:
        follower = self._follower
        (axes, dropped) = touched
        mark = follower.mark_of(x)
        if mark is None:
            return
        if mark.dim in axes:
            follower.hold([mark.ids], f"`{name}` works along the channels")
            return
        dim = mark.dim - sum(axis < mark.dim for axis in axes) if dropped else mark.dim
        for result in tree_leaves(out):
            follower.mark(result, dim, mark.ids)

    def _matrix_product(self, left: Tensor, right: Tensor, out: Tensor) -> None:
        follower = self._follower
        rows = out.dim() - 2
        columns = out.dim() - 1
        if self._mapped(left, columns, right, out, columns) or self._mapped(right, rows, left, out, rows):
            return
        inner = left.shape[-1]
        a = follower.marks.get(left)
        b = follower.marks.get(right)
        both = a is not None and b is not None and a.dim == b.dim < rows
        if a is not None and b is not None and both:
            follower.join(a.ids, b.ids, "a matrix product uses a weight")
            follower.channels.attend(a.ids)
            found = a
        elif a is not None and a.dim == rows and b is None:
            found = a
        elif b is not None and b.dim == columns and a is None:
            found = b
        else:
            found = None
            follower.give_up([left, right], "a matrix product sums over channels")
        if found is None:
            follower.product(no_channels(1), out.numel() * inner)
        else:
            for tensor in (left, right):
                follower.keep(tensor, "a matrix product uses a weight")
            follower.product(found.ids, out.numel() * inner)
            follower.mark(out, found.dim, found.ids)

    def _vector_product(self, x: Tensor, vector: Tensor, out: Tensor) -> None:
        """Follow activations times a vector, which may be a parameter: a sum over channels, each times its weight."""
        follower = self._follower
        macs = out.numel() * x.shape[1]
        if not follower.by_example or follower.weight(x) is not None or follower.mark_of(vector) is None:
            follower.product(no_channels(1), macs)
            follower.give_up([x, vector], "a matrix product sums over channels")
            return
        ids = follower.along(x, 1, "a matrix product works along another axis")
        follower.join(ids, follower.along(vector, 0, ""), "they meet values that are never cut")
        if follower.weight(vector) is None:
            follower.product(ids, macs)
        else:
            follower.count(vector, len(out))

    def _mapped(self, x: Tensor, inner: int, matrix: Tensor, out: Tensor, outer: int) -> bool:
        """Follow activations times a parameter, which maps channels as a linear layer does.

        Return False for other products, and where channels lie along the axis of ``x`` that the product leaves alone.

        Args:
            inner: Axis of ``x`` that is summed over.
            outer: Axis of ``out``, and of ``matrix``, along which the channels of the result lie.
        """
        follower = self._follower
        mark = follower.marks.get(x)
        is_activation = follower.by_example and follower.weight(x) is None
        if not is_activation or not follower.is_matrix(matrix) or (mark is not None and mark.dim != inner):
            return False
        summed = 2 * out.dim() - 3 - outer  # the other one of the last two axes
        follower.count(matrix, out.numel() // matrix.shape[outer])
        follower.bind(matrix, summed, no_channels(x.shape[inner]) if mark is None else mark.ids)
        follower.mark(out, outer, follower.produce(matrix, outer))
        return True


def _along_axis(numbers: Tensor, dim: int, like: Tensor) -> Tensor:
    """Return ``numbers`` along the axis ``dim``, repeated to the shape of ``like``."""
    return numbers.view([-1 if each == dim else 1 for each in range(like.dim())]).expand(like.shape)


def _varying(labels: Tensor) -> list[int]:
    """Return the axes along which ``labels`` vary."""
    return [
        dim
        for dim, size in enumerate(labels.shape)
        if size > 1 and bool((labels != labels.narrow(dim, 0, 1)).any())
    ]  # fmt: skip


def _line(labels: Tensor, dim: int) -> Tensor:
    """Return the first line of ``labels`` along an axis."""
    return labels[tuple(slice(None) if each == dim else 0 for each in range(labels.dim()))]
