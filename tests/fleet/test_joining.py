"""Silos that name their devices: which level each gets, and when it gets a smaller one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedml_dapper.config import FleetArgs, Settings
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import Announcement, Server, build_experiment, read_announcement
from fedml_dapper.fleet import DeviceProfile, JoiningDevices, demands, plan_fleet
from fedml_dapper.pruning import Device

from ..across_silos import across_silos

SettingsFactory = Callable[..., Settings]
FEW = ("image_size=16", "method=heterofl", "client_num_in_total=4", "client_num_per_round=4")
SILO = Device(1, "fonts", 200)


def profile(gmacs_per_s: float, memory_mb: float = 2000, **network: float) -> DeviceProfile:
    said = {"mark": "measured", "source": "trial"}
    speed = {"network": "any", "family": "convolutions", "gmacs_per_s": gmacs_per_s, **said}
    return DeviceProfile.model_validate(
        {
            "description": "a board",
            "sources": {"trial": {"title": "a guess", "address": "here"}},
            "memory_mb": {"value": memory_mb, **said},
            "speeds": [speed],
            **{key: {"value": value, **said} for key, value in network.items()},
        }
    )


@pytest.fixture
def joining(tiny_settings: SettingsFactory) -> Callable[..., JoiningDevices]:
    experiment = build_experiment(tiny_settings(*FEW))

    def build(round_s: float, **more: Any) -> JoiningDevices:
        args = FleetArgs(round_s=round_s, network="flash_p50", **more)
        return JoiningDevices(args, experiment.method, experiment.settings.model_args)

    return build


@pytest.mark.long
def test_a_silo_gets_the_level_that_a_simulated_client_of_its_device_would(
    tiny_settings: SettingsFactory, joining: Callable[..., JoiningDevices]
) -> None:
    experiment = build_experiment(tiny_settings(*FEW))
    levels = set()
    for name, round_s in (("raspberry_pi_5", 60), ("phone_low", 60), ("phone_low", 1.5), ("phone_low", 1)):
        args = FleetArgs(devices=(name,), round_s=round_s, network="flash_p50")
        [planned] = plan_fleet(args, experiment.method, experiment.settings.model_args, [SILO]).clients
        assert joining(round_s).fit(SILO, planned.device) == planned.fit
        levels.add(planned.fit.level)
    assert len(levels) > 2


def test_training_that_takes_longer_than_planned_means_a_smaller_level(
    tiny_settings: SettingsFactory, joining: Callable[..., JoiningDevices]
) -> None:
    experiment = build_experiment(tiny_settings(*FEW))
    macs = [demand.round_macs for demand in demands(experiment.method)]
    fast = profile(1.0)
    devices = joining(10)
    assert devices.fit(SILO, fast).level == 1
    assert devices.after(1, 1, seconds=9.0) is None  # within the round, however much longer than planned
    found = devices.after(1, 1, seconds=15.0)
    assert found is not None
    expected = next(level for level, one in enumerate(macs, 1) if 15.0 * one / macs[0] + found.use.network_s <= 10)
    assert found.level == expected > 1
    assert devices.fit(SILO, fast).level == expected  # back after a lost line, it is as slow as it was
    assert devices.fit(SILO, profile(2.0)).level == 1  # another device
    assert devices.after(0, 1, seconds=99.0) is None  # whose device nobody knows


def test_a_device_without_a_planned_time_is_not_called_slower(joining: Callable[..., JoiningDevices]) -> None:
    devices = joining(10)
    endless = profile(1.0).speeds[0].model_copy(update={"gmacs_per_s": 1e308})
    fast = profile(1.0).model_copy(update={"speeds": (endless,)})
    assert devices.fit(SILO, fast).use.training_s == 0
    assert devices.after(1, 1, seconds=1e9) is None


@pytest.mark.parametrize("figure", [1e308, 1e-308])
@pytest.mark.parametrize("key", ["gmacs_per_s", "memory_mb", "downlink_mbps", "uplink_mbps"])
def test_a_profile_beyond_any_device_is_refused(key: str, figure: float) -> None:
    sound = profile(1.0, downlink_mbps=10, uplink_mbps=10).model_dump(mode="json", exclude_none=True)
    if key == "gmacs_per_s":
        sound["speeds"][0][key] = figure
    else:
        sound[key]["value"] = figure
    said = json.dumps({"domain": "fonts", "num_train": 200, "profile": sound})
    with pytest.raises(ProtocolError, match=f"what it says of its data does not fit: .*{key}"):
        read_announcement(said, levels=5)


def test_what_the_server_makes_of_an_announcement(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    across = across_silos(tmp_path)
    own = (*FEW, *across, "client_share=null", "partition=own")
    held = {"domain": "fonts", "num_train": 200, "num_test": 20}

    def heard(**more: Any) -> Announcement:
        return read_announcement(Announcement(**held, **more).as_text(), levels=5)

    server = Server(build_experiment(tiny_settings(*own, "dapper_args.fleet={round_s: 10, network: flash_p50}")))
    assert server.join(0, heard(profile=profile(1.0)))
    assert server.join(1, heard(profile=profile(0.06)))
    assert server.join(2, heard(level=4))
    levels = [known.level for known in server.state.profiles][:3]
    assert (levels[0], levels[2]) == (1, 4)
    assert 1 < levels[1] <= 5
    assert not server.join(1, heard(profile=profile(0.06)))
    with pytest.raises(ProtocolError, match=r"can run no level of `heterofl`: the weakest needs .* MB of 1 MB"):
        server.join(1, heard(profile=profile(1.0, memory_mb=1.5)))
    without = Server(build_experiment(tiny_settings(*own, "dapper_args.fleet={round_s: 10}")))
    with pytest.raises(ProtocolError, match=r"silo_args.device: the profile does not say how fast its network is"):
        without.join(0, heard(profile=profile(1.0)))
    assert without.join(0, heard(profile=profile(1.0, downlink_mbps=20, uplink_mbps=5)))
    with pytest.raises(ProtocolError, match=r"it names a device, but the experiment has no dapper_args\.fleet"):
        Server(build_experiment(tiny_settings(*own))).join(0, heard(profile=profile(1.0)))


@pytest.mark.parametrize("method", ["dapperfl_slim", "fedecover"])
def test_a_silo_that_joins_in_an_open_round_changes_nobody_s_plan(
    tiny_settings: SettingsFactory, tmp_path: Path, method: str
) -> None:
    own = (*FEW, *across_silos(tmp_path), "client_share=null", "partition=own", f"method={method}", "norm=group")
    server = Server(build_experiment(tiny_settings(*own)))
    for silo in (0, 2, 3):
        server.join(silo, Announcement(domain="fonts", num_train=200, num_test=20, level=4))
    assert server.round_clients() == [0, 2, 3]
    sent = {silo: server.downlink(silo).plan for silo in (2, 3)}
    server.join(1, Announcement(domain="fonts", num_train=300, num_test=20, level=5))
    server.join(0, Announcement(domain="fonts", num_train=300, num_test=20, level=3))
    for silo, plan in sent.items():
        assert server.downlink(silo).plan.equals(plan)
    assert [known.num_samples for known in server.state.profiles[:2]] == [300, 300]
    assert server.state.profiles[0].level == 4
    server.close_round()
    assert [known.level for known in server.state.profiles] == [3, 5, 4, 4]


def test_an_announcement_of_any_length_is_not_read() -> None:
    long = Announcement(domain="fonts", num_train=200, profile=profile(1.0)).as_text() + " " * 2**16
    with pytest.raises(ProtocolError, match=r"letters; 65536 are allowed"):
        read_announcement(long, levels=5)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ("dapper_args.fleet={round_s: 10}",),
            r"needs dapper_args\.fleet\.devices: it says which devices clients have; name them",
        ),
        (
            ("partition=own", "dapper_args.fleet={round_s: 10, devices: [phone_low]}"),
            r"fleet\.devices does not go with data_args\.partition own: it deals out what",
        ),
        (
            ("partition=own", "dapper_args.fleet={round_s: 10, continuous: true}"),
            r"fleet\.continuous does not go with data_args\.partition own: it deals out what",
        ),
        (("partition=own", "silo_args.device=phone_low"), r"what a device can run depends on dapper_args\.fleet"),
        (
            ("partition=own", "dapper_args.fleet={round_s: 10}", "silo_args.device=phone_low", "silo_args.level=2"),
            "silo_args.device .* does not go with silo_args.level .2.: .* leave one out",
        ),
        (("partition=own", "dapper_args.fleet={round_s: 10}", "silo_args.device=nothing.yaml"), r"silo_args\.device"),
    ],
)
def test_settings_that_cannot_be(tiny_settings: SettingsFactory, overrides: tuple[str, ...], said: str) -> None:
    across = (
        "training_type=cross_silo",
        "backend=GRPC",
        "allow_pickle=true",
        "grpc_ipconfig_path=config/grpc_ipconfig.csv",
    )
    with pytest.raises(ConfigError, match=said):
        tiny_settings(*FEW, *across, "client_share=null", *overrides)
