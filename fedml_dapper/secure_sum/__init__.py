"""Sums of which the summing server sees no summand, where summands hold unequal parts (docs/privacy.md).

The protocol alone, without models and without transport: Bonawitz et al., "Practical Secure Aggregation for
Privacy-Preserving Machine Learning", CCS 2017, for a server that keeps to it. Two things are added. A pair masks what
both of it hold (``cells``), and what too few would be left to hide is never opened (``seeds``).
"""

from fedml_dapper.secure_sum.cells import Cells, cells_of
from fedml_dapper.secure_sum.fixed_point import FixedPoint
from fedml_dapper.secure_sum.participant import Participant
from fedml_dapper.secure_sum.protocol import Deal, PublicKeys, Revealed, Roster, Rules, TooFewError
from fedml_dapper.secure_sum.summation import Opened, Summation

__all__ = [
    "Cells",
    "Deal",
    "FixedPoint",
    "Opened",
    "Participant",
    "PublicKeys",
    "Revealed",
    "Roster",
    "Rules",
    "Summation",
    "TooFewError",
    "cells_of",
]
