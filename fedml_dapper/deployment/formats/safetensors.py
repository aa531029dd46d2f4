"""safetensors: weights under the network's own names, with what is needed to rebuild the network."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import torch
from torch import Tensor

from fedml_dapper.config import Reference
from fedml_dapper.deployment.deployed import Deployed
from fedml_dapper.deployment.formats.contract import Format, Product, Runtime
from fedml_dapper.federation.run_folder.model_file import CODE, load_model, read_model, save_model
from fedml_dapper.inputs import Inputs


class SafeTensors(Format):
    """A file for Python with this package, and for networks with the same names and shapes.

    The source file of a user's own network is copied beside it, as reading the weights needs it.
    """

    name = "safetensors"
    file_name = "model.safetensors"

    def write(self, product: Product, path: Path) -> None:
        settings = copy.deepcopy(product.origin.settings)
        for key in CODE:
            section, name = key.split(".")
            reference = Reference.parse(str(settings[section].get(name)))
            if reference is not None and reference.file is not None and reference.source is not None:
                shutil.copy(reference.source, path.parent)
                settings[section][name] = (
                    f"{reference.file.name}:{reference.name}"  # a relative path, not that on this machine
                )
        origin = product.origin.model_copy(update={"settings": settings})
        save_model(product.model.state_dict(), path, product.round, origin, product.kept)

    def read(self, path: Path) -> Runtime:
        model = load_model(path)
        origin = read_model(path).origin
        assert origin is not None, "without it no model is loaded"
        deployed = Deployed(model, origin.preprocessing)

        @torch.no_grad()
        def run(inputs: Inputs) -> Tensor:
            outputs: Tensor = deployed(inputs)
            return outputs

        return run
