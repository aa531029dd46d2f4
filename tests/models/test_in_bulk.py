"""Copies of many tensors at a time."""

from __future__ import annotations

import torch

from fedml_dapper.models.in_bulk import copies_of, copy_each

TENSORS = [
    torch.arange(6.0).view(2, 3),
    torch.tensor(7),
    torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
    torch.ones(3, dtype=torch.float64, requires_grad=True),
    torch.zeros(0),
    torch.arange(3.0).expand(2, 3),
]


def test_copies_are_like_clones_and_share_nothing() -> None:
    copies = copies_of(TENSORS)
    for tensor, copy in zip(TENSORS, copies, strict=True):
        clone = tensor.detach().clone()
        assert copy.equal(clone)
        assert (copy.dtype, copy.stride(), copy.requires_grad) == (clone.dtype, clone.stride(), False)
        assert not copy.numel() or copy.data_ptr() != tensor.data_ptr()
    assert copies_of([]) == []


def test_each_target_gets_what_is_in_its_place() -> None:
    sources = [torch.tensor(1.0), torch.tensor(2), torch.tensor(3.0), torch.tensor(4.0, dtype=torch.float64)]
    dtypes = (torch.float32, torch.int64, torch.float64, torch.float32)
    targets = [torch.zeros((), dtype=dtype) for dtype in dtypes]
    copy_each(sources, targets)
    assert [target.item() for target in targets] == [1, 2, 3, 4]
