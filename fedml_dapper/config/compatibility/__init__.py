"""What goes with what: one table of settings, methods and runners that exclude or need each other.

A row says which feature (:class:`Feature`, of settings, or :class:`Ability`, of a method, network, task or data set)
excludes or needs which other, why, and what to do. :func:`broken_rows` walks the table when settings are read, and
:func:`check_capabilities` when methods and data are there.
"""

from fedml_dapper.config.compatibility.row import Ability, Capabilities, Feature, Row
from fedml_dapper.config.compatibility.table import ROWS, TABLE, broken_rows, check_capabilities

__all__ = ["ROWS", "TABLE", "Ability", "Capabilities", "Feature", "Row", "broken_rows", "check_capabilities"]
