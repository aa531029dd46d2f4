"""Experiments of silos, and the YAML file with which silos and server are started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from fedml_dapper.config import SecureGrpcConfig, Settings


def experiment_file(folder: Path, settings: Settings, config: SecureGrpcConfig, buffer_size: int | None = None) -> Path:
    """``settings`` across silos over DAPPER_GRPC, in rounds that close with ``buffer_size`` uploads, if given."""
    content = yaml.safe_load(settings.as_yaml())
    content["common_args"]["training_type"] = "cross_silo"
    content["comm_args"] = {"backend": "DAPPER_GRPC", "dapper_grpc": config.model_dump(mode="json")}
    content["dapper_args"]["buffer_size"] = buffer_size
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def of_four(tiny_settings: Callable[..., Settings], *overrides: str) -> Settings:
    """As many silos as the embedded suite has domains."""
    few = ("client_num_in_total=4", "client_num_per_round=4", "client_share=0.03", "threads=1", "epochs=1")
    return tiny_settings(*few, *overrides)
