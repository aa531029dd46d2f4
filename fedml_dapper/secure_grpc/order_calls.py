"""Operators' orders to a server of devices that call, each a call with the certificate of an admin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio

from fedml_dapper.errors import DapperError
from fedml_dapper.operations import AuditLog, Certificate
from fedml_dapper.operations.credentials import ADMIN
from fedml_dapper.operations.orders import Answer, Desk, Order, read_order
from fedml_dapper.secure_grpc.authenticator import RefusedError, shown_certificate

REQUEST_SECONDS = 10.0
"""How long an order may take to come."""
ORDER_SECONDS = 20.0
"""How long an order waits until it is carried out."""


class OrderCalls:
    """Has orders carried out by a ``desk``, and notes them in the ``audit`` log; for one event loop."""

    def __init__(self, desk: Desk, audit: AuditLog) -> None:
        self._desk = desk
        self._audit = audit

    async def answer(self, frames: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        """Return the encoded answer to the order of a call whose certificate and token count.

        Raises:
            RefusedError: The order is not an admin's, or cannot be carried out now.
            ProtocolError: It is no order.
        """
        certificate = shown_certificate(context)
        if certificate.name != ADMIN:
            reason = f"orders are for the certificate of `{ADMIN}` alone; this is that of `{certificate.name}`"
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, reason)
        try:
            request = await asyncio.wait_for(_first(frames), REQUEST_SECONDS)
        except asyncio.TimeoutError as error:
            raise RefusedError(grpc.StatusCode.DEADLINE_EXCEEDED, "no order came") from error
        order = read_order(request)
        said = "" if order.act == "status" else await self._carried_out(order, certificate)
        return Answer(said=said, status=self._desk.status()).model_dump_json().encode()

    async def _carried_out(self, order: Order, certificate: Certificate) -> str:
        fields = {"act": order.act, "silo": order.silo or 0, "fingerprint": certificate.fingerprint}
        try:
            said = await asyncio.wait_for(asyncio.wrap_future(self._desk.ask(order)), ORDER_SECONDS)
        except asyncio.TimeoutError as error:
            reason = "the server is at work on a round's model, and heard nothing of the order; try again"
            raise RefusedError(grpc.StatusCode.DEADLINE_EXCEEDED, reason) from error
        except DapperError as error:
            self._audit.record("order_refused", ADMIN, **fields, reason=str(error))
            raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
        self._audit.record("order", ADMIN, **fields, said=said)
        return said


async def _first(frames: AsyncIterator[bytes]) -> bytes:
    return await anext(frames, b"")
