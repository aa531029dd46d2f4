"""Names of the file formats, without the formats themselves, which take seconds to import."""

FORMAT_NAMES = ("onnx", "safetensors", "torch-export", "torchscript")
"""Names of ``fedml_dapper.deployment.formats.FORMATS``."""
