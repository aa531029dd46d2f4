"""Cross-silo messages over gRPC with mutual TLS: nobody speaks for another, and nothing that arrives is unpickled.

Only the server listens. A silo delivers what it has to say, and holds a call open on which the server sends it what
there is; so silos behind a NAT need no way in.
"""

from fedml_dapper.platform.secure_grpc.endpoint import CUT_OFF, FLOODS
from fedml_dapper.platform.secure_grpc.line_speed import LineSpeed, measure_line
from fedml_dapper.platform.secure_grpc.server import SecureServer
from fedml_dapper.platform.secure_grpc.silo import SecureSilo

__all__ = ["CUT_OFF", "FLOODS", "LineSpeed", "SecureServer", "SecureSilo", "measure_line"]
