"""Entry point of ``python -m fedml_dapper --cf FILE``; see :mod:`fedml_dapper.commands.fedml`."""

from fedml_dapper.process.closed_streams import fill_closed_streams
from fedml_dapper.process.interruption import ending_in_order
from fedml_dapper.process.loading import loaded_for_good

fill_closed_streams()
with ending_in_order("fedml_dapper"):
    with loaded_for_good():
        from fedml_dapper.commands.fedml import main  # slow, so it is imported where Ctrl-C is handled

    main(prog_name="python -m fedml_dapper")
