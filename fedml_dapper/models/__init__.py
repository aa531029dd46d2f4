"""Networks with an encoder and a predictor: built-in backbones, and any ``nn.Module``. They know nothing of methods."""

from fedml_dapper.models.admission import check_starting_weights, layers_out_of_sight
from fedml_dapper.models.adopt import adopt, bare
from fedml_dapper.models.backbone import Backbone, ExtendedBackbone, example_image
from fedml_dapper.models.blame import blamed
from fedml_dapper.models.building import build_backbone
from fedml_dapper.models.catalogue import BACKBONES, MODELS
from fedml_dapper.models.compiled import is_compiled
from fedml_dapper.models.passed import check_same_network, describe, is_named, take_over
from fedml_dapper.models.plain import with_plain_convolutions

__all__ = [
    "BACKBONES",
    "MODELS",
    "Backbone",
    "ExtendedBackbone",
    "adopt",
    "bare",
    "blamed",
    "build_backbone",
    "check_same_network",
    "check_starting_weights",
    "describe",
    "example_image",
    "is_compiled",
    "is_named",
    "layers_out_of_sight",
    "take_over",
    "with_plain_convolutions",
]
