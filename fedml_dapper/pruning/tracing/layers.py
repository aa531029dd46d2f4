"""Rules for layers with weights: which channels their rows and columns belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from fedml_dapper.models.adapters import adapted_linear
from fedml_dapper.models.running import first_line
from fedml_dapper.models.standardised import standardised_conv2d
from fedml_dapper.pruning.tracing.follower import Follower, no_channels

_POOLS: Mapping[object, int] = {F.adaptive_avg_pool1d: 1, F.adaptive_avg_pool2d: 2, F.adaptive_avg_pool3d: 3}
"""Poolings and over how many last axes they go. The operations inside them depend on memory layout, so they have a rule
here."""
_RECURRENT = (
    torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu, torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell,
    torch.rnn_relu_cell,
)  # fmt: skip


class Layers(TorchFunctionMode):
    """A mode that follows channels through layers with weights, as the functions of torch that layers call."""

    def __init__(self, follower: Follower) -> None:
        super().__init__()
        self._follower = follower
        self._rules: Mapping[object, Callable[..., None]] = {
            **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), self._convolution),
            **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), self._transposed),
            **dict.fromkeys((F.batch_norm, F.instance_norm), self._channel_norm),
            **dict.fromkeys((F.layer_norm, F.rms_norm), self._layer_norm),
            **{pool: partial(self._pool, dims) for pool, dims in _POOLS.items()},
            F.pad: self._pad,
            standardised_conv2d: self._standardised,
            F.linear: self._linear,
            adapted_linear: self._adapted,
            F.group_norm: self._group_norm,
            F.prelu: self._prelu,
            F.embedding: self._embedding,
            F.bilinear: self._bilinear,
            **dict.fromkeys(_RECURRENT, self._recurrent),
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
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        try:
            with self._follower.looking_at(given):
                rule(out, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  # a layer in a form that its rule does not foresee
            self._follower.give_up(given, f"`{func.__name__}` cannot be followed ({first_line(error)})")
        return out

    def _convolution(
        self, out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: object = 1,
        padding: object = 0, dilation: object = 1, groups: int = 1,
    ) -> None:  # fmt: skip
        self._follower.count(weight, out.numel() // weight.shape[0])
        self._filters(out, input, weight, bias, groups, of_inputs=1, of_outputs=0)

    def _standardised(
        self, out: Tensor, input: Tensor, weight: Tensor, gain: Tensor, bias: Tensor | None, *_: object
    ) -> None:
        self._convolution(out, input, weight, bias)
        self._follower.bind(gain, 0, self._follower.produce(weight, 0))

    def _transposed(
        self, out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: object = 1,
        padding: object = 0, output_padding: object = 0, groups: int = 1, dilation: object = 1,
    ) -> None:  # fmt: skip
        self._follower.count(weight, input.numel() // weight.shape[0])
        self._filters(out, input, weight, bias, groups, of_inputs=0, of_outputs=1)

    def _filters(
        self, out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None, groups: int, of_inputs: int,
        of_outputs: int,
    ) -> None:  # fmt: skip
        """Follow a convolution whose ``weight`` has the channels of inputs and outputs along these axes.

        Where it is grouped, the first axis of ``weight`` has all groups' channels, and the second those of one.
        """
        follower = self._follower
        dim = input.dim() - weight.dim() + 1
        ids = follower.along(input, dim, "a convolution works along another axis")
        if groups == 1:
            follower.bind(weight, of_inputs, ids)
            rows = follower.produce(weight, of_outputs)
        else:
            rows = self._grouped(ids, weight, groups, out.shape[dim] // groups)
            follower.bind(weight, 0, rows if of_outputs == 0 else ids)
        if bias is not None:
            follower.bind(bias, 0, rows)
        follower.mark(out, dim, rows)

    def _grouped(self, ids: Tensor, weight: Tensor, groups: int, filters: int) -> Tensor:
        """The output channels of a grouped convolution, whose groups are kept or dropped as a whole."""
        place = self._follower.place(weight, 0)
        if place is not None:
            self._follower.trace.producers.add(place)
        blocks = self._follower.whole_blocks(ids, groups, "some inputs of a grouped convolution are fixed")
        return blocks.repeat_interleave(filters)

    def _linear(self, out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
        follower = self._follower
        last = input.dim() - 1
        follower.count(weight, out.numel() // weight.shape[0])
        mark = follower.mark_of(input)
        if mark is not None and mark.dim != last:  # the layer mixes positions, each channel by itself
            for tensor in (weight, bias):
                follower.keep(tensor, "a linear layer works along another axis")
            follower.mark(out, mark.dim, mark.ids)
            return
        follower.bind(weight, 1, follower.along(input, last, ""))
        rows = follower.produce(weight, 0)
        if bias is not None:
            follower.bind(bias, 0, rows)
        follower.mark(out, last, rows)

    def _adapted(
        self, out: Tensor, input: Tensor, dropped: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor,
        *_: object,
    ) -> None:  # fmt: skip
        """A linear layer and its adapter, whose outputs are of the layer's channels: B's rows are cut as W's are."""
        follower = self._follower
        last = input.dim() - 1
        positions = out.numel() // out.shape[-1]
        for matrix in (weight, a, b):
            follower.count(matrix, positions)
        mark = follower.mark_of(input)
        if mark is not None and mark.dim != last:
            for tensor in (weight, bias, a, b):
                follower.keep(tensor, "a linear layer works along another axis")
            follower.mark(out, mark.dim, mark.ids)
            return
        ids = follower.along(input, last, "")
        follower.bind(weight, 1, ids)
        follower.bind(a, 1, ids)
        components = follower.produce(a, 0)
        follower.bind(b, 1, components)
        rows = follower.produce(weight, 0)
        follower.bind(b, 0, rows)
        if bias is not None:
            follower.bind(bias, 0, rows)
        names = follower.weight(a), follower.weight(b)
        if names[0] is not None and names[1] is not None:
            follower.trace.partners[names[0]] = names[1]
        follower.mark(out, last, rows)

    def _channel_norm(
        self, out: Tensor, input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
        weight: Tensor | None = None, bias: Tensor | None = None, *_: object, **__: object,
    ) -> None:  # fmt: skip
        self._norm(out, input, 1, {0: (weight, bias, running_mean, running_var)})

    def _layer_norm(
        self, out: Tensor, input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
        bias: Tensor | None = None, *_: object, **__: object,
    ) -> None:  # fmt: skip
        follower = self._follower
        mark = self._follower.mark_of(input)
        first = input.dim() - len(normalized_shape)
        if mark is not None and mark.dim >= first:
            # rms_norm has no bias, but its epsilon in this place
            tensors = (weight, bias if isinstance(bias, Tensor) else None)
            self._norm(out, input, mark.dim, {mark.dim - first: tensors})
            return
        if weight is not None:
            follower.count(weight, 2 * out.numel() // weight.numel())
        for tensor in (weight, bias):
            if isinstance(tensor, Tensor):
                follower.keep(tensor, "a norm works along another axis")
        if mark is not None:
            follower.mark(out, mark.dim, mark.ids)

    def _group_norm(
        self, out: Tensor, input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
        *_: object, **__: object,
    ) -> None:  # fmt: skip
        mark = self._follower.mark_of(input)
        if mark is not None and mark.dim == 1:
            self._follower.whole_blocks(mark.ids, num_groups, "some inputs of a group norm are fixed")
        self._norm(out, input, 1, {0: (weight, bias)})

    def _norm(self, out: Tensor, input: Tensor, dim: int, tensors: Mapping[int, Sequence[Tensor | None]]) -> None:
        """A norm; ``tensors`` maps the axis that holds their channels to the norm's tensors."""
        follower = self._follower
        ids = follower.along(input, dim, "a norm works along another axis")
        [(axis, present)] = ((axis, [each for each in some if each is not None]) for axis, some in tensors.items())
        if not present:
            follower.hold([ids], "a norm has no tensor that says its size")
            return
        for tensor in present:
            for each, size in enumerate(tensor.shape):
                follower.bind(tensor, each, ids if each == axis else no_channels(size))
        follower.count(present[0], 2 * out.numel() // present[0].numel())
        follower.mark(out, dim, ids)

    def _pool(self, dims: int, out: Tensor, input: Tensor, *_: object, **__: object) -> None:
        follower = self._follower
        mark = self._follower.mark_of(input)
        if mark is not None and mark.dim < input.dim() - dims:
            follower.mark(out, mark.dim, mark.ids)
        elif mark is not None:
            follower.hold([mark.ids], "pooling works along the channels")

    def _pad(self, out: Tensor, input: Tensor, pad: Sequence[int], *_: object, **__: object) -> None:
        """Padding in any mode: around the image (``circular``) it writes parts of a tensor, which is not followed."""
        follower = self._follower
        mark = follower.mark_of(input)
        padded = {input.dim() - 1 - each // 2 for each, size in enumerate(pad) if size}
        if mark is not None and mark.dim in padded:
            follower.hold([mark.ids], "padding works along the channels")
        elif mark is not None:
            follower.mark(out, mark.dim, mark.ids)

    def _prelu(self, out: Tensor, input: Tensor, weight: Tensor) -> None:
        follower = self._follower
        mark = self._follower.mark_of(input)
        if weight.numel() > 1:
            follower.bind(weight, 0, follower.along(input, 1, "PReLU works along another axis"))
        if mark is not None and (weight.numel() == 1 or mark.dim == 1):
            follower.mark(out, mark.dim, mark.ids)

    def _embedding(self, out: Tensor, input: Tensor, weight: Tensor, *_: object, **__: object) -> None:
        self._follower.bind(weight, 0, no_channels(weight.shape[0]))
        self._follower.mark(out, out.dim() - 1, self._follower.produce(weight, 1))

    def _bilinear(
        self, out: Tensor, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> None:
        self._follower.count(weight, out.numel() // weight.shape[0])
        given = [each for each in (input1, input2, weight, bias) if each is not None]
        self._follower.give_up(given, "a bilinear layer multiplies its inputs")

    def _recurrent(self, out: object, input: Tensor, *more: object, **named: object) -> None:
        """LSTM, GRU and RNN, as layers and as cells.

        The arguments after ``input`` are states, weights and, of packed sequences, batch sizes. Each matrix is
        multiplied once per position, also those of gates, of the other direction and of projections.
        """
        follower = self._follower
        states = more[0]
        others = (more[1:], named)
        for weight in tree_leaves(others):
            if isinstance(weight, Tensor) and weight.dim() == 2:
                follower.count(weight, input.numel() // input.shape[-1])
        given = [each for each in tree_leaves((input, states, others)) if isinstance(each, Tensor)]
        follower.give_up(given, "a recurrent layer keeps its inputs")

    def _attention(
        self, out: tuple[Tensor, Tensor | None], query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int,
        num_heads: int, in_proj_weight: Tensor | None, in_proj_bias: Tensor | None, bias_k: Tensor | None,
        bias_v: Tensor | None, add_zero_attn: bool, dropout_p: float, out_proj_weight: Tensor,
        out_proj_bias: Tensor | None, *_: object, use_separate_proj_weight: bool = False, **more: object,
    ) -> None:  # fmt: skip
        follower = self._follower
        last = query.dim() - 1
        positions = [x.numel() // x.shape[last] for x in (query, key, value)]
        batch = query.shape[1] if query.dim() == 3 else 1
        keys = positions[1] // batch + (bias_k is not None) + add_zero_attn
        scores = 2 * positions[0] * keys  # Q K^T and A V, for each channel of each head
        ids = [follower.along(x, last, "attention works along another axis") for x in (query, key, value)]
        follower.count(out_proj_weight, positions[0])
        unusual = _unusual(bias_k, add_zero_attn)
        if in_proj_weight is None or use_separate_proj_weight or not ids[0].shape == ids[1].shape == ids[2].shape:
            unusual = "attention has keys or values of their own size"
        if unusual:
            follower.hold(ids, unusual)
            separate = [more.get(f"{each}_proj_weight") for each in "qkv"]
            weights = separate if in_proj_weight is None or use_separate_proj_weight else in_proj_weight.chunk(3)
            for weight, count in zip(weights, positions, strict=True):
                if isinstance(weight, Tensor):
                    follower.count(weight, count)
            follower.product(no_channels(1), scores * query.shape[last])
        else:
            assert in_proj_weight is not None
            follower.join(ids[0], ids[1], "queries and keys of attention differ")
            follower.join(ids[0], ids[2], "queries and values of attention differ")
            follower.bind(in_proj_weight, 1, ids[0])
            follower.count(in_proj_weight, Fraction(sum(positions), 3))  # a third of it each
            head_dim = query.shape[last] // num_heads
            heads = follower.channels.fresh(num_heads)
            name = follower.name(in_proj_weight)
            if name is not None:
                follower.trace.producers.add((name, 0))
            rows = heads.repeat_interleave(head_dim)
            for tensor in (in_proj_weight, in_proj_bias):
                if tensor is not None:
                    follower.bind(tensor, 0, rows.repeat(3))
            follower.bind(out_proj_weight, 1, rows)
            follower.product(heads, scores * query.shape[last])
        rows = follower.produce(out_proj_weight, 0)
        if out_proj_bias is not None:
            follower.bind(out_proj_bias, 0, rows)
        follower.mark(out[0], last, rows)

    def _dot_product(self, out: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> None:
        follower = self._follower
        inputs = (query, key, value)
        marks = [follower.mark_of(x) for x in inputs]
        macs = query.numel() * key.shape[-2] + out.numel() * key.shape[-2]
        before = [mark is not None and mark.dim < x.dim() - 2 for mark, x in zip(marks, inputs, strict=True)]
        first = marks[0]
        if first is not None and all(before) and all(m is not None and m.dim == first.dim for m in marks):
            for mark in marks[1:]:
                if mark is not None:
                    follower.join(first.ids, mark.ids, "heads of attention are fixed")
            follower.channels.attend(first.ids)
            follower.product(first.ids, macs)
            follower.mark(out, first.dim, first.ids)
            return
        follower.product(no_channels(1), macs)
        of_values = marks[2]
        if of_values is not None and of_values.dim == value.dim() - 1 and marks[0] is None and marks[1] is None:
            follower.mark(out, of_values.dim, of_values.ids)
        else:
            follower.hold([mark.ids for mark in marks if mark is not None], "attention is no layer of torch")


def _unusual(bias_k: Tensor | None, add_zero_attn: bool) -> str:
    """Return what attention does besides, in words; empty where it does nothing."""
    if bias_k is not None:
        return "attention has keys and values of its own besides (add_bias_kv)"
    return "attention has a key of zeros besides (add_zero_attn)" if add_zero_attn else ""
