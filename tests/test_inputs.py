"""Inputs of several tensors, and the few things that are done with them."""

from __future__ import annotations

from collections import UserDict, namedtuple

import pytest
import torch

from fedml_dapper.errors import DataError
from fedml_dapper.inputs import (
    Inputs,
    as_inputs,
    axes_in_order,
    count,
    described,
    expanded,
    is_mask,
    joined,
    one_tensor,
    pieces,
    repeated,
    rows,
    tensors_of,
)

IDS, MASK = torch.arange(10).view(5, 2), torch.ones(5, 2)


@pytest.mark.parametrize("inputs", [IDS, {"ids": IDS, "mask": MASK}, (IDS, MASK)])
def test_pieces_of_a_batch_put_together_are_the_batch(inputs: Inputs) -> None:
    parts = pieces(inputs, 2)
    assert [count(part) for part in parts] == [2, 2, 1]
    again = joined(parts)
    assert type(again) is type(inputs)
    assert all(map(torch.equal, tensors_of(again), tensors_of(inputs)))
    last = rows(inputs, torch.tensor([4]))
    assert [count(each) for each in (last, repeated(last, 3), expanded(last, 3))] == [1, 3, 3]
    assert torch.equal(tensors_of(repeated(last, 3))[0], IDS[[4, 4, 4]])


def test_names_stand_in_one_order_whoever_gives_them() -> None:
    first, second = as_inputs({"mask": MASK, "ids": IDS}), as_inputs(UserDict(ids=IDS, mask=MASK))
    assert first is not None
    assert second is not None
    assert list(first) == list(second) == ["ids", "mask"]
    assert type(second) is dict


@pytest.mark.parametrize(
    "given", [{}, [], {"ids": [1, 2]}, {1: IDS}, {"ids": {"deep": IDS}}, (IDS, "words"), [torch.tensor(1.0)], 3]
)
def test_what_is_no_input(given: object) -> None:
    assert as_inputs(given) is None


def test_they_are_described_by_name() -> None:
    assert described({"ids": IDS, "mask": MASK}, lambda part: str(tuple(part.shape))) == "{ids: (5, 2), mask: (5, 2)}"
    assert described((IDS, MASK), lambda part: str(part.dtype)) == "(torch.int64, torch.float32)"


def test_masks_are_told_from_numbers() -> None:
    assert is_mask(MASK)
    assert is_mask(torch.tensor([[True, False]]))
    assert not is_mask(MASK / 2)


def test_a_named_tuple_is_a_tuple() -> None:
    pair = namedtuple("pair", "ids mask")(IDS, MASK)  # as users write it
    assert type(as_inputs(pair)) is tuple


def test_where_one_tensor_is_needed_several_are_one_line() -> None:
    assert one_tensor(IDS) is IDS
    with pytest.raises(DataError, match="one tensor is needed as input, and these are 2"):
        one_tensor((IDS, MASK))


def test_grey_images_that_were_permuted_are_laid_out_in_order() -> None:
    grey = torch.randn(2, 8, 8, 1).permute(0, 3, 1, 2)
    assert grey.is_contiguous()
    in_order = axes_in_order(grey)
    assert isinstance(in_order, torch.Tensor)
    assert in_order.equal(grey)
    convolved = torch.nn.Conv2d(1, 4, 3)(in_order)
    assert convolved.is_contiguous()
    convolved.view(2, -1)
