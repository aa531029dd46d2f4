"""Networks of token ids and masks in files for devices, read as devices read them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnxruntime
import pytest
import torch

from fedml_dapper import load_model
from fedml_dapper.export import Exporter, choose

from ..federation.test_several_tensors import write
from .conftest import finish

FORMATS = ("onnx", "torch-export", "torchscript", "safetensors")


@pytest.mark.long
@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (("model=nets.py:AsOne",), ["attention_mask", "input_ids"]),
        (("model=nets.py:InOrder", "data_args.arguments={form: tuple}"), ["inputs_0", "inputs_1"]),
    ],
)
def test_files_take_each_tensor_under_its_name(tmp_path: Path, overrides: tuple[str, ...], names: list[str]) -> None:
    run = finish(
        tmp_path / "run", "client_num_in_total=3", "client_num_per_round=3", "client_share=null", "image_size=null",
        *overrides, config=write(tmp_path),
    )  # fmt: skip
    subject = choose(run, level=3)
    card = Exporter(run, FORMATS).export(subject, tmp_path / "out")
    assert all(figures.accuracy.keys() == {"mail", "chat"} for figures in card.files)
    about = json.loads((tmp_path / "out" / "model.json").read_text())
    assert [(port["name"], port["dtype"], port["shape"]) for port in about["input"]] == [
        (name, "int64", [None, 6]) for name in names
    ]
    assert run.experiment is not None
    inputs = next(iter(run.experiment.tests[0])).inputs
    expected = subject.model(inputs).detach()
    given = dict(zip(names, inputs.values() if isinstance(inputs, dict) else inputs, strict=True))
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    [scores] = session.run(None, {name: part.numpy() for name, part in given.items()})
    torch.testing.assert_close(torch.from_numpy(scores), expected, rtol=1e-4, atol=1e-4)
    scripted = torch.jit.load(tmp_path / "out" / "model.torchscript")
    torch.testing.assert_close(scripted(*given.values()), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(load_model(tmp_path / "out" / "model.safetensors")(inputs), expected)


@pytest.mark.long
def test_without_the_data_they_are_exported_as_well(tmp_path: Path) -> None:
    run = finish(
        tmp_path / "run", "client_num_in_total=3", "client_num_per_round=3", "client_share=null", "image_size=null",
        config=write(tmp_path),
    )  # fmt: skip
    example = run.origin.example
    assert isinstance(example, dict)
    assert (example["attention_mask"].min(), example["input_ids"].max()) == (1, 0)
    elsewhere = replace(run, experiment=None, without_data="they are elsewhere")
    card = Exporter(elsewhere, ("torchscript",)).export(choose(elsewhere, level=2), tmp_path / "out")
    assert card.files[0].difference is not None
