"""What a client's own model is tested on, in an experiment built from settings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedml_dapper.config import Settings
from fedml_dapper.federation import build_experiment, simulate

SettingsFactory = Callable[..., Settings]
FOUR = ("client_num_in_total=4", "client_num_per_round=4")


def test_a_clients_own_test_set_is_its_domains(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings(*FOUR))
    assert [own.test.domain for own in experiment.client_tests] == [client.domain for client in experiment.clients]
    assert all(own.test in experiment.tests and own.validation is None for own in experiment.client_tests)


def test_stated_clients_hold_what_they_state_at_their_levels(tiny_settings: SettingsFactory) -> None:
    stated = "clients=[{domain: fonts, level: 2}, {domain: scans, share: 0.5, level: 1}, {domain: fonts, level: 2}]"
    two_levels = ("client_num_in_total=3", "client_num_per_round=3", "ratios=[0.0, 0.5]")
    experiment = build_experiment(tiny_settings(stated, *two_levels))
    assert [(p.domain, p.level, p.ratio) for p in experiment.profiles] == [
        ("fonts", 2, 0.5), ("scans", 1, 0.0), ("fonts", 2, 0.5),
    ]  # fmt: skip
    assert experiment.profiles[1].num_samples > 2 * experiment.profiles[0].num_samples
    assert [test.domain for test in experiment.tests] == ["scans", "blended", "fonts", "segments"]
    assert sum("no client holds images of domain" in note for note in experiment.notes) == 2


@pytest.mark.parametrize("model", ["lenet5", "resnet10"])
def test_one_client_a_domain_trains_and_is_tested_apart(tiny_settings: SettingsFactory, model: str) -> None:
    own_samples = ("partition=one_per_domain", "client_share=0.08", "image_size=20", f"model={model}")
    settings = tiny_settings(*FOUR, *own_samples, "comm_round=1", "epochs=1", "method=fedavg", "ratios=[0.0]")
    experiment = build_experiment(settings)
    assert experiment.suite_label == "digits_offline (input 20x20)"
    assert [client.domain for client in experiment.clients] == ["scans", "blended", "fonts", "segments"]
    assert [client.num_samples for client in experiment.clients] == [45] * 4  # 8 % of 710 - 142
    validation = [own.validation.num_samples for own in experiment.client_tests if own.validation is not None]
    assert ([own.test.num_samples for own in experiment.client_tests], validation) == ([71] * 4, [71] * 4)
    assert [test.num_samples for test in experiment.tests] == [71] * 4
    simulate(experiment)
