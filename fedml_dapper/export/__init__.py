"""Export of models for devices: chosen from a finished run, perhaps adapted, written, checked, and predicted with."""

from fedml_dapper.deployment.formats import FORMATS
from fedml_dapper.deployment.sidecar import SIDECAR_NAME, read_sidecar
from fedml_dapper.export.card import CARD_NAME, Card
from fedml_dapper.export.exporting import Exporter
from fedml_dapper.export.newcomer import adapt
from fedml_dapper.export.prediction import Prediction, predict
from fedml_dapper.export.subjects import calibrated, choose, has_statistics, pictures_for

__all__ = [
    "CARD_NAME",
    "FORMATS",
    "SIDECAR_NAME",
    "Card",
    "Exporter",
    "Prediction",
    "adapt",
    "calibrated",
    "choose",
    "has_statistics",
    "pictures_for",
    "predict",
    "read_sidecar",
]
