"""Which silo a device is, and how it reaches the server."""

from __future__ import annotations

from fedml_dapper.config import SecureGrpcConfig, Settings
from fedml_dapper.errors import ConfigError


def grpc_of(settings: Settings) -> SecureGrpcConfig:
    """Return the settings of the connection to the server.

    Raises:
        ConfigError: The experiment is none of silos over DAPPER_GRPC.
    """
    config = settings.comm_args.dapper_grpc
    kind = settings.common_args.training_type
    if settings.common_args.is_simulation or settings.comm_args.backend != "DAPPER_GRPC" or config is None:
        raise ConfigError(
            f"a device takes part over comm_args.backend DAPPER_GRPC, and this experiment is a {kind} over"
            f" {settings.comm_args.backend}; give it the file that the server has, which names the backend"
        )
    return config


def check_rank(settings: Settings, rank: int) -> None:
    """Raise :class:`ConfigError` unless the experiment has a silo of this ``rank``."""
    count = settings.train_args.client_num_in_total
    if not 1 <= rank <= count:
        raise ConfigError(f"silo-{rank}: the experiment has {count} silos (train_args.client_num_in_total)")


def rank_of(config: SecureGrpcConfig) -> int:
    """Return the rank of the one silo whose certificate lies in the device's folder.

    Raises:
        ConfigError: There is none, or there are several.
    """
    found = sorted(file.stem for file in config.certificates.glob("silo-*.key"))
    ranks = [int(name.removeprefix("silo-")) for name in found if name.removeprefix("silo-").isdecimal()]
    if len(ranks) == 1:
        return ranks[0]
    held = f"those of {', '.join(found)}" if found else "no silo's"
    raise ConfigError(
        f"{config.certificates}: holds {held}, and a device is one silo; copy its kit alone there, or say which one it"
        " is by --rank"
    )
