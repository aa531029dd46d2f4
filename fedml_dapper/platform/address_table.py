"""FedML's table of addresses for gRPC, checked before FedML reads it, whose reader would end by a traceback."""

from __future__ import annotations

import csv
from collections.abc import Collection
from pathlib import Path

from fedml_dapper.errors import ConfigError
from fedml_dapper.files.regular_file import read_regular

COLUMNS = ("eid", "rank", "grpc_server_ip", "grpc_server_port")
_NUMBERS = ("eid", "rank", "grpc_server_port")
_MAX_BYTES = 16 << 20
_KEY = "comm_args.grpc_ipconfig_path"


def check_address_table(file: Path, callees: Collection[int]) -> None:
    """Check that the CSV table in ``file`` has the address of every rank in ``callees``.

    Raises:
        ConfigError: It lacks one, or is no such table.
    """
    try:
        lines = read_regular(file, _MAX_BYTES).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{_KEY}: {file} cannot be read: {error}") from error
    table = csv.DictReader(lines)
    found = table.fieldnames or ()
    if not set(COLUMNS) <= set(found):
        raise ConfigError(
            f"{_KEY}: {file} begins with the columns {','.join(found)!r}; FedML reads {','.join(COLUMNS)}, separated by"
            " commas, in UTF-8 without a byte order mark"
        )
    ranks = set[int]()
    for number, row in enumerate(table, start=2):
        wrong = next((name for name in _NUMBERS if not (row[name] or "").strip().isdecimal()), None)
        if wrong is not None:
            raise ConfigError(f"{_KEY}: {file}: line {number}: {wrong} is {row[wrong]!r}; give a whole number")
        ranks.add(int(row["eid"]))
    missing = sorted(set(callees) - ranks)
    if missing:
        raise ConfigError(f"{_KEY}: {file} has no line whose eid is {missing[0]}, a rank that is sent messages; add it")
