"""Follows a network's channels through one forward pass.

Every activation is marked with the channels that lie along one of its axes: an id for each entry. Layers with weights
are seen as a whole (:class:`_Layers`), and say which rows and columns of their weights belong to which channels. All
else is seen as the elementary operations that it comes down to (:class:`_Operations`), so ids move as values do,
whatever is concatenated, flattened or permuted. An operation that is not known here holds the channels that reach it:
they are never cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from fedml_dapper.pruning.channels import NONE, Channels
from fedml_dapper.pruning.running import running

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Mark:
    """The channels along one axis of an activation."""

    dim: int
    ids: Tensor


@dataclass(frozen=True, eq=False)
class Product:
    """Activations multiplied with each other: so many multiply-accumulates per example for each of ``ids``."""

    layer: str
    ids: Tensor
    macs_per_element: int


@dataclass
class Trace:
    """What one forward pass says about a network."""

    channels: Channels = field(default_factory=Channels)
    bound: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    """Tensor and axis -> the channel of each entry. Of a tensor with several names, the first."""
    producers: set[tuple[str, int]] = field(default_factory=set)
    """Weights and the axis of their filters."""
    macs: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Weight -> multiply-accumulates per entry and example."""
    products: list[Product] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    """Ids of the channels that the network puts out."""


@torch.no_grad()
def follow(model: nn.Module, example: Tensor) -> Trace:
    """Run ``model`` on ``example`` and follow its channels."""
    follower = _Follower(model, len(example) if example.dim() else 1)
    with running(model, follower.stack), _Layers(follower), _Operations(follower):
        output = model(example)
    for tensor in tree_leaves(output):
        if isinstance(tensor, Tensor) and tensor in follower.marks:
            follower.trace.outputs.append(follower.marks[tensor].ids)
    return follower.trace


