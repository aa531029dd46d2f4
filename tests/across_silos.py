"""Settings of federations whose clients are other people's."""

from __future__ import annotations

from pathlib import Path


def across_silos(folder: Path) -> tuple[str, ...]:
    """Overrides that make an experiment one across silos; nothing listens."""
    table = folder / "addresses.csv"
    table.write_text("eid,rank,grpc_server_ip,grpc_server_port\n")
    return ("training_type=cross_silo", "backend=GRPC", "allow_pickle=true", f"grpc_ipconfig_path={table}")
