"""safetensors: weights under the network's own names, with what is needed to rebuild the network."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import torch
from torch import Tensor

from fedml_dapper.config import Reference
from fedml_dapper.config.references import ENTRY_POINTS
from fedml_dapper.deployment.deployed import Deployed
from fedml_dapper.deployment.formats.contract import Format, Product, Runtime
from fedml_dapper.federation.run_folder.model_file import CODE, load_model, note_model, read_model, save_model
from fedml_dapper.inputs import Inputs


class SafeTensors(Format):
    """A file for Python with this package, and for networks with the same names and shapes.

    The source file of a user's own network is copied beside it, as reading the weights needs it.
    """

    name = "safetensors"
    file_name = "model.safetensors"

    def write(self, product: Product, path: Path) -> None:
        settings = copy.deepcopy(product.origin.settings)
        settings["model_args"]["weights"] = None  # the file has later ones
        for key in ENTRY_POINTS:
            *sections, name = key.split(".")
            section = settings
            for each in sections:
                section = section.get(each, {})  # the origin keeps those that rebuilding needs
            reference = Reference.parse(str(section.get(name)))
            if reference is None or reference.file is None:
                continue
            if key in CODE and reference.source is not None:
                shutil.copy(reference.source, path.parent)
            section[name] = f"{reference.file.name}:{reference.name}"  # a relative path, not that on this machine
        origin = product.origin.model_copy(update={"settings": settings})
        save_model(product.model.state_dict(), path, product.round, origin, product.kept)

    def note_own(self, path: Path) -> None:
        note_model(path)

    def read(self, path: Path, *, trust_code: bool = False) -> Runtime:
        model = load_model(path, trust_code=trust_code)
        origin = read_model(path).origin
        assert origin is not None, "without it no model is loaded"
        deployed = Deployed(model, origin.preprocessing)

        @torch.no_grad()
        def run(inputs: Inputs) -> Tensor:
            outputs: Tensor = deployed(inputs)
            return outputs

        return run
