"""Cross-silo transport over gRPC with mutual TLS: senders are authenticated, and nothing that arrives is unpickled.

Only the server listens. A silo delivers its messages by calls, and keeps another call open on which the server sends
messages to it; so silos behind a NAT need not be reachable. Nothing here needs FedML.
"""

from typing import TYPE_CHECKING

from fedml_dapper.process.lazy_imports import lazy_names

if TYPE_CHECKING:
    from fedml_dapper.secure_grpc.backoff import Backoff, jittered
    from fedml_dapper.secure_grpc.caller import Caller
    from fedml_dapper.secure_grpc.calls import CallServer
    from fedml_dapper.secure_grpc.endpoint import CUT_OFF, FLOODS
    from fedml_dapper.secure_grpc.errors import reason_of
    from fedml_dapper.secure_grpc.going_on import NotAwaitedError
    from fedml_dapper.secure_grpc.line_speed import LineSpeed, measure_line
    from fedml_dapper.secure_grpc.message import AnyMessage, Message, Transport
    from fedml_dapper.secure_grpc.order_calls import OrderCalls
    from fedml_dapper.secure_grpc.parts import PARTS_NAME, PartsError
    from fedml_dapper.secure_grpc.server import SecureServer
    from fedml_dapper.secure_grpc.silo import SecureSilo
else:
    __getattr__ = lazy_names(__name__, __file__)

__all__ = [
    "CUT_OFF",
    "FLOODS",
    "PARTS_NAME",
    "AnyMessage",
    "Backoff",
    "CallServer",
    "Caller",
    "LineSpeed",
    "Message",
    "NotAwaitedError",
    "OrderCalls",
    "PartsError",
    "SecureServer",
    "SecureSilo",
    "Transport",
    "jittered",
    "measure_line",
    "reason_of",
]
