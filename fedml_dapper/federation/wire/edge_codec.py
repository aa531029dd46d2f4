"""Encoding of the messages between the server and its edges, in the frame of silos' messages (``wire``).

An order carries the weights of the whole model. A sum carries two tensors for each of the model's floating-point
tensors: the weighted sum, and the sum of the weights of the clients that hold each channel.
"""

from __future__ import annotations

from typing import Any, Literal

import safetensors.torch
from pydantic import BaseModel, ConfigDict, Field

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.round.edges import EdgeOrder, EdgeSum
from fedml_dapper.federation.round.update_norm import UpdateNorms
from fedml_dapper.federation.run_folder.records import ClientRecord
from fedml_dapper.federation.wire.agreement import Agreement, Identity, ReceivedSettings
from fedml_dapper.federation.wire.codec import (
    check_finite,
    framed,
    prefixed,
    read_tensors,
    taken,
    unframed,
)
from fedml_dapper.methods import ClientProfile, Memory
from fedml_dapper.process.profiling import part
from fedml_dapper.pruning import DENSE, ChannelLayout, PartialSum, check_fits

_MEMORY = "memory/"
_SUM = "sum/"
_HELD = "held/"
_LARGEST = "largest/"
_INTEGER_BOUND = 2**31
"""Bound that all integers in a header are below."""


class _Header(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")

    identity: Identity
    round: int = Field(ge=1, lt=_INTEGER_BOUND)
    edge: int = Field(ge=2, lt=_INTEGER_BOUND)


class OrderHeader(_Header):
    """Header of an encoded :class:`~fedml_dapper.federation.round.edges.EdgeOrder`."""

    kind: Literal["order"]
    clients: tuple[int, ...]
    chosen: tuple[int, ...]
    profiles: tuple[tuple[int, str, int, float, int], ...]
    """Client id, domain, level, ratio and number of samples of every client."""
    memory: dict[str, Any] = {}
    usual: tuple[float | None, float | None]
    """Relative change and norm of extras, as in :class:`~fedml_dapper.federation.round.update_norm.UpdateNorms`."""
    settings: ReceivedSettings
    """The server's settings, so that an edge can tell in which its own differ."""


class SumHeader(_Header):
    """Header of an encoded :class:`~fedml_dapper.federation.round.edges.EdgeSum`."""

    kind: Literal["sum"]
    total: float = Field(ge=0, lt=2**53, allow_inf_nan=False)
    records: tuple[ClientRecord, ...] = ()
    refused: dict[int, str] = {}


class EdgeCodec:
    """Encodes and decodes the messages between one experiment's server and its edges."""

    def __init__(self, layout: ChannelLayout, agreement: Agreement) -> None:
        self._layout = layout
        self._agreement = agreement

    @part("wire")
    def encode_order(self, order: EdgeOrder, schema: int | None = None) -> bytes:
        """Encode ``order``, in ``schema`` or by default in that of our answers."""
        schema = schema or self._agreement.schema
        header = OrderHeader(
            kind="order",
            identity=self._agreement.identity(schema),
            round=order.round,
            edge=order.edge,
            clients=order.clients,
            chosen=order.chosen,
            profiles=tuple((p.client_id, p.domain, p.level, p.ratio, p.num_samples) for p in order.profiles),
            memory=order.memory.values,
            usual=(order.usual.change, order.usual.extras),
            settings=self._agreement.settings(schema),
        )
        tensors = prefixed("", order.weights) | prefixed(_MEMORY, order.memory.tensors)
        return framed(header.model_dump_json(exclude_defaults=True).encode(), safetensors.torch.save(tensors))

    @part("wire")
    def decode_order(self, data: bytes) -> EdgeOrder:
        """Decode an order; from then on this process goes by the server's settings.

        Raises:
            ProtocolError: The bytes are no order.
            ConfigError: The order is of another experiment; the error names the settings that differ.
        """
        header, body = unframed(data, OrderHeader)
        self._agreement.accept(header.identity, header.settings, "the edge")
        weights = read_tensors(body)
        remembered = taken(weights, _MEMORY)
        check_fits(weights, DENSE, (), self._layout, self._layout.travelling)
        check_finite(weights | remembered)
        profiles = tuple(ClientProfile(*values) for values in header.profiles)
        known = list(range(len(profiles)))
        if [profile.client_id for profile in profiles] != known or not {*header.clients, *header.chosen} <= {*known}:
            raise ProtocolError("order is about clients that it does not describe")
        ordered = {name: weights[name] for name in self._layout.travelling}
        memory = Memory(remembered, header.memory)
        usual = UpdateNorms(*header.usual)
        return EdgeOrder(header.round, header.edge, header.clients, header.chosen, profiles, ordered, memory, usual)

    @part("wire")
    def encode_sum(self, message: EdgeSum) -> bytes:
        """Encode the sum of an edge."""
        header = SumHeader(
            kind="sum",
            identity=self._agreement.identity(self._agreement.schema),
            round=message.round,
            edge=message.edge,
            total=message.sum.total,
            records=message.records,
            refused=dict(message.refused),
        )
        sums, held = ({name: pair[at] for name, pair in message.sum.sums.items()} for at in (0, 1))
        tensors = prefixed(_SUM, sums) | prefixed(_HELD, held) | prefixed(_LARGEST, message.sum.largest)
        return framed(header.model_dump_json(exclude_defaults=True).encode(), safetensors.torch.save(tensors))

    @part("wire")
    def decode_sum(self, data: bytes) -> EdgeSum:
        """Decode the sum of an edge.

        Whether it fits the model and is of the right clients is checked by ``edges.check_sum``.

        Raises:
            ProtocolError: The bytes are no sum of this experiment.
        """
        header, body = unframed(data, SumHeader)
        self._agreement.check(header.identity)
        tensors = read_tensors(body)
        check_finite(tensors)
        sums, held, largest = (taken(tensors, prefix) for prefix in (_SUM, _HELD, _LARGEST))
        if tensors or sums.keys() != held.keys():
            raise ProtocolError("a sum comes as pairs of what was summed and what held it")
        pairs = {name: (sums[name], held[name]) for name in sums}
        partial = PartialSum(header.total, pairs, largest)
        return EdgeSum(header.round, header.edge, header.records, header.refused, partial)
