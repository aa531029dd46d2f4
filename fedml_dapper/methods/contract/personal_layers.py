"""What ``dapper_args.at_home`` lets clients keep to themselves (FedBN, Li et al., ICLR 2021; SiloBN, Andreux et al.,
2020)."""

from __future__ import annotations

from fedml_dapper.config import AtHome
from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.contract.batchnorm import running_statistics
from fedml_dapper.models import Backbone
from fedml_dapper.models.norms import norm_tensors


def tensors_at_home(backbone: Backbone, at_home: AtHome) -> frozenset[str]:
    """State-dict entries that stay with the clients; raises ``ConfigError`` where the network has none of that kind."""
    match at_home:
        case "none":
            return frozenset()
        case "statistics":
            names = frozenset(running_statistics(backbone, copy=False))
            missing = "BatchNorm"
            instead = "norms or none"
        case "norms":
            names = norm_tensors(backbone)
            missing = "norm"
            instead = "none"
    if not names:
        raise ConfigError(
            f"dapper_args.at_home: {backbone.label} has no {missing}, so that no {at_home} can stay at home; set it to"
            f" {instead}"
        )
    return names
