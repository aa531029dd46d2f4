"""Quantisation to int8 by onnxruntime's static post-training quantisation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedml_dapper.datasets import ClientData
from fedml_dapper.deployment.formats.onnx import quiet
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.export.inputs import as_pixels, spread
from fedml_dapper.federation.run_folder.finished import FinishedRun
from fedml_dapper.inputs import Inputs, pieces, tensors_of
from fedml_dapper.models.running import first_line

INT8 = "onnx-int8"
INT8_NAME = "model.int8.onnx"
_IMAGES = 256
"""Number of images on which ranges of activations are measured."""
_BATCH = 16


def quantise(path: Path, input_names: Sequence[str], batches: Sequence[Inputs], to: Path) -> None:
    """Quantise the ONNX model in ``path``: int8 weights with a scale per channel, and int8 activations.

    Weights take seven of the eight bits: processors without instructions for int8 (VNNI) add products in 16 bits, which
    full ones overflow. Ranges of activations are those that occur for ``batches``. Transposed convolutions in groups
    stay in float32 where they add a bias, for which onnxruntime takes the scales of one group as those of all.

    Raises:
        ConfigError: onnxruntime cannot quantise the network.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static  # noqa: PLC0415  # an extra

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # it has no types
        def __init__(self) -> None:
            self._batches: Iterator[Inputs] = iter(batches)

        def get_next(self) -> dict[str, object] | None:
            batch = next(self._batches, None)
            if batch is None:
                return None
            return {name: part.numpy() for name, part in zip(input_names, tensors_of(batch), strict=True)}

    with quiet("root"):  # it warns that BatchNorm should be folded first, which it is
        try:
            quantize_static(
                path,
                to,
                Reader(),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                reduce_range=True,
                nodes_to_exclude=_transposed_in_groups(path),
            )
        except Exception as error:  # errors of onnxruntime have no common base
            raise ConfigError(
                f"--int8: onnxruntime cannot quantise this network: {first_line(error)}; leave --int8 out"
            ) from error


def _transposed_in_groups(path: Path) -> list[str]:
    """Return the names of the transposed convolutions in groups of the model in ``path`` that add a bias."""
    import onnx  # noqa: PLC0415  # an extra

    return [
        node.name
        for node in onnx.load(path).graph.node
        if node.op_type == "ConvTranspose"
        and len(node.input) == 3
        and any(each.name == "group" and each.i > 1 for each in node.attribute)
    ]


def calibration_batches(run: FinishedRun, pictures: ClientData | None) -> list[Inputs]:
    """Return inputs in the form that files take, from ``pictures`` or evenly from all clients' training samples.

    Raises:
        DataError: Neither is available.
    """
    clients = [pictures] if pictures is not None else [] if run.experiment is None else list(run.experiment.clients)
    if not clients:
        raise DataError(
            f"--int8 measures ranges on training samples, which are not here ({run.without_data or 'silos hold them'});"
            " name a folder of pictures by --calibrate"
        )
    each = max(1, _IMAGES // len(clients))
    drawn = (as_pixels(spread(client, each)) for client in clients)
    return [piece for client in drawn for batch in client for piece in pieces(batch.inputs, _BATCH)]
