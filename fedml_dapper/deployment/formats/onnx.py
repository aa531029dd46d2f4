"""ONNX, run by onnxruntime."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedml_dapper.deployment.formats.contract import Format, Product, Runtime
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.inputs import Inputs, tensors_of
from fedml_dapper.models.running import first_line
from fedml_dapper.process.extras import extra, need


@contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Suppress warnings, and those of ``loggers``, which address developers of these libraries."""
    levels = {name: logging.getLogger(name).level for name in loggers}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in loggers:
                logging.getLogger(name).setLevel(logging.ERROR)
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


class Onnx(Format):
    """A graph of standard operators with weights inside and BatchNorm folded."""

    name = "onnx"
    file_name = "model.onnx"

    def check_installed(self) -> None:
        need("--format onnx", "onnx", "onnxscript", "onnxruntime", install=extra("export"))

    def write(self, product: Product, path: Path) -> None:
        program = product.program
        try:
            with quiet("torch.onnx", "onnxscript"):
                torch.onnx.export(
                    program,
                    (),
                    path,
                    dynamo=True,
                    verbose=False,
                    external_data=False,
                    dynamic_shapes=product.sizes("N"),
                    input_names=list(product.input_names),
                    output_names=[product.output_name],
                )
        except Exception as error:  # whatever the user's network makes it raise
            raise ConfigError(
                f"--format onnx: {product.label} does something that ONNX has no operator for:"
                f" {first_line(_origin(error))}; try another format"
            ) from error
        _strip(path)

    def read(self, path: Path, *, trust_code: bool = False) -> Runtime:
        del trust_code  # a graph of standard operators runs no code of its own
        need(str(path), "onnxruntime", install=extra("export"))
        import onnxruntime  # noqa: PLC0415  # an extra

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        try:
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # errors of onnxruntime have no common base
            raise DataError(f"{path} is no ONNX model that onnxruntime reads: {first_line(error)}") from error
        names = [port.name for port in session.get_inputs()]

        def run(inputs: Inputs) -> Tensor:
            given = (np.ascontiguousarray(part.numpy()) for part in tensors_of(inputs))
            return torch.from_numpy(session.run(None, dict(zip(names, given, strict=True)))[0])

        return run


def _origin(error: BaseException) -> BaseException:
    """Return the first cause of ``error``, since the exporter wraps errors in those of its own steps."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _strip(path: Path) -> None:
    """Remove from the model in ``path`` what no runtime reads.

    The exporter's notes on every node, among them source lines and paths of this machine, can be a quarter of a small
    file.
    """
    import onnx  # noqa: PLC0415  # an extra

    model = onnx.load(path)
    del model.metadata_props[:]
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        for noted in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
            del noted.metadata_props[:]
            noted.doc_string = ""
        attributes = [attribute for node in graph.node for attribute in node.attribute]
        graphs += [inner for attribute in attributes for inner in (attribute.g, *attribute.graphs) if inner.node]
    for function in model.functions:
        for noted in (function, *function.node, *function.value_info):
            del noted.metadata_props[:]
            noted.doc_string = ""
    onnx.save(model, path)
