"""What users may bring and get wrong: each is one line on the terminal, exit code 2 and nothing written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from fedml_dapper.cli import main
from fedml_dapper.config import Settings

NETS = """
import torch
from torch import nn

def no_module(num_classes): return "resnet"

def eleven(num_classes): return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 11))

class Untraceable(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 16), nn.Linear(8, num_classes)
    def forward(self, x):
        x = self.conv(x).flatten(1)
        return self.head(torch.from_numpy(x.detach().numpy()).sort(1).values)

class Broken(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, num_classes)
    def forward(self, x): return self.head(self.conv(x))
"""


def secure(settings: str) -> str:
    return f"dapper_args.privacy={{secure_aggregation: {{{settings}}}}}"


def distributed(noise: str, sums: str = "threshold: 6") -> str:
    return f"dapper_args.privacy={{where: distributed, {noise}, secure_aggregation: {{{sums}}}}}"


NOISE = "noise_multiplier: 1, delta: 1.0e-5"
GOOD, UNIFORM = f"{{{NOISE}}}", "aggregation_weights=uniform"
DATA = """
import torch
from torch.utils.data import IterableDataset, TensorDataset

class Endless(IterableDataset):
    def __iter__(self): return iter([(torch.zeros(3, 16, 16), 0)])

good = TensorDataset(torch.zeros(8, 3, 16, 16), torch.arange(8) % 2)
def endless(): return {"a": (Endless(), good)}
def untested(): return {"a": (good, TensorDataset(torch.zeros(0, 3, 16, 16), torch.zeros(0, dtype=torch.int64)))}
"""


@pytest.fixture
def experiment(tmp_path: Path, tiny_settings: Callable[..., Settings]) -> Path:
    """An experiment of 16 pixels beside ``nets.py``, ``data.py`` and pictures of two domains, one class empty."""
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "broken.py").write_text("import nothing_of_that_name")
    rng = np.random.default_rng(1)
    for domain in ("air", "zoo"):
        for split in ("train", "test"):
            for label in ("cat", "dog"):
                folder = tmp_path / "pictures" / domain / split / label
                folder.mkdir(parents=True)
                for index in range(4 if label == "cat" else 0):
                    pixels = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(folder / f"{index}.png")
    file = tmp_path / "experiment.yaml"
    file.write_text(tiny_settings("image_size=16", "width=null", "batch_size=4", "method=dapperfl").as_yaml())
    return file


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=none.py:Net"], "model_args.model: no file none.py; looked in"),
        (["model=nets.py:Nets"], "nets.py has no `Nets`"),
        (["model=resnet11"], "did you mean `resnet1"),
        (["model=torchvision:resnet19"], "torchvision has no network `resnet19`"),
        (["model=nothing_there.models:Net"], "nothing_there"),
        (["model=broken.py:Net"], "nothing_of_that_name"),
        (["model=nets.py:no_module"], "gives a str, expected a torch.nn.Module"),
        (["model=nets.py:eleven"], "it gives"),
        (["model=nets.py:Untraceable"], "no channel of this network can be cut"),
        (["model=nets.py:Broken"], "Broken"),
        (["model=nets.py:eleven", "weights=none.safetensors"], "none.safetensors"),
        (["dataset=data.py:endless", "image_size=null"], "domain a, train: a Endless has no length"),
        (["dataset=data.py:untested", "image_size=null"], "domain a"),
        (["dataset=data.py:nothing"], "data.py has no `nothing`"),
        (["dataset=folder", "data_cache_dir=pictures"], "dog"),
        (["dataset=folder", "data_cache_dir=none"], "none"),
        (["dataset=folder", "data_cache_dir=''"], "data_cache_dir: the name of a file or folder is empty"),
        (["output_dir=''"], "output_dir: the name of a file or folder is empty"),
        (["method=nets.py:Broken"], "is no method; derive a class from"),
        (
            ["dapper_args.levels.assignment=[1, 2]"],
            "experiment.yaml, --set: dapper_args.levels.assignment as a list (2 entries) needs one entry for each of",
        ),
        (["dapper_args.levels.assignment=nets.py:rule"], "nets.py has no `rule`"),
        (["task=segmentations"], "did you mean `segmentation`?"),
        (["dapper_args.privacy={noise_multiplier: 1}"], "above 0 (noise_multiplier) needs dapper_args.privacy.delta"),
        (["dapper_args.privacy={target_epsilon: 8}"], "above 0 (target_epsilon) needs dapper_args.privacy.delta"),
        (["dapper_args.privacy={delta: 1.0e-5}"], "give noise_multiplier, e.g. 1.1, or target_epsilon, e.g. 8"),
        (
            [f"dapper_args.privacy={GOOD[:-1]}, target_epsilon: 8}}"],
            "does not go with dapper_args.privacy.target_epsilon (8)",
        ),
        (
            ["dapper_args.privacy={noise_multiplier: 0, target_epsilon: 8}"],
            "noise_multiplier (0) does not go with dapper_args.privacy.target_epsilon (8)",
        ),
        (["dapper_args.privacy={clip: 0, noise_multiplier: 1, delta: 1.0e-5}"], "`clip` in dapper_args.privacy is 0"),
        (
            ["dapper_args.privacy={clip: null, noise_multiplier: 1, delta: 1.0e-5}"],
            "clip: null does not go with dapper_args.privacy.noise_multiplier",
        ),
        (["dapper_args.privacy={noise_multiplier: -1, delta: 1.0e-5}"], "`noise_multiplier` in dapper_args.privacy is"),
        (
            ["dapper_args.privacy={noise_multiplier: 1, delta: 0.1}"],
            "privacy.delta (0.1) needs to be less than one over train_args.client_num_in_total (1/10)",
        ),
        (["dapper_args.privacy={noise_multiplier: 1, delta: 1.0e-5, where: edge}"], "`where` in dapper_args.privacy"),
        ([f"dapper_args.privacy={GOOD}"], "privacy needs dapper_args.aggregation_weights uniform (it is samples)"),
        ([f"dapper_args.privacy={GOOD}", UNIFORM], "`dapperfl` learns which channels each client keeps"),
        ([f"dapper_args.privacy={GOOD}", UNIFORM, "method=scaffold"], "each client's control variates"),
        (
            [f"dapper_args.privacy={GOOD}", UNIFORM, "method=fedavg", "norm=batch"],
            "does not go with BatchNorm's statistics in uploads",
        ),
        ([f"dapper_args.privacy={GOOD}", UNIFORM, "dapper_args.defence.aggregation=median"], "set it to mean"),
        (
            [f"dapper_args.privacy={GOOD}", UNIFORM, "dapper_args.defence.strikes=3"],
            "defence.strikes (3): what a client",
        ),
        (
            ["dapper_args.privacy={target_epsilon: 1.0e-12, delta: 1.0e-30}", UNIFORM, "method=fedavg"],
            "no noise is enough for 1e-12 with delta 1e-30",
        ),
        (
            ["dapper_args.privacy={noise_multiplier: 1, delta: 1.0e-5, where: client}", UNIFORM, "personal=true"],
            "does not go with dapper_args.evaluation.personal: the server would be told",
        ),
        ([secure(""), UNIFORM], "missing key `threshold` in dapper_args.privacy.secure_aggregation"),
        ([secure("threshold: 6")], "privacy needs dapper_args.aggregation_weights uniform (it is samples)"),
        (
            [secure("threshold: 11"), UNIFORM],
            "threshold (11) needs more than half of train_args.client_num_per_round, and no more than all (6 to 10)",
        ),
        (
            [secure("threshold: 5"), UNIFORM],
            "threshold (5) needs more than half of train_args.client_num_per_round, and no more than all (6 to 10)",
        ),
        ([secure("threshold: 6, min_holders: 11"), UNIFORM], "no weight would ever change; lower it"),
        (
            [secure("threshold: 6}, delta: 1.0e-5, x: {"), UNIFORM],
            "does not go with settings of noise (delta): it adds no noise",
        ),
        (
            [f"dapper_args.privacy={GOOD[:-1]}, secure_aggregation: {{threshold: 6}}}}"],
            "settings of noise (noise_multiplier, delta): it adds no noise",
        ),
        (
            ["dapper_args.privacy={where: client, secure_aggregation: {threshold: 6}}"],
            "does not go with settings of noise (where)",
        ),
        (
            ["dapper_args.privacy={clip: 2, secure_aggregation: {threshold: 6}}"],
            "does not go with settings of noise (clip)",
        ),
        ([f"dapper_args.privacy={GOOD[:-1]}, where: distributed}}"], "give secure_aggregation, e.g. {threshold: 6}"),
        (
            ["dapper_args.privacy={where: distributed, secure_aggregation: {threshold: 6}}"],
            "give noise_multiplier, e.g. 1.1, or target_epsilon, e.g. 8",
        ),
        ([distributed("noise_multiplier: 1")], "above 0 (noise_multiplier) needs dapper_args.privacy.delta"),
        ([distributed("target_epsilon: 8")], "above 0 (target_epsilon) needs dapper_args.privacy.delta"),
        (
            [distributed("noise_multiplier: 1, delta: 0.1"), UNIFORM],
            "privacy.delta (0.1) needs to be less than one over train_args.client_num_in_total (1/10)",
        ),
        ([distributed("clip: 0, noise_multiplier: 1, delta: 1.0e-5")], "`clip` in dapper_args.privacy is 0"),
        (
            [distributed("clip: null, noise_multiplier: 1, delta: 1.0e-5")],
            "clip: null does not go with dapper_args.privacy.noise_multiplier",
        ),
        ([distributed(f"{NOISE}, colluding: 6")], "none is left whose noise counts"),
        (
            [distributed(f"{NOISE}, colluding: -1")],
            "`colluding` in dapper_args.privacy is -1",
        ),
        (
            [f"dapper_args.privacy={GOOD[:-1]}, colluding: 1}}"],
            "dapper_args.privacy.where distributed (it is server): it is about noise",
        ),
        (
            [distributed(NOISE, "threshold: 5"), UNIFORM],
            "threshold (5) needs more than half of train_args.client_num_per_round, and no more than all (6 to 10)",
        ),
        (
            [distributed("noise_multiplier: 1.0e+6, delta: 1.0e-5"), UNIFORM, "method=fedavg", "norm=group"],
            "of the clip; choose a smaller one, or where: server",
        ),
        (
            [distributed("noise_multiplier: 1.0e-9, delta: 1.0e-5"), UNIFORM, "method=fedavg", "norm=group"],
            "a sum of such noise hides less than is counted; choose a larger one",
        ),
        (
            [distributed("target_epsilon: 1.0e-12, delta: 1.0e-30"), UNIFORM, "method=fedavg", "norm=group"],
            "no noise is enough for 1e-12 with delta 1e-30",
        ),
        ([distributed(NOISE), UNIFORM], "`dapperfl` learns which channels each client"),
        (
            [distributed(NOISE), UNIFORM, "method=fedavg", "norm=batch"],
            "does not go with BatchNorm's statistics in uploads",
        ),
        (
            [distributed(NOISE), UNIFORM, "uplink=int8"],
            "fp32 (it is int8): the others have codes that cannot be added up",
        ),
        (
            [secure("threshold: 6"), UNIFORM, "uplink=int8"],
            "fp32 (it is int8): the others have codes that cannot be added up",
        ),
        (
            [secure("threshold: 6"), UNIFORM, "dapper_args.defence.max_change=2"],
            "max_change (2): that looks at single uploads",
        ),
        ([secure("threshold: 6"), UNIFORM], "`dapperfl` learns which channels each client keeps"),
        (
            [secure("threshold: 6"), UNIFORM, "method=fedavg", "norm=batch"],
            "does not go with BatchNorm's statistics in uploads",
        ),
        (
            ["model=resnet11", "method=fedprocs", "task=segmentations", "dapper_args.params.moon={taw: 1}"],
            "names, and settings of methods: 4 mistakes: (1) dapper_args.method: unknown method `fedprocs`",
        ),
        (["method=fedprocs", "dataset=nowhere"], "(2) data_args.dataset: unknown suite `nowhere`"),
        (["partition=owned"], "data_args.partition: unknown partition `owned`; did you mean `own`?"),
    ],
)
def test_is_one_line(experiment: Path, overrides: list[str], message: str) -> None:
    before = sorted(path for path in experiment.parent.rglob("*") if "__pycache__" not in path.parts)
    asked = [part for override in overrides for part in ("--set", override)]
    result = CliRunner().invoke(main, ["run", "-c", str(experiment), *asked], prog_name="fedml-dapper")
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert sorted(path for path in experiment.parent.rglob("*") if "__pycache__" not in path.parts) == before
