"""``model_args`` to the initial global model: networks of the user's own, of torchvision, and weights to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fedml_dapper.config import ModelArgs, load_settings, sources
from fedml_dapper.errors import ConfigError
from fedml_dapper.models import build_backbone, example_image

EXAMPLE = example_image(8)
CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, hidden=6):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(192, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, num_classes)

    def forward(self, x):
        return self.head(self.body(x))

def lazy(classes=3):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(classes))

def nothing():
    return "no network"

def broken():
    raise ValueError("two\\nlines")

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(CODE)
    return path


def test_a_class_is_told_the_classes_where_it_takes_them(file: Path) -> None:
    made = build_backbone(ModelArgs(model=f"{file}:Net", arguments={"hidden": 9}), 4, 1, EXAMPLE)
    assert made.head_tensors == {"head.weight", "head.bias"}
    assert made.state_dict()["head.weight"].shape == (4, 9)
    asked = ModelArgs(model=f"{file}:Net", arguments={"num_classes": 5})
    assert build_backbone(asked, 5, 1, EXAMPLE).state_dict()["head.weight"].shape == (5, 6)
    assert build_backbone(ModelArgs(model=f"{file}:lazy"), 3, 1, EXAMPLE).head_tensors == {"3.weight", "3.bias"}


@pytest.mark.parametrize("name", ["Net", "lazy"])
def test_weights_follow_from_the_seed(file: Path, name: str) -> None:
    def weights(seed: int) -> torch.Tensor:
        backbone = build_backbone(ModelArgs(model=f"{file}:{name}"), 3, seed, EXAMPLE)
        return torch.cat([tensor.flatten() for tensor in backbone.state_dict().values()])

    first, state = weights(1), torch.get_rng_state()
    torch.manual_seed(99)
    assert torch.equal(weights(1), first)
    assert not torch.equal(weights(2), first)
    assert not torch.equal(torch.get_rng_state(), state)  # the test's own seeding; nothing put it back


@pytest.mark.parametrize(("name", "head"), [("resnet18", "fc"), ("mobilenet_v2", "classifier.1")])
def test_torchvision_s_networks_get_a_head_for_the_classes(name: str, head: str) -> None:
    model = build_backbone(ModelArgs(model=f"torchvision:{name}"), 7, 1, example_image(32))
    assert (model.predictor_name, model(torch.randn(2, 3, 32, 32)).shape) == (head, (2, 7))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "torchvision:resnet81"}, r"torchvision has no network `resnet81`; did you mean `resnet18`\?"),
        ({"model": "timm:resnet18"}, "`timm:resnet18` needs timm .*; pip install timm"),
        (
            {"model": "resnet10", "arguments": {"a": 1}},
            "model_args.arguments needs a network of your own",
        ),
        (
            {"model": "resnet10", "predictor": "fc"},
            "predictor .fc. needs a network of your own .it is `resnet10`.",
        ),
        ({"model": "{file}:Net", "width": 3}, "model_args.width .3. needs a built-in network .it is "),
        ({"model": "{file}:Nett"}, "nets.py has no `Nett`; did you mean `Net`"),
        ({"model": "{file}:number"}, "is neither a class nor a function; name one that gives a torch.nn.Module"),
        ({"model": "{file}:nothing"}, "gives a str, expected a torch.nn.Module"),
        ({"model": "{file}:broken"}, r"cannot be made from \(\): ValueError: two lines"),
        ({"model": "{file}:Net", "arguments": {"hiden": 3}}, "unexpected keyword argument 'hiden'"),
        (
            {"model": "{file}:Net", "predictor": "haed"},
            "model_args.predictor: .*has no layer `haed`; did you mean `head`",
        ),
        ({"model": "resnet19"}, "unknown network `resnet19`; did you mean `resnet18`"),
        ({}, "neither the experiment file nor the program says which network"),
    ],
)
def test_what_cannot_be_built_is_one_line(file: Path, values: dict[str, Any], message: str) -> None:
    named = {key: value.format(file=file) if isinstance(value, str) else value for key, value in values.items()}
    with pytest.raises(ConfigError, match=message) as caught:
        build_backbone(ModelArgs(**named), 4, 1, EXAMPLE)
    assert "\n" not in str(caught.value)


def test_built_in_backbones_take_square_colour_images() -> None:
    with pytest.raises(ConfigError, match=r"`resnet10` takes square colour images, \(3, S, S\), .* are \(1, 28, 28\)"):
        build_backbone(ModelArgs(model="resnet10"), 4, 1, torch.zeros(1, 1, 28, 28))


# Weights


@pytest.mark.parametrize("form", ["start.safetensors", "start.pt", "wrapped.pth"])
def test_training_starts_from_weights_in_a_file(file: Path, tmp_path: Path, form: str) -> None:
    args = ModelArgs(model=f"{file}:Net")
    wanted, path = build_backbone(args, 4, 2, EXAMPLE).state_dict(), tmp_path / form
    if form.endswith("safetensors"):
        save_file(wanted, path)
    else:
        torch.save({"state_dict": wanted, "epoch": 3} if form.startswith("wrapped") else wanted, path)
    loaded = build_backbone(args.model_copy(update={"weights": path}), 4, 1, EXAMPLE).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in wanted.items())


def test_weights_that_do_not_fit_are_listed(file: Path, tmp_path: Path) -> None:
    args, path = ModelArgs(model=f"{file}:Net", weights=tmp_path / "start.pt"), tmp_path / "start.pt"
    tensors = dict(build_backbone(ModelArgs(model=f"{file}:Net"), 4, 1, EXAMPLE).state_dict())
    torch.save({**tensors, "head.weight": torch.zeros(9, 6), "head.bias": torch.zeros(9)}, path)
    with pytest.raises(
        ConfigError, match=r"start.pt is for 9 classes, and the data have 4, so its head \(head.bias, hea"
    ):
        build_backbone(args, 4, 1, EXAMPLE)
    del tensors["head.bias"]
    torch.save({**tensors, "body.1.weight": torch.zeros(2, 2), "extra": torch.zeros(1)}, path)
    with pytest.raises(ConfigError) as caught:
        build_backbone(args, 4, 1, EXAMPLE)
    assert (
        "the file lacks head.bias; the network has no extra; of other shape are body.1.weight (2, 2) for (6, 192)"
        in (str(caught.value))
    )
    torch.save({"anything": Path("a")}, path)
    with pytest.raises(ConfigError, match=r"start.pt holds no plain tensors .*save model.state_dict\(\)"):
        build_backbone(args, 4, 1, EXAMPLE)
    torch.save([1, 2], path)
    with pytest.raises(ConfigError, match="holds no state dict"):
        build_backbone(args, 4, 1, EXAMPLE)


def test_weights_lie_beside_the_experiment_and_their_content_counts(file: Path, tmp_path: Path) -> None:
    experiment = tmp_path / "experiment.yaml"
    experiment.write_text("data_args: {dataset: digits_offline}\nmodel_args: {model: nets.py:Net, weights: start.pt}\n")
    with pytest.raises(ConfigError, match=r"model_args.weights: no file start.pt; looked in"):
        load_settings([experiment])
    (tmp_path / "start.pt").write_bytes(b"one")
    first = sources(load_settings([experiment]))
    assert load_settings([experiment]).model_args.weights == tmp_path / "start.pt"
    assert first["model_args.weights"].startswith("start.pt (content ")
    assert first["model_args.model"].startswith("nets.py:Net (source ")
    (tmp_path / "start.pt").write_bytes(b"two")
    assert sources(load_settings([experiment]))["model_args.weights"] != first["model_args.weights"]
    assert sources(load_settings([experiment], ["model=torchvision:resnet18"])).keys() == {"model_args.weights"}
