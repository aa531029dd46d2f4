"""Layers that stay with the clients by ``dapper_args.personal_layers``.

They are those of FedBN (Li et al., ICLR 2021) or of SiloBN (Andreux et al., 2020).
"""

from __future__ import annotations

from fedml_dapper.config import PersonalLayers
from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.contract.batchnorm import running_statistics
from fedml_dapper.models import Backbone
from fedml_dapper.models.norms import norm_tensors


def tensors_of_personal_layers(backbone: Backbone, choice: PersonalLayers) -> frozenset[str]:
    """State-dict entries that stay with the clients; empty for ``none``.

    Raises ``ConfigError`` where the network has no layer of the kind that is chosen.
    """
    match choice:
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
            f"dapper_args.personal_layers: {backbone.label} has no {missing}, so that no {choice} can stay at home;"
            f" set it to {instead}"
        )
    return names
