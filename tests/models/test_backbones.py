from __future__ import annotations

import pytest
import torch

from fedml_dapper.config import ModelArgs
from fedml_dapper.errors import ConfigError
from fedml_dapper.models import BACKBONES, build_backbone, example_image

LENETS = ("lenet5", "lenet5_one_fc", "lenet5_three_fc")


def test_every_backbone_is_known_by_its_name() -> None:
    assert set(BACKBONES) == {"alexnet", "resnet10", "resnet18", "transformer_small", "unet_small", *LENETS}


@pytest.mark.parametrize(
    ("name", "input_size", "parameters"),
    [
        ("resnet10", 32, 4_903_242),
        ("resnet18", 32, 11_173_962),
        ("alexnet", 256, 12_974_154),
        ("lenet5", 32, 62_050),  # biases and BatchNorm weights included
        ("lenet5_one_fc", 32, 62_050 - (120 * 84 + 84) - (84 * 10 + 10) + (120 * 10 + 10)),
        ("lenet5_three_fc", 32, 62_050 - (84 * 10 + 10) + (84 * 64 + 64) + (64 * 10 + 10)),
        ("lenet5", 28, 62_050 - 144 * 120),
        ("lenet5", 64, 62_050 + 2304 * 120),
    ],
)
def test_parameter_counts_of_the_papers(name: str, input_size: int, parameters: int) -> None:
    model = build_backbone(ModelArgs(model=name), 10, seed=1, example=example_image(input_size))
    assert sum(tensor.numel() for tensor in model.parameters()) == parameters


@pytest.mark.parametrize(("input_size", "flattened"), [(28, 256), (32, 400), (64, 2704)])
@pytest.mark.parametrize("name", LENETS)
def test_lenet_fits_the_image_size(name: str, input_size: int, flattened: int) -> None:
    model = build_backbone(ModelArgs(model=name), 10, 1, example_image(input_size))
    assert model.get_submodule("hidden.0").in_features == flattened
    assert model(torch.randn(2, 3, input_size, input_size)).shape == (2, 10)


def test_alexnet_state_is_the_49_52_mib_of_fdse() -> None:
    state = build_backbone(ModelArgs(model="alexnet"), 10, 1, example_image(256)).state_dict()
    assert sum(tensor.nbytes for tensor in state.values()) / 2**20 == pytest.approx(49.52, abs=0.005)


@pytest.mark.parametrize(
    ("name", "width", "input_size", "features"),
    [
        ("resnet10", 4, 28, 32),
        ("resnet18", 4, 28, 32),
        ("alexnet", 2, 63, 32),
        ("lenet5", 3, 28, 42),
        ("lenet5_one_fc", 3, 16, 60),
        ("lenet5_three_fc", 3, 28, 32),
    ],
)
def test_forward_is_predict_of_encode_and_width_scales_all(
    name: str, width: int, input_size: int, features: int
) -> None:
    model = build_backbone(ModelArgs(model=name, width=width), 7, 1, example_image(input_size)).eval()
    images = torch.randn(2, 3, input_size, input_size)
    representations = model.encode(images)
    assert representations.shape == (2, features)
    assert torch.equal(model(images), model.predict(representations))
    assert model(images).shape == (2, 7)


@pytest.mark.parametrize("name", ["resnet10", "alexnet", "lenet5"])
def test_the_width_as_published_is_the_default(name: str) -> None:
    published = ModelArgs(model=name, width=BACKBONES[name].width)
    default, named = (build_backbone(args, 10, 1, example_image(64)) for args in (ModelArgs(model=name), published))
    assert {key: tensor.shape for key, tensor in default.state_dict().items()} == {
        key: tensor.shape for key, tensor in named.state_dict().items()
    }


def test_initialisation_depends_on_the_seed_alone() -> None:
    def weights(seed: int) -> torch.Tensor:
        return build_backbone(ModelArgs(model="resnet10", width=4), 10, seed).predictor.weight

    first = weights(1)
    torch.manual_seed(99)
    assert torch.equal(weights(1), first)
    assert not torch.equal(weights(2), first)


def test_unknown_backbone_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="did you mean `resnet18`"):
        build_backbone(ModelArgs(model="resnet19"), 10, 1)


@pytest.mark.parametrize(("name", "smallest"), [("alexnet", 63), *((name, 16) for name in LENETS)])
def test_images_too_small_for_the_backbone_are_a_config_error(name: str, smallest: int) -> None:
    args = ModelArgs(model=name, width=1)
    build_backbone(args, 10, 1, example_image(smallest)).eval()(torch.zeros(1, 3, smallest, smallest))
    with pytest.raises(ConfigError, match=f"data_args.image_size to {smallest} or more"):
        build_backbone(args, 10, 1, example_image(smallest - 1))


def test_unet_gives_logits_for_every_pixel_whatever_the_side() -> None:
    model = build_backbone(ModelArgs(model="unet_small"), 2, 1, example_image(30))
    assert sum(parameter.numel() for parameter in model.parameters()) == 118_610
    assert model(torch.rand(2, 3, 30, 30)).shape == (2, 2, 30, 30)
    assert model.encode(torch.rand(2, 3, 9, 9)).shape == (2, 16, 9, 9)
    assert not model.has_representations
    assert build_backbone(ModelArgs(model="lenet5"), 2, 1, example_image(32)).has_representations
    with pytest.raises(ConfigError, match=r"data_args.image_size to 8 or more"):
        build_backbone(ModelArgs(model="unet_small"), 2, 1, example_image(7))
    with pytest.raises(ConfigError, match=r"the data state none; list them in data_args.classes"):
        build_backbone(ModelArgs(model="unet_small"), 0, 1, example_image(8))
