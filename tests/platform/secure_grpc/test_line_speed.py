"""A silo times its line to a server that is up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import yaml
from click.testing import CliRunner

from fedml_dapper.cli import main
from fedml_dapper.config import SecureGrpcConfig, Settings
from fedml_dapper.errors import ConfigError, DapperError
from fedml_dapper.operations.credentials import read_credentials
from fedml_dapper.secure_grpc import measure_line
from fedml_dapper.secure_grpc.endpoint import TRIAL_BYTES
from fedml_dapper.secure_grpc.parcel import blank_frames

from ...line import Line
from .conftest import Clock, Starter
from .experiment_file import experiment_file
from .raw_silo import RawSilo, refused

SettingsFactory = Callable[..., Settings]


def through(line: Line, config: SecureGrpcConfig) -> SecureGrpcConfig:
    return config.model_copy(update={"server_address": f"localhost:{line.port}"})


@pytest.mark.parametrize("mbps", [8, 60])
def test_a_slow_line_is_as_fast_as_it_is(start: Starter, config: SecureGrpcConfig, clock: Clock, mbps: float) -> None:
    """By a clock that goes on with every byte on the line, as if that took its time."""
    start(0)
    directions_at_once = threading.Lock()

    def take_time(size: int) -> None:
        with directions_at_once:
            clock.now += 8 * size / 1e6 / mbps

    with Line(int(config.server_address.rpartition(":")[2]), take_time) as line:
        speed = measure_line(through(line, config), read_credentials(config, 1), clock)
    assert speed.downlink_mbps == pytest.approx(mbps, rel=0.05)  # the rest is what TLS and HTTP/2 add
    assert speed.uplink_mbps == pytest.approx(mbps, rel=0.05)


def test_who_is_nobody_s_silo_times_nothing(start: Starter, config: SecureGrpcConfig, other_certificates: Path) -> None:
    with pytest.raises(DapperError, match="is the server up"):
        measure_line(config, read_credentials(config, 1))
    start(0)
    with pytest.raises(ConfigError, match="`silo-3` is no silo's of this federation of 2"):
        measure_line(config, read_credentials(config, 3))
    foreign = config.model_copy(update={"certificates": other_certificates})
    with pytest.raises(DapperError):
        measure_line(foreign, read_credentials(foreign, 1))


def test_a_trial_has_its_limits(start: Starter, config: SecureGrpcConfig) -> None:
    start(0)
    raw = RawSilo(config, read_credentials(config, 1))
    for attempt in (lambda: raw.try_up(blank_frames(TRIAL_BYTES + 1)), lambda: raw.try_down(TRIAL_BYTES + 1)):
        status, reason = refused(attempt)
        assert status is grpc.StatusCode.INVALID_ARGUMENT
        assert "too many bytes" in reason
    under_way = raw.begin_try_down(TRIAL_BYTES)
    next(iter(under_way))  # and no more: the server waits for the rest to be read
    assert refused(lambda: raw.try_down(1))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    under_way.cancel()
    measure_line(config, read_credentials(config, 2))  # another silo's trials are its own


@pytest.mark.nightly
def test_the_page_s_command_writes_the_line_into_the_profile(
    start: Starter, config: SecureGrpcConfig, tiny_settings: SettingsFactory, tmp_path: Path
) -> None:
    file, profile = experiment_file(tmp_path, tiny_settings("image_size=16"), config), tmp_path / "mine.yaml"
    command = ["calibrate", "-c", str(file), "--rank", "1", "-o", str(profile)]
    without = CliRunner().invoke(main, command)
    assert without.exit_code == 2
    assert "is the server up" in without.stderr
    assert not profile.exists()
    start(0)
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert f"line to {config.server_address}: " in result.output
    written = yaml.safe_load(profile.read_text())
    assert written["uplink_mbps"]["mark"] == "measured"
    assert config.server_address in written["downlink_mbps"]["how"]
    by_hand = CliRunner().invoke(main, ["calibrate", "--rank", "1", "-o", str(tmp_path / "other.yaml")])
    assert "only the line over comm_args.backend DAPPER_GRPC can be timed" in by_hand.stderr
