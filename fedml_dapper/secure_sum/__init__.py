"""Sums of which the summing server sees no summand, where summands hold unequal parts (docs/privacy.md).

The protocol alone, without models and without transport: Bonawitz et al., "Practical Secure Aggregation for
Privacy-Preserving Machine Learning", CCS 2017, for a server that may lie: clients sign their keys and one list of
survivors (``signatures``). Two things are added. A pair masks what both of it hold (``cells``), and what too few would
be left to hide is never opened (``seeds``).
"""

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
