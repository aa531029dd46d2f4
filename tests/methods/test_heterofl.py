"""HeteroFL's windows; what it shares is in test_masked_classes.py and test_sub_models.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from fedml_dapper.config import Settings
from fedml_dapper.federation import Server, build_experiment, simulate

SettingsFactory = Callable[..., Settings]
FEW = ("client_num_in_total=4", "client_num_per_round=4", "client_share=0.05", "epochs=1", "scope=grouped")
UNMASKED = "dapper_args.params.heterofl={masked_loss: false}"


def test_plans_are_nested_and_stay(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("method=heterofl", "ratios=[0.2, 0.4, 0.6, 0.8]", *FEW))
    state = Server(experiment).state
    by_level = {p.level: experiment.method.plan(state, p.client_id) for p in experiment.profiles}
    for name in experiment.method.problem.layout.groups:
        widths = [len(by_level[level].kept[name]) for level in (1, 2, 3, 4)]
        assert widths == sorted(widths, reverse=True)
        assert widths[0] > widths[3]
        assert all(plan.kept[name].tolist() == list(range(len(plan.kept[name]))) for plan in by_level.values())
    later = experiment.method.plan(replace(state, round=5), 0)
    assert all(torch.equal(kept, later.kept[name]) for name, kept in experiment.method.plan(state, 0).kept.items())


def test_full_models_differ_from_fedavg_in_measured_statistics_only(tiny_settings: SettingsFactory) -> None:
    one, other = (
        simulate(build_experiment(tiny_settings(f"method={name}", UNMASKED, "ratios=[0.0]", "comm_round=1", *FEW)))[
            0
        ].state.weights
        for name in ("heterofl", "fedavg")
    )
    different = {name for name, tensor in one.items() if not torch.equal(tensor, other[name])}
    assert different == {name for name in one if "running" in name}
