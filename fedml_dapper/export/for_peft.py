"""Adapters alone, in the format of Hugging Face's peft, which loads them without this package."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from fedml_dapper.errors import ConfigError
from fedml_dapper.models import Backbone
from fedml_dapper.models.adapters import AdaptedLinear
from fedml_dapper.models.frozen import MovedAtServer

FOLDER_NAME = "peft"
_PREFIX = "base_model.model."
"""What peft puts before the names of a network's own tensors."""


def write_for_peft(model: Backbone, base: Backbone, folder: Path) -> None:
    """Write the adapters of ``model``, and what else was trained, into ``folder``, a new one.

    ``PeftModel.from_pretrained(network, folder)`` puts them into the network that they stand beside.

    Args:
        model: A model with adapters.
        base: The uncut one, to compare sizes with.
        folder: Gets ``adapter_config.json`` and ``adapter_model.safetensors``.

    Raises:
        ConfigError: The model has no adapters, lacks channels of its base, which peft has whole, or has another base
            than it started with.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, AdaptedLinear)}
    if not layers:
        raise ConfigError("--peft: the run trained no adapters (model_args.adapter)")
    for name, layer in layers.items():
        dense = base.get_submodule(name).get_parameter("weight")
        if isinstance(dense, MovedAtServer):
            raise ConfigError(
                f"--peft: the run's method put what it learnt into `{name}` itself, so that its adapters are nothing"
                " without that; export the merged model"
            )
        if layer.weight.shape != dense.shape:
            raise ConfigError(
                f"--peft: `{name}` is narrower at this level, and peft puts adapters beside the whole network; leave"
                " --level out, or choose a level without `base`"
            )
    folder.mkdir()
    save_file(_tensors(model, layers), folder / "adapter_model.safetensors", {"format": "pt"})
    config = _config(layers, _trained_besides(model, layers))
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _trained_besides(model: Backbone, layers: dict[str, AdaptedLinear]) -> list[str]:
    """Return the layers that were trained and have no adapter: norms and the last one."""
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return list(dict.fromkeys(layer for name in trained if (layer := name.rpartition(".")[0]) not in layers))


def _tensors(model: Backbone, layers: dict[str, AdaptedLinear]) -> dict[str, Tensor]:
    tensors = dict[str, Tensor]()
    for name, layer in layers.items():
        tensors[f"{_PREFIX}{name}.lora_A.weight"] = layer.lora_a.detach().contiguous()
        tensors[f"{_PREFIX}{name}.lora_B.weight"] = layer.lora_b.detach().contiguous()
    for name in _trained_besides(model, layers):
        for entry, tensor in model.get_submodule(name).state_dict().items():
            tensors[f"{_PREFIX}{name}.{entry}"] = tensor.contiguous()
    return tensors


def _config(layers: dict[str, AdaptedLinear], besides: list[str]) -> dict[str, object]:
    some = next(iter(layers.values()))
    ranks = {name: layer.rank for name, layer in layers.items()}
    return {
        "peft_type": "LORA",
        "r": some.rank,
        "rank_pattern": {name: rank for name, rank in ranks.items() if rank != some.rank},
        "lora_alpha": some.scaling * some.rank,
        "alpha_pattern": {name: some.scaling * rank for name, rank in ranks.items() if rank != some.rank},
        "lora_dropout": some.dropout,
        "bias": "none",
        "fan_in_fan_out": some.is_transposed,
        "target_modules": list(layers),
        "modules_to_save": besides,
        "inference_mode": True,
    }
