"""FedML's table of addresses, as people write it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from fedml_dapper.errors import ConfigError
from fedml_dapper.platform.address_table import check_address_table
from fedml_dapper.platform.transports import open_transport

from .processes import address_table

HEADER = "eid,rank,grpc_server_ip,grpc_server_port"
OF_OTHERS = f"{HEADER},ingress_ip\n0,0,127.0.0.1,8890,10.0.0.1\n 1 ,1,localhost,8891,\n"


def test_a_table_of_all_who_are_called_is_taken(tmp_path: Path) -> None:
    check_address_table(address_table(tmp_path, 2), (0, 1, 2))
    (tmp_path / "table.csv").write_text(OF_OTHERS)
    check_address_table(tmp_path / "table.csv", (0, 1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"receiver_id,ip\n0,127.0.0.1\n", "begins with the columns 'receiver_id,ip'; FedML reads eid,rank,grpc_se"),
        (HEADER.replace(",", ";").encode(), "begins with the columns 'eid;rank;grpc"),
        (f"\ufeff{OF_OTHERS}".encode(), r"begins with the columns '\\ufeffeid,rank"),
        (b"", "begins with the columns ''"),
        (b"\xff\xfe", "cannot be read: 'utf-8' codec"),
        (f"{HEADER}\n0,0,127.0.0.1,8890\none,1,127.0.0.1,8891\n".encode(), "line 3: eid is 'one'; give a whole"),
        (f"{HEADER}\n0,0,127.0.0.1\n".encode(), "line 2: grpc_server_port is None"),
        (f"{HEADER}\n1,1,127.0.0.1,8891\n".encode(), "has no line whose eid is 0, a rank that is sent messages; add"),
    ],
)
def test_what_is_no_table_of_theirs_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    table = tmp_path / "table.csv"
    table.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        check_address_table(table, (0,))
    assert "\n" not in str(caught.value)


def test_a_silo_asks_for_the_server_s_address_before_it_listens(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(f"{HEADER}\n1,1,127.0.0.1,8891\n")
    args = Namespace(backend="GRPC", grpc_ipconfig_path=str(tmp_path / "table.csv"))
    with pytest.raises(ConfigError, match="has no line whose eid is 0"):
        open_transport(args, None, 1, 1)
