"""Secure aggregation of clients that hold unequal parts of a vector: the server learns the sum alone (docs/privacy.md).

This room has the protocol alone, without models and transport. It is that of Bonawitz et al., "Practical Secure
Aggregation for Privacy-Preserving Machine Learning", CCS 2017, in its version against a server that may lie: clients
sign their keys and one list of survivors (``signatures``). There are two additions: a pair of clients masks the
coordinates that both hold (``cells``), and coordinates that too few survivors hold are never opened (``seeds``).
"""

from typing import TYPE_CHECKING

from fedml_dapper.process.lazy_imports import lazy_names

if TYPE_CHECKING:
    from fedml_dapper.secure_sum.cells import Cells, cells_of
    from fedml_dapper.secure_sum.fixed_point import FixedPoint
    from fedml_dapper.secure_sum.participant import Participant
    from fedml_dapper.secure_sum.protocol import (
        MOST_CLIENTS,
        Consent,
        Deal,
        PublicKeys,
        Revealed,
        Roster,
        Rules,
        TooFewError,
    )
    from fedml_dapper.secure_sum.signatures import Identity, Witness
    from fedml_dapper.secure_sum.summation import Opened, Summation
else:
    __getattr__ = lazy_names(__name__, __file__)

__all__ = [
    "MOST_CLIENTS",
    "Cells",
    "Consent",
    "Deal",
    "FixedPoint",
    "Identity",
    "Opened",
    "Participant",
    "PublicKeys",
    "Revealed",
    "Roster",
    "Rules",
    "Summation",
    "TooFewError",
    "Witness",
    "cells_of",
]
