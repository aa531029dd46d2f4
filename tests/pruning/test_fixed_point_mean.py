"""Means in fixed point: near the plain ones, in any order the same, and under masks the same bit for bit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedml_dapper.pruning import (
    DENSE,
    ChannelLayout,
    FixedPointMean,
    Packing,
    PartialSum,
    PruningPlan,
    RecoveringMean,
    Recovery,
    Tensors,
    encoded_changes,
    plan_at_random,
    slim_tensors,
    trace_layout,
)
from fedml_dapper.secure_sum import FixedPoint, Rules, Summation
from fedml_dapper.secure_sum.fixed_point import as_words
from tests.secure_sum.identities import people
from tests.secure_sum.made_up_sums import participants, roster_of

from .networks import build, example
from .test_private import BEFORE, HOLDERS, LAYOUT, PLANS, RULES, sent

CODE = FixedPoint(largest=2.0, summands=3)


def changes(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(14, generator=generator) / 4 for _ in PLANS]


def mean(recovery: Recovery, uploads: list[dict[str, Tensor]], min_holders: int = 1) -> dict[str, Tensor]:
    summed = FixedPointMean(BEFORE, LAYOUT, recovery, CODE, min_holders)
    for plan, upload in zip(PLANS, uploads, strict=True):
        summed.add(upload, plan, 1)
    return summed.result()


@pytest.mark.parametrize("recovery", RULES)
def test_is_the_plain_mean_but_for_what_is_said_of_rounding(recovery: Recovery) -> None:
    uploads = [sent(plan, change) for plan, change in zip(PLANS, changes(1), strict=True)]
    plain = RecoveringMean(BEFORE, LAYOUT, recovery)
    for plan, upload in zip(PLANS, uploads, strict=True):
        plain.add(upload, plan, 1)
    found, expected = mean(recovery, uploads), plain.result()
    for name in ("w", "b"):
        float32 = 4 * torch.finfo(torch.float32).eps * expected[name].abs().max()
        assert (found[name] - expected[name]).abs().max() <= 0.5 / CODE.scale + float32
    assert torch.equal(found["n"], BEFORE["n"])


@pytest.mark.parametrize("recovery", RULES)
def test_what_too_few_hold_stays_as_it_was(recovery: Recovery) -> None:
    uploads = [sent(plan, change) for plan, change in zip(PLANS, changes(2), strict=True)]
    free, held_back = mean(recovery, uploads), mean(recovery, uploads, min_holders=3)
    for name in ("w", "b"):
        enough = (HOLDERS[name] >= 3).expand_as(BEFORE[name])
        assert torch.equal(held_back[name], torch.where(enough, free[name], BEFORE[name]))
    assert not torch.equal(free["w"], held_back["w"])


def test_the_order_changes_no_bit_and_no_client_more_than_it_may() -> None:
    everyone = list(
        zip(PLANS, (sent(plan, change) for plan, change in zip(PLANS, changes(3), strict=True)), strict=True)
    )
    results = []
    for order in permutations(everyone):
        summed = FixedPointMean(BEFORE, LAYOUT, "holders", CODE, 1)
        for plan, upload in order:
            summed.add(upload, plan, 1)
        results.append(summed.result())
    assert all(torch.equal(each["w"], results[0]["w"]) for each in results)
    wild = [sent(PLANS[0], torch.full((14,), 1e30)), *(slim_tensors(BEFORE, LAYOUT, plan) for plan in PLANS[1:])]
    assert (mean("global", wild)["b"] - BEFORE["b"]).abs().max() <= CODE.largest / 3 + 1e-5
    diverged = [sent(PLANS[0], torch.full((14,), float("nan"))), *wild[1:]]
    assert torch.equal(mean("global", diverged)["w"], BEFORE["w"])


def masked_sum(
    layout: ChannelLayout, before: Tensors, uploads: Mapping[int, Tensors], plans: Mapping[int, PruningPlan],
    rules: Rules, late: Collection[int],
) -> PartialSum:  # fmt: skip
    """What a server opens where the uploads of ``late`` clients do not arrive."""
    parts = participants(plans, rules)
    roster = roster_of(parts)
    packing = Packing(layout, plans)
    server = Summation(roster, rules, packing.cells, people(plans)[min(plans)])
    for client, part in parts.items():
        server.take_deal(client, part.deal(roster))
    for client, inbox in server.end_dealing().items():
        own = slim_tensors({name: before[name] for name in uploads[client]}, layout, plans[client])
        numbers = encoded_changes(uploads[client], own, CODE)
        theirs = Packing(layout, plans)  # a client finds the same cells by itself
        masked = parts[client].mask(inbox, as_words(theirs.pack(client, numbers)), theirs.cells)
        if client not in late:
            server.take_masked(client, masked)
    survivors = server.end_masking()
    for client in survivors:
        server.take_consent(client, parts[client].agree(survivors))
    consents = server.end_agreeing()
    for client in survivors:
        server.take_revealed(client, parts[client].reveal(consents))
    return packing.unpack(server.open())


@pytest.mark.parametrize("late", [(), (6,)])
@pytest.mark.parametrize("network", ["sequential", "densenet", "vision_transformer", "shared"])
def test_under_masks_it_is_the_same_bit_for_bit(network: str, late: tuple[int, ...]) -> None:
    """Whatever networks and plans, with a tensor that some leave out."""
    model = build(network)
    layout = trace_layout(model, example(network), "grouped")
    before = model.state_dict()
    generator = np.random.default_rng(len(network))
    plans: dict[int, PruningPlan] = {0: DENSE}
    for client, share in ((2, 0.8), (6, 0.5), (7, 0.5)):
        widths = {name: max(1, int(share * group.channels)) for name, group in layout.groups.items()}
        plans[client] = plan_at_random(layout, widths, generator)
    plans[2] = replace(plans[2], omitted=frozenset({max(before)}))
    uploads = {
        client: {
            name: tensor + 0.1 * torch.randn(tensor.shape) if tensor.is_floating_point() else tensor
            for name, tensor in slim_tensors(before, layout, plan).items()
            if name not in plan.omitted
        }
        for client, plan in plans.items()
    }
    rules, plain = Rules(3, 2), FixedPointMean(before, layout, "holders", CODE, 2)
    for client in plans.keys() - set(late):
        plain.add(uploads[client], plans[client], 1)
    expected, found = plain.partial(), masked_sum(layout, before, uploads, plans, rules, late)
    opened = 0
    for name, (total, held) in found.sums.items():
        known, holders = expected.sums[name]
        is_open = held > 0
        opened += int(is_open.sum())
        assert torch.equal(held[is_open], holders[is_open])
        assert torch.equal(total, torch.where(is_open, known, 0))
        if not late:
            assert torch.equal(is_open, holders >= 2)
    assert opened > 0
    if not late:
        merged = FixedPointMean(before, layout, "holders", CODE, 2)
        merged.merge(found)
        result = plain.result()
        assert all(torch.equal(tensor, result[name]) for name, tensor in merged.result().items())
