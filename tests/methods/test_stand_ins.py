"""Single layers in the place of blocks, and beside the one they learn from."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.config import Norm
from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.parts.block_chain import BlockChain, chain_of
from fedml_dapper.methods.parts.stand_ins import distance, shortened, stand_in_of, with_stand_ins
from fedml_dapper.models import Backbone, example_image
from fedml_dapper.models.adopt import adopt
from fedml_dapper.models.resnet import ResNet

IMAGE = example_image(8)
IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def stood_in(norm: Norm = "batch", kernel: int = 3) -> tuple[Backbone, BlockChain]:
    plain = ResNet([1, 1, 1, 1], 4, 10, norm)
    chain = chain_of(plain, IMAGE, None, "")
    return with_stand_ins(plain, chain, kernel).eval(), chain


def parts(model: nn.Module) -> set[str]:
    wanted = ("stem", *(f"stages.{place}" for place in range(4)), *(f"stand_ins.{number}" for number in range(2, 5)))
    return {part for part in wanted if any(name.startswith(f"{part}.") for name in model.state_dict())}


@pytest.mark.parametrize("norm", ["batch", "group", "standardised"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_they_have_their_blocks_shapes(norm: Norm, kernel: int) -> None:
    whole, chain = stood_in(norm, kernel)
    weights = [whole.state_dict()[f"{stand_in_of(number)}0.weight"] for number in (2, 3, 4)]
    assert [tuple(weight.shape) for weight in weights] == [
        (8, 4, kernel, kernel), (16, 8, kernel, kernel), (32, 16, kernel, kernel)
    ]  # fmt: skip
    for depth in (1, 2, 3, 4):
        assert shortened(whole, chain, depth, teaches=False)(IMAGES).shape == (3, 10)


def test_the_network_does_not_call_them() -> None:
    whole, _ = stood_in()
    plain = ResNet([1, 1, 1, 1], 4, 10).eval()
    plain.load_state_dict({name: whole.state_dict()[name] for name in plain.state_dict()})
    assert torch.equal(whole(IMAGES), plain(IMAGES))


def test_a_shortened_network_is_its_first_blocks_and_stand_ins_for_the_others() -> None:
    whole, chain = stood_in()
    cut = shortened(whole, chain, 2, teaches=False)
    assert parts(cut) == {"stem", "stages.0", "stages.1", "stand_ins.3", "stand_ins.4"}
    third, fourth = (whole.get_submodule(f"stand_ins.{number}") for number in (3, 4))
    assert isinstance(whole, ResNet)
    features = whole.stages[1](whole.stages[0](whole.stem(IMAGES)))
    assert torch.equal(cut(IMAGES), whole.predictor(fourth(third(features)).mean(dim=(2, 3))))
    assert parts(shortened(whole, chain, 4, teaches=False)) == {"stem", *(f"stages.{place}" for place in range(4))}


def test_a_teaching_block_is_the_block_and_tells_how_far_its_stand_in_is() -> None:
    whole, chain = stood_in("group")
    plain, teaching = (shortened(whole, chain, 3, teaches=teaches).train() for teaches in (False, True))
    assert parts(teaching) == parts(plain) | {"stand_ins.3"}
    assert torch.equal(teaching(IMAGES), plain(IMAGES))
    assert isinstance(whole, ResNet)
    before = whole.stages[1](whole.stages[0](whole.stem(IMAGES)))
    apart = whole.get_submodule("stand_ins.3")(before) - whole.stages[2](before)
    found = distance(teaching)
    assert found.item() == pytest.approx(apart.square().mean().item(), rel=1e-5)
    found.backward()  # type: ignore[no-untyped-call]
    moved = {name for name, parameter in teaching.named_parameters() if parameter.grad is not None}
    assert moved == {"stand_ins.3.0.weight", "stand_ins.3.1.weight", "stand_ins.3.1.bias"}


def test_a_teaching_block_follows_its_mode_and_says_nothing_in_evaluation() -> None:
    whole, chain = stood_in()
    teaching = shortened(whole, chain, 3, teaches=True)
    assert not any(module.training for module in teaching.eval().modules())
    teaching(IMAGES)
    with pytest.raises(AssertionError, match="has not run in training"):
        distance(teaching)


class Tokens(nn.Module):
    """Blocks of vectors, one of which is wider; and one that begins in place."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Linear(3 * 8, 6)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(6, 6)), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 7))]
        )
        self.head = nn.Linear(7, 10)

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.cut(x.permute(0, 2, 1, 3).flatten(2))
        for block in self.blocks:
            rows = block(rows)
        logits: Tensor = self.head(rows.mean(dim=1))
        return logits


def test_a_linear_layer_stands_in_for_blocks_of_vectors() -> None:
    own = adopt(Tokens(), IMAGE)
    chain = chain_of(own, IMAGE, None, "")
    whole = with_stand_ins(own, chain, 3)
    assert tuple(whole.state_dict()["stand_ins.2.0.weight"].shape) == (7, 6)
    assert "stand_ins.2.0.weight" not in own.state_dict()
    assert shortened(whole, chain, 1, teaches=False)(IMAGES).shape == (3, 10)
    teaching = shortened(whole, chain, 2, teaches=True).train()
    (teaching(IMAGES).square().mean() + distance(teaching)).backward()
    assert all(parameter.grad is not None for parameter in teaching.parameters())


def test_shapes_that_no_layer_has_are_refused_in_one_line() -> None:
    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.transpose(1, 2)

    own = adopt(nn.Sequential(nn.Flatten(2), nn.Linear(64, 5), Turned(), nn.Flatten(), nn.Linear(15, 10)), IMAGE)
    chain = chain_of(own, IMAGE, ["1", "2"], "")
    with pytest.raises(ConfigError, match="can stand in for `2` of Sequential, which makes 5 x 3 of 3 x 5") as caught:
        with_stand_ins(own, chain, 3)
    assert "\n" not in str(caught.value)
