"""int8 files of networks that onnxruntime quantises only with care: they compute about what the others do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper

from fedml_dapper.errors import ConfigError
from fedml_dapper.export.quantisation import quantise

INPUTS = torch.randn(16, 4, 5, 5, generator=torch.Generator().manual_seed(1))


def written(path: Path, nodes: Sequence[NodeProto], weights: dict[str, np.ndarray]) -> Path:
    """A model with the input ``x``, (N, 4, H, W), and the output ``y``."""
    shape = ["N", 4, "H", "W"]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def outputs(path: Path) -> np.ndarray:
    found: np.ndarray = onnxruntime.InferenceSession(path).run(None, {"x": INPUTS.numpy()})[0]
    return found


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_transposed_convolutions(tmp_path: Path, groups: int, bias: bool) -> None:
    drawn = np.random.default_rng(1)
    weights = {"first": drawn.normal(size=(4, 4, 1, 1)), "up": drawn.normal(size=(4, 3, 2, 2))}
    if bias:
        weights["added"] = drawn.normal(size=3 * groups)
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["hidden"], name="first"),
        helper.make_node("ConvTranspose", ["hidden", *[*weights][1:]], ["y"], name="up", group=groups),
    ]
    path = written(tmp_path / "model.onnx", nodes, {name: each.astype(np.float32) for name, each in weights.items()})
    quantise(path, ["x"], [INPUTS], tmp_path / "int8.onnx")
    expected = outputs(path)
    assert np.abs(outputs(tmp_path / "int8.onnx") - expected).max() < 0.05 * np.abs(expected).max()
    quantised = [node.op_type for node in onnx.load(tmp_path / "int8.onnx").graph.node]
    assert "QuantizeLinear" in quantised


def test_what_onnxruntime_cannot_quantise_is_one_line(tmp_path: Path) -> None:
    path = written(tmp_path / "model.onnx", [helper.make_node("Relu", ["x"], ["y"], name="relu")], {})
    with pytest.raises(ConfigError, match=r"^--int8: onnxruntime cannot quantise this network: .*; leave --int8 out$"):
        quantise(path, ["another name"], [INPUTS], tmp_path / "int8.onnx")
