"""FedRolex's rolling windows; what it shares is in test_masked_classes.py and test_sub_models.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from fedml_dapper.config import Settings
from fedml_dapper.federation import Server, build_experiment

SettingsFactory = Callable[..., Settings]
FEW = ("client_num_in_total=4", "client_num_per_round=4", "client_share=0.05", "epochs=1", "scope=grouped")


def test_window_rolls_around_and_trains_every_channel_equally(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("method=fedrolex", "ratios=[0.8]", *FEW))
    method, state = experiment.method, Server(experiment).state
    first = method.plan(state, 0)
    for name, group in method.problem.layout.groups.items():
        width = len(first.kept[name])
        assert width < group.channels
        kept = torch.zeros(group.channels)
        for completed in range(group.channels):
            indices = method.plan(replace(state, round=completed), 0).kept[name]
            assert set(indices.tolist()) == {(completed + step) % group.channels for step in range(width)}
            kept[indices] += 1
        assert kept.tolist() == [width] * group.channels
        assert torch.equal(method.plan(replace(state, round=group.channels), 0).kept[name], first.kept[name])
