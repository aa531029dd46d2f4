"""File formats of exported models, one per module."""

from __future__ import annotations

from collections.abc import Mapping

from fedml_dapper.deployment.formats.contract import Format, Product, Runtime
from fedml_dapper.deployment.formats.onnx import Onnx
from fedml_dapper.deployment.formats.safetensors import SafeTensors
from fedml_dapper.deployment.formats.torch_export import TorchExport
from fedml_dapper.deployment.formats.torchscript import TorchScript

FORMATS: Mapping[str, Format] = {each.name: each for each in (Onnx(), TorchExport(), TorchScript(), SafeTensors())}
"""File formats by name."""

__all__ = ["FORMATS", "Format", "Product", "Runtime"]
