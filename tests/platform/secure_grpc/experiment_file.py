"""An experiment as the YAML file with which silos and server are started."""

from __future__ import annotations

from pathlib import Path

import yaml

from fedml_dapper.config import SecureGrpcConfig, Settings


def experiment_file(folder: Path, settings: Settings, config: SecureGrpcConfig) -> Path:
    """``settings`` across silos over DAPPER_GRPC."""
    content = yaml.safe_load(settings.as_yaml())
    content["common_args"]["training_type"] = "cross_silo"
    content["comm_args"] = {"backend": "DAPPER_GRPC", "dapper_grpc": config.model_dump(mode="json")}
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(content))
    return file