class _Follower:
    """The trace so far, and what both views of the pass do to it."""

    def __init__(self, model: nn.Module, batch: int) -> None:
        self.trace = Trace()
        self.channels = self.trace.channels
        self.marks: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self.batch = batch
        self.paused = False
        self.stack: list[str] = []
        self._names: dict[int, str] = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            self._names.setdefault(id(tensor), name)

    @property
    def layer(self) -> str:
        return self.stack[-1] if self.stack else ""

    def name(self, tensor: Tensor | None) -> str | None:
        """What the model calls a parameter or buffer."""
        return self._names.get(id(tensor))

    def mark(self, tensor: Tensor, dim: int, ids: Tensor) -> None:
        if len(ids) > 1 and bool((ids >= 0).any()):
            self.marks[tensor] = Mark(dim, ids)

    def hold(self, ids: Iterable[Tensor], why: str) -> None:
        for each in ids:
            self.channels.hold(each, self.layer, why)

    def join(self, left: Tensor, right: Tensor, why: str, *, added: bool = False) -> None:
        self.channels.join(left, right, self.layer, why, added=added)

    def bind(self, tensor: Tensor | None, dim: int, ids: Tensor) -> None:
        """Say that the entries of a parameter or buffer along ``dim`` belong to ``ids``."""
        name = self.name(tensor)
        if name is None:
            if tensor is not None:
                self.hold([ids, self._ids(tensor)], "a weight that is computed")
        elif (name, dim) in self.trace.bound:
            self.join(self.trace.bound[name, dim], ids, "a weight with several uses")
        else:
            self.trace.bound[name, dim] = ids

    def _ids(self, tensor: Tensor) -> Tensor:
        mark = self.marks.get(tensor)
        return _none(0) if mark is None else mark.ids

    def keep(self, tensor: Tensor | None, why: str) -> None:
        """Say that a parameter or buffer is never cut."""
        name = self.name(tensor)
        if name is not None and tensor is not None:
            for dim, size in enumerate(tensor.shape):
                self.hold([self.trace.bound.get((name, dim), _none(0))], why)
                self.trace.bound[name, dim] = _none(size)

    def produce(self, weight: Tensor, dim: int) -> Tensor:
        """The ids of a weight's filters: new ones at its first use."""
        name = self.name(weight)
        if name is None:
            self.hold([self._ids(weight)], "a weight that is computed")
            return _none(weight.shape[dim])
        self.trace.producers.add((name, dim))
        if (name, dim) not in self.trace.bound:
            self.trace.bound[name, dim] = self.channels.fresh(weight.shape[dim])
        return self.trace.bound[name, dim]

    def count(self, weight: Tensor, uses: int) -> None:
        """Note that each entry of a weight is multiplied ``uses`` times in the pass."""
        name = self.name(weight)
        if name is None:
            self.product(_none(weight.numel()), uses * weight.numel())
        else:
            self.trace.macs[name] += uses // self.batch

    def product(self, ids: Tensor, macs: int) -> None:
        self.trace.products.append(Product(self.layer, ids, macs // (len(ids) * self.batch)))

    def seen(self, x: Tensor) -> Mark | None:
        """The channels of an activation, or of a parameter that is used as one."""
        if x not in self.marks:
            self.adopt(x, None, x.dim())
        return self.marks.get(x)

    def along(self, x: Tensor, dim: int, why: str) -> Tensor:
        """The ids along one axis of ``x``; those along another are held."""
        mark = self.seen(x)
        if mark is not None and mark.dim == dim:
            return mark.ids
        if mark is not None:
            self.hold([mark.ids], why)
        return _none(x.shape[dim])

    def whole_blocks(self, ids: Tensor, blocks: int, why: str) -> Tensor:
        """Keep or drop blocks of neighbours together; NONE for blocks with an entry that is never cut."""
        per_block = ids.view(blocks, -1)
        self.join(per_block[:, :1].expand_as(per_block).flatten(), ids, why)
        return torch.where((per_block >= 0).all(dim=1), per_block[:, 0], NONE)

    def adopt(self, tensor: Tensor, like: Mark | None, dims: int) -> bool:
        """Cut a free parameter as what it is combined with, or else along its only axis; False if it is none."""
        name = self.name(tensor)
        if name is None:
            return False
        sizes = [dim for dim, size in enumerate(tensor.shape) if size > 1]
        dim = -1 if like is None else like.dim - dims + tensor.dim()
        if any((name, each) in self.trace.bound for each in range(tensor.dim())):
            if sizes and len(sizes) == 1 and (name, sizes[0]) in self.trace.bound:
                self.mark(tensor, sizes[0], self.trace.bound[name, sizes[0]])
            else:
                self.keep(tensor, "a weight with several uses")
        elif like is not None and dim in sizes:
            for each, size in enumerate(tensor.shape):
                self.bind(tensor, each, like.ids if each == dim else _none(size))
            self.mark(tensor, dim, like.ids)
        elif like is None and len(sizes) == 1:
            self.bind(tensor, sizes[0], self.channels.fresh(tensor.shape[sizes[0]]))
            self.mark(tensor, sizes[0], self.trace.bound[name, sizes[0]])
        else:
            self.keep(tensor, "a parameter of a form of its own")
        return True


def _none(size: int) -> Tensor:
    return torch.full((size,), NONE)


class _Layers(TorchFunctionMode):
    """Layers with weights, as the functions of :mod:`torch.nn.functional` that they call."""

    def __init__(self, follower: _Follower) -> None:
        super().__init__()
        self._follower = follower
        self._rules: Mapping[object, Callable[..., None]] = {
            **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), self._convolution),
            **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), self._transposed),
            **dict.fromkeys((F.batch_norm, F.instance_norm), self._channel_norm),
            **dict.fromkeys((F.layer_norm, F.rms_norm), self._layer_norm),
            F.linear: self._linear,
            F.group_norm: self._group_norm,
            F.prelu: self._prelu,
            F.embedding: self._embedding,
            F.multi_head_attention_forward: self._attention,
            F.scaled_dot_product_attention: self._dot_product,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = self._rules.get(func)
        if rule is None or self._follower.paused:
            return func(*args, **kwargs)
        self._follower.paused = True
        try:
            out = func(*args, **kwargs)
        finally:
            self._follower.paused = False
        rule(out, *args, **kwargs)
        return out

    def _convolution(
        self, out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: object = 1,
        padding: object = 0, dilation: object = 1, groups: int = 1,
    ) -> None:  # fmt: skip
        to, dim = self._follower, input.dim() - weight.dim() + 1
        to.count(weight, out.numel() // weight.shape[0])
        ids = to.along(input, dim, "a convolution over another axis")
        if groups == 1:
            to.bind(weight, 1, ids)
            rows = to.produce(weight, 0)
        else:
            rows = self._grouped(ids, weight, groups, weight.shape[0] // groups)
            to.bind(weight, 0, rows)
        if bias is not None:
            to.bind(bias, 0, rows)
        to.mark(out, dim, rows)

    def _transposed(
        self, out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: object = 1,
        padding: object = 0, output_padding: object = 0, groups: int = 1, dilation: object = 1,
    ) -> None:  # fmt: skip
        to, dim = self._follower, input.dim() - weight.dim() + 1
        to.count(weight, input.numel() // weight.shape[0])
        ids = to.along(input, dim, "a convolution over another axis")
        if groups == 1:
            to.bind(weight, 0, ids)
            rows = to.produce(weight, 1)
        else:
            rows = self._grouped(ids, weight, groups, weight.shape[1])
            to.bind(weight, 0, ids)
        if bias is not None:
            to.bind(bias, 0, rows)
        to.mark(out, dim, rows)

    def _grouped(self, ids: Tensor, weight: Tensor, groups: int, filters: int) -> Tensor:
        """The output ids of a grouped convolution, whose groups stay or go as a whole."""
        name = self._follower.name(weight)
        if name is not None:
            self._follower.trace.producers.add((name, 0))
        blocks = self._follower.whole_blocks(ids, groups, "a grouped convolution")
        return blocks.repeat_interleave(filters)

    def _linear(self, out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
        to, last = self._follower, input.dim() - 1
        to.count(weight, out.numel() // weight.shape[0])
        mark = to.seen(input)
        if mark is not None and mark.dim != last:  # mixes positions, each channel by itself
            for tensor in (weight, bias):
                to.keep(tensor, "a linear layer over another axis")
            to.mark(out, mark.dim, mark.ids)
            return
        to.bind(weight, 1, to.along(input, last, ""))
        rows = to.produce(weight, 0)
        if bias is not None:
            to.bind(bias, 0, rows)
        to.mark(out, last, rows)

    def _channel_norm(
        self, out: Tensor, input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
        weight: Tensor | None = None, bias: Tensor | None = None, *_: object, **__: object,
    ) -> None:  # fmt: skip
        self._norm(out, input, 1, {0: (weight, bias, running_mean, running_var)})

    def _layer_norm(
        self, out: Tensor, input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
        bias: Tensor | None = None, *_: object, **__: object,
    ) -> None:  # fmt: skip
        to, mark = self._follower, self._follower.seen(input)
        first = input.dim() - len(normalized_shape)
        if mark is not None and mark.dim >= first:
            tensors = (weight, bias if isinstance(bias, Tensor) else None)  # rms_norm has none, but its epsilon there
            self._norm(out, input, mark.dim, {mark.dim - first: tensors})
            return
        if weight is not None:
            to.count(weight, 2 * out.numel() // weight.numel())
        for tensor in (weight, bias):
            if isinstance(tensor, Tensor):
                to.keep(tensor, "a norm over another axis")
        if mark is not None:
            to.mark(out, mark.dim, mark.ids)

    def _group_norm(
        self, out: Tensor, input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
        *_: object, **__: object,
    ) -> None:  # fmt: skip
        mark = self._follower.seen(input)
        if mark is not None and mark.dim == 1:
            self._follower.whole_blocks(mark.ids, num_groups, "a group norm")
        self._norm(out, input, 1, {0: (weight, bias)})

    def _norm(self, out: Tensor, input: Tensor, dim: int, tensors: Mapping[int, Sequence[Tensor | None]]) -> None:
        """A norm whose tensors have their channels along the axis that is their key."""
        to = self._follower
        ids = to.along(input, dim, "a norm over another axis")
        [(axis, present)] = ((axis, [each for each in some if each is not None]) for axis, some in tensors.items())
        if not present:
            to.hold([ids], "a norm without tensors to follow")
            return
        for tensor in present:
            for each, size in enumerate(tensor.shape):
                to.bind(tensor, each, ids if each == axis else _none(size))
        to.count(present[0], 2 * out.numel() // present[0].numel())
        to.mark(out, dim, ids)

    def _prelu(self, out: Tensor, input: Tensor, weight: Tensor) -> None:
        to, mark = self._follower, self._follower.seen(input)
        if weight.numel() > 1:
            to.bind(weight, 0, to.along(input, 1, "PReLU over another axis"))
        if mark is not None and (weight.numel() == 1 or mark.dim == 1):
            to.mark(out, mark.dim, mark.ids)

    def _embedding(self, out: Tensor, input: Tensor, weight: Tensor, *_: object, **__: object) -> None:
        self._follower.bind(weight, 0, _none(weight.shape[0]))
        self._follower.mark(out, out.dim() - 1, self._follower.produce(weight, 1))

    def _attention(
        self, out: tuple[Tensor, Tensor | None], query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int,
        num_heads: int, in_proj_weight: Tensor | None, in_proj_bias: Tensor | None, bias_k: Tensor | None,
        bias_v: Tensor | None, add_zero_attn: bool, dropout_p: float, out_proj_weight: Tensor,
        out_proj_bias: Tensor | None, *_: object, use_separate_proj_weight: bool = False, **more: object,
    ) -> None:  # fmt: skip
        to, last = self._follower, query.dim() - 1
        positions = [x.numel() // x.shape[last] for x in (query, key, value)]
        batch = query.shape[1] if query.dim() == 3 else 1
        scores = 2 * positions[0] * positions[1] // batch  # Q K^T and A V, for each channel of each head
        ids = [to.along(x, last, "attention over another axis") for x in (query, key, value)]
        to.count(out_proj_weight, positions[0])
        unusual = in_proj_weight is None or use_separate_proj_weight or bias_k is not None or add_zero_attn
        if unusual or not ids[0].shape == ids[1].shape == ids[2].shape:
            to.hold(ids, "attention with keys or values of a form of their own")
            separate = [more.get(f"{each}_proj_weight") for each in "qkv"]
            weights = separate if in_proj_weight is None or use_separate_proj_weight else in_proj_weight.chunk(3)
            for weight, count in zip(weights, positions, strict=True):
                if isinstance(weight, Tensor):
                    to.count(weight, count)
            to.product(_none(1), scores * query.shape[last])
        else:
            assert in_proj_weight is not None
            to.join(ids[0], ids[1], "attention")
            to.join(ids[0], ids[2], "attention")
            to.bind(in_proj_weight, 1, ids[0])
            to.count(in_proj_weight, sum(positions) // 3)
            head_dim = query.shape[last] // num_heads
            heads = to.channels.fresh(num_heads)
            name = to.name(in_proj_weight)
            if name is not None:
                to.trace.producers.add((name, 0))
            rows = heads.repeat_interleave(head_dim)
            for tensor in (in_proj_weight, in_proj_bias):
                if tensor is not None:
                    to.bind(tensor, 0, rows.repeat(3))
            to.bind(out_proj_weight, 1, rows)
            to.product(heads, scores * query.shape[last])
        rows = to.produce(out_proj_weight, 0)
        if out_proj_bias is not None:
            to.bind(out_proj_bias, 0, rows)
        to.mark(out[0], last, rows)

    def _dot_product(self, out: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> None:
        to, inputs = self._follower, (query, key, value)
        marks = [to.seen(x) for x in inputs]
        macs = query.numel() * key.shape[-2] + out.numel() * key.shape[-2]
        before = [mark is not None and mark.dim < x.dim() - 2 for mark, x in zip(marks, inputs, strict=True)]
        first = marks[0]
        if first is not None and all(before) and all(m is not None and m.dim == first.dim for m in marks):
            for mark in marks[1:]:
                if mark is not None:
                    to.join(first.ids, mark.ids, "attention")
            to.product(first.ids, macs)
            to.mark(out, first.dim, first.ids)
            return
        to.product(_none(1), macs)
        of_values = marks[2]
        if of_values is not None and of_values.dim == value.dim() - 1 and marks[0] is None and marks[1] is None:
            to.mark(out, of_values.dim, of_values.ids)
        else:
            to.hold([mark.ids for mark in marks if mark is not None], "attention that is not a layer of torch")


_SAME_FORM = {
    aten.hardswish, aten.hardswish_, aten.zeros_like, aten.ones_like, aten.full_like, aten.empty_like, aten.rand_like,
    aten.randn_like,
}  # fmt: skip
"""Beside what torch tags as pointwise."""
_PRODUCTS = {aten.mul, aten.mul_, aten.div, aten.div_}
"""Pointwise operations that do not add channels to each other, but let one scale another."""
_MOVES = {
    aten.view, aten._unsafe_view, aten.permute, aten.transpose, aten.t, aten.unsqueeze, aten.squeeze, aten.expand,
    aten.alias, aten.detach, aten.repeat, aten.select, aten.slice, aten.split, aten.split_with_sizes, aten.unbind,
    aten.reshape, aten._reshape_alias, aten.unfold,
}  # fmt: skip
"""Operations that move values and change none."""
_ALONG_AXES = {
    aten.mean, aten.sum, aten.amax, aten.amin, aten.prod, aten.var, aten.std, aten.var_mean, aten._softmax,
    aten._log_softmax, aten.softmax, aten.log_softmax, aten.cumsum, aten.logsumexp, aten.max, aten.min, aten.argmax,
    aten.argmin, aten.linalg_vector_norm, aten.norm, aten.flip, aten.roll, aten.sort, aten.topk,
}  # fmt: skip
"""Operations with an argument that says along which axes they work; they treat what lies along the others alike."""
_ON_LAST_AXES = {
    **dict.fromkeys((aten.avg_pool1d, aten.max_pool1d, aten.upsample_nearest1d, aten.upsample_linear1d), 1),
    **dict.fromkeys((aten.avg_pool2d, aten.max_pool2d_with_indices, aten._adaptive_avg_pool2d), 2),
    **dict.fromkeys((aten.adaptive_max_pool2d, aten.upsample_nearest2d, aten.upsample_bilinear2d), 2),
    **dict.fromkeys((aten.upsample_bicubic2d, aten._upsample_bilinear2d_aa, aten._upsample_nearest_exact2d), 2),
    **dict.fromkeys((aten.avg_pool3d, aten.max_pool3d_with_indices, aten._adaptive_avg_pool3d), 3),
    **dict.fromkeys((aten.adaptive_max_pool3d, aten.upsample_nearest3d, aten.upsample_trilinear3d), 3),
    **dict.fromkeys((aten.reflection_pad1d, aten.replication_pad1d), 1),
    **dict.fromkeys((aten.reflection_pad2d, aten.replication_pad2d), 2),
    **dict.fromkeys((aten.reflection_pad3d, aten.replication_pad3d), 3),
    **dict.fromkeys((aten.adaptive_avg_pool1d, aten.adaptive_max_pool1d), 1),
}
"""Operations that work on so many of the last axes."""


class _Operations(TorchDispatchMode):
    """Everything between the layers, as torch's elementary operations."""

    def __init__(self, follower: _Follower) -> None:
        super().__init__()
        self._follower = follower

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self._follower.paused:
            self._follow(func, args, kwargs or {}, out)
        return out

    def _follow(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        to, packet = self._follower, func.overloadpacket
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if packet in (aten.mm, aten.bmm):
            self._matrix_product(*args, out)
        elif not any(each in to.marks or to.name(each) for each in tensors):
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
                self._along(tensors[0], touched, out)
            else:
                self._unknown(tensors, f"`{packet.__name__}`")

    def _unknown(self, tensors: Iterable[Tensor], why: str) -> None:
        for tensor in tensors:
            if tensor in self._follower.marks:
                self._follower.hold([self._follower.marks[tensor].ids], why)
            self._follower.keep(tensor, why)

    def _elementwise(self, tensors: Sequence[Tensor], out: Tensor, added: bool) -> None:
        to, dims = self._follower, out.dim()
        found = {
            at: Mark(mark.dim + dims - each.dim(), mark.ids)
            for at, each in enumerate(tensors)
            if (mark := to.marks.get(each)) is not None
        }
        first = next(iter(found.values()), None)
        for at, each in enumerate(tensors):
            if at not in found and to.adopt(each, first, dims) and each in to.marks:
                mark = to.marks[each]
                found[at] = Mark(mark.dim + dims - each.dim(), mark.ids)
                first = first or found[at]
        if first is None:
            return
        if any(mark.dim != first.dim for mark in found.values()):
            to.hold([mark.ids for mark in found.values()], "values whose channels lie along different axes")
            return
        for at, each in enumerate(tensors):
            dim = first.dim - dims + each.dim()
            if at in found:
                to.join(first.ids, found[at].ids, "values without channels", added=added)
            elif dim >= 0 and each.shape[dim] > 1:
                to.hold([first.ids], "values of a fixed number of channels")
        to.mark(out, first.dim, first.ids)

    def _side_by_side(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> None:
        to, parts = self._follower, args[0]
        stacked = func.overloadpacket is aten.stack
        where = (kwargs.get("dim", args[1] if len(args) > 1 else 0)) % out.dim()
        marks = [to.seen(part) for part in parts]
        dims = {mark.dim for mark in marks if mark is not None}
        if len(dims) != 1:
            self._unknown(parts, "parts whose channels lie along different axes")
            return
        [dim] = dims
        ids = [_none(part.shape[dim]) if mark is None else mark.ids for part, mark in zip(parts, marks, strict=True)]
        if dim == where and not stacked:
            to.mark(out, dim, torch.cat(ids))
            return
        for each in ids[1:]:
            to.join(ids[0], each, "parts without channels")
        to.mark(out, dim + (stacked and where <= dim), ids[0])

    def _moved(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        to, moved = self._follower, args[0]
        mark = to.seen(moved)
        if mark is None:
            return
        roots = self._follower.channels.roots(mark.ids)
        labels = (
            roots.view([-1 if dim == mark.dim else 1 for dim in range(moved.dim())]).expand(moved.shape).contiguous()
        )
        results = zip(tree_leaves(out), tree_leaves(func(labels, *args[1:], **kwargs)), strict=True)
        for result, places in results:
            varying = [
                dim for dim, size in enumerate(places.shape)
                if size > 1 and bool((places != places.narrow(dim, 0, 1)).any())
            ]  # fmt: skip
            if not places.numel() or len(varying) != 1:
                to.hold([mark.ids], "channels that are spread over several axes" if varying else "a single channel")
                continue
            [dim] = varying
            ids = places[tuple(slice(None) if each == dim else 0 for each in range(places.dim()))]
            if len(ids.unique()) < len(roots.unique()):
                to.hold([mark.ids], "a fixed range of channels")
            to.mark(result, dim, ids)

    def _touched(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[set[int], bool] | None:
        """Along which axes an operation works, and whether it takes them away; None if that is not known."""
        packet, x = func.overloadpacket, args[0]
        if packet in _ON_LAST_AXES:
            return {x.dim() - 1 - each for each in range(_ON_LAST_AXES[packet])}, False
        if packet is aten.constant_pad_nd:
            return {x.dim() - 1 - each for each in range(len(args[1]) // 2)}, False
        if packet not in _ALONG_AXES:
            return None
        values = {argument.name: argument.default_value for argument in func._schema.arguments}
        values.update(zip(values, args, strict=False))
        values.update(kwargs)
        dims = values.get("dim", values.get("dims"))
        listed = dims if isinstance(dims, Sequence) else [] if dims is None else [dims]
        axes = {each % x.dim() for each in listed or range(x.dim())}
        return axes, values.get("keepdim") is False

    def _along(self, x: Tensor, touched: tuple[set[int], bool], out: Any) -> None:
        to, (axes, dropped) = self._follower, touched
        mark = to.seen(x)
        if mark is None:
            return
        if mark.dim in axes:
            to.hold([mark.ids], "an operation along the channels")
            return
        dim = mark.dim - sum(axis < mark.dim for axis in axes) if dropped else mark.dim
        for result in tree_leaves(out):
            to.mark(result, dim, mark.ids)

    def _matrix_product(self, left: Tensor, right: Tensor, out: Tensor) -> None:
        to, inner = self._follower, left.shape[-1]
        a, b = to.marks.get(left), to.marks.get(right)
        rows, columns = out.dim() - 2, out.dim() - 1
        both = a is not None and b is not None and a.dim == b.dim < rows
        if a is not None and b is not None and both:
            to.join(a.ids, b.ids, "a matrix product")
            found = a
        elif a is not None and a.dim == rows and b is None:
            found = a
        elif b is not None and b.dim == columns and a is None:
            found = b
        else:
            found = None
            self._unknown([left, right], "a matrix product over channels")
        if found is None:
            to.product(_none(1), out.numel() * inner)
        else:
            for tensor in (left, right):
                to.keep(tensor, "a matrix product")
            to.product(found.ids, out.numel() * inner)
            to.mark(out, found.dim, found.ids)
