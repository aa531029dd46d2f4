"""Cross-silo transport over gRPC with mutual TLS: senders are authenticated, and nothing that arrives is unpickled.

Only the server listens. A silo delivers its messages by calls, and keeps another call open on which the server sends
messages to it; so silos behind a NAT need not be reachable.
"""

from fedml_dapper.platform.secure_grpc.endpoint import CUT_OFF, FLOODS
from fedml_dapper.platform.secure_grpc.line_speed import LineSpeed, measure_line
from fedml_dapper.platform.secure_grpc.server import SecureServer
from fedml_dapper.platform.secure_grpc.silo import SecureSilo

__all__ = ["CUT_OFF", "FLOODS", "LineSpeed", "SecureServer", "SecureSilo", "measure_line"]
