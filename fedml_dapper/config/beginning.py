"""The first experiment file of a user with their own data and network."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from fedml_dapper.config.references import Reference

_LEVELS = 5
_CUTTABLE = ("resnet10", "resnet18")
"""Networks that can do without BatchNorm, and are best cut without it (docs/devices.md)."""


@dataclass(frozen=True)
class Beginning:
    """Answers that differ from one first experiment to the next. Paths are relative to the working directory."""

    data: str = "digits_offline"
    """A folder of pictures, ``FILE.py:FUNCTION``, or a suite."""
    model: str = "resnet10"
    """``FILE.py:NAME``, ``torchvision:NAME``, or a built-in network."""
    clients: int = 10
    weakest: int = 20
    """Percent of the full model's parameters that the weakest device can hold."""
    rounds: int = 12

    @property
    def ratios(self) -> list[float]:
        """Pruning ratios of the capability levels, the strongest first."""
        most = 1 - self.weakest / 100
        return [round(most * level / (_LEVELS - 1), 3) for level in range(_LEVELS)] if most else [0.0]


def experiment_text(beginning: Beginning, folder: Path) -> str:
    """Return the experiment as YAML, with paths relative to ``folder``, where its file will be."""
    cuttable = beginning.model in _CUTTABLE
    levels = ", ".join(str(ratio) for ratio in beginning.ratios)
    more = "" if cuttable else "\n    # what your network cannot lose is refused, and the run says how much it can"
    return f"""\
# Made by `fedml-dapper init`. `fedml-dapper settings KEY` says what a key means; what is left out has its default.
common_args:
  training_type: simulation
  random_seed: 1

data_args:
{_data(beginning.data, folder)}
  # clients: [{{domain: DOMAIN, level: 1}}, ...]    # who holds what, and on which device; drawn when left out

model_args:
  model: {_from(folder, beginning.model)}
{_network(cuttable)}
train_args:
  client_num_in_total: {beginning.clients}
  client_num_per_round: {beginning.clients}                  # fewer: drawn anew in each round
  comm_round: {beginning.rounds}
  epochs: 5
  batch_size: 16
  learning_rate: {0.05 if cuttable else 0.01}          # the first thing to try others of: fedml-dapper search
  momentum: 0.9
  max_grad_norm: 2

dapper_args:
  method: {"dapperfl_slim" if cuttable else "dapperfl"}                  # or fedavg, heterofl, ...: config/methods
  levels:
    ratios: [{levels}]    # share of the parameters that is cut at level 1, 2, ...{more}
  evaluation: {{devices: true}}            # test what each level's devices run, not the global model alone
  output_dir: runs
"""


def _data(data: str, folder: Path) -> str:
    if Path(data).is_dir():
        return (
            f"  dataset: folder               # {data}/<domain>/<class>/* (docs/own_data.md)\n"
            f"  data_cache_dir: {_from(folder, data)}\n"
            "  image_size: 32                # pictures of any size are brought to this\n"
            "  normalisation: measured       # by mean and standard deviation of the training pictures"
        )
    return f"  dataset: {_from(folder, data)}"


def _network(cuttable: bool) -> str:
    if cuttable:
        return (
            "  width: 16                     # channels of the first layer; the others scale with it\n"
            "  norm: standardised            # no BatchNorm, whose statistics do not fit slim models\n"
        )
    return "  # without BatchNorm, whose statistics do not fit slim models, try dapperfl_slim: docs/own_model.md\n"


def _from(folder: Path, named: str) -> str:
    """Write ``named`` as a file in ``folder`` has to name it."""
    reference = Reference.parse(named)
    if reference is not None and reference.file is not None:
        return _scalar(f"{_relative(folder, reference.file)}:{reference.name}")
    return _scalar(_relative(folder, Path(named)) if Path(named).is_dir() else named)


def _relative(folder: Path, path: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _scalar(text: str) -> str:
    """Write a string in YAML: bare where nothing in it could be taken for something else."""
    return text if re.fullmatch(r"[A-Za-z./][\w./:-]*", text) else json.dumps(text)
