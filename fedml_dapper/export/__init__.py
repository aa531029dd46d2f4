"""Export of models for devices: chosen from a finished run, perhaps adapted, written, checked, and predicted with."""

from fedml_dapper.export.card import CARD_NAME, Card, FileFigures
from fedml_dapper.export.exporting import Exporter
from fedml_dapper.export.formats import FORMATS
from fedml_dapper.export.newcomer import adapt
from fedml_dapper.export.prediction import Prediction, predict
from fedml_dapper.export.sidecar import SIDECAR_NAME, Sidecar, read_sidecar
from fedml_dapper.export.subjects import Subject, calibrated, choose, pictures_for

__all__ = [
    "CARD_NAME",
    "FORMATS",
    "SIDECAR_NAME",
    "Card",
    "Exporter",
    "FileFigures",
    "Prediction",
    "Sidecar",
    "Subject",
    "adapt",
    "calibrated",
    "choose",
    "pictures_for",
    "predict",
    "read_sidecar",
]
