"""An app's own code: exported files, their sidecar and a picture, without this package. Prints every file's scores."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.modules["fedml_dapper"] = None  # type: ignore[assignment]  # importing it is an error

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402

torch.set_num_threads(1)
picture, folder = map(Path, sys.argv[1:])
about = json.loads((folder / "model.json").read_text())
side = about["input"]["shape"][-1]
resized = Image.open(picture).convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
pixels = np.asarray(resized).transpose(2, 0, 1)[None].copy()
session = onnxruntime.InferenceSession(folder / about["files"]["onnx"])
exported = torch.export.load(folder / about["files"]["torch-export"]).module()
scripted = torch.jit.load(folder / about["files"]["torchscript"])
with torch.no_grad():
    scores = {
        "onnx": session.run([about["output"]["name"]], {about["input"]["name"]: pixels})[0],
        "torch-export": exported(torch.from_numpy(pixels)).numpy(),
        "torchscript": scripted(torch.from_numpy(pixels)).numpy(),
    }
print(json.dumps({name: value[0].tolist() for name, value in scores.items()}))
