"""Messages, checkpoints and settings of other versions of this package.

What is in ``recorded`` was written by version 0.1.0 when messages were of schema 4 and checkpoints of schema 1.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedml_dapper import __version__
from fedml_dapper.config import load_settings
from fedml_dapper.errors import ConfigError, DataError, ProtocolError
from fedml_dapper.federation import (
    LEDGER_NAME,
    WIRE_SCHEMA,
    Agreement,
    Codec,
    Experiment,
    SharedSettings,
    build_experiment,
    common_schema,
    framed,
    open_run_dir,
    read_announcement,
)
from fedml_dapper.federation.run_folder.checkpoint import load_checkpoint
from fedml_dapper.federation.wire.codec import MAGIC
from fedml_dapper.federation.wire.versions import check_understood
from fedml_dapper.methods import Downlink, Upload

RECORDED = Path(__file__).parent / "recorded"
DIGITS = Path(__file__).parents[2] / "config" / "digits_offline.yaml"
FEW = (
    "width=2", "image_size=8", "client_num_in_total=4", "client_num_per_round=2", "client_share=0.03", "epochs=1",
    "batch_size=16", "comm_round=2", "method=dapperfl",
)  # fmt: skip
CPU = torch.device("cpu")
MAJOR, MINOR = (int(part) for part in __version__.split(".")[:2])
LATER = f"{MAJOR}.{MINOR + 1}.0"


def experiment_of(*overrides: str) -> Experiment:
    """The recorded one, with ``overrides``."""
    return build_experiment(load_settings([DIGITS], [*FEW, *overrides]))


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return experiment_of()


@pytest.fixture
def shared(experiment: Experiment) -> SharedSettings:
    return SharedSettings.of_experiment(experiment)


def codec_of(experiment: Experiment) -> Codec:
    return Codec(experiment.method.problem.layout, Agreement.of(experiment))


def header_of(message: bytes) -> dict[str, Any]:
    start = len(MAGIC) + 32 + 4
    size = int.from_bytes(message[start - 4 : start], "little")
    header: dict[str, Any] = json.loads(message[start : start + size])
    return header


def changed(shared: SharedSettings, version: str, chosen: bool = True, **values: object) -> SharedSettings:
    """``shared`` as ``version`` has it, with ``values`` of dapper_args, or without those that are None."""
    mine = {f"dapper_args.{name}": value for name, value in values.items()}
    kept = {key: value for key, value in shared.values.items() if key not in mine}
    given = {key: value for key, value in mine.items() if value is not None}
    keys = {*shared.chosen, *(given if chosen else ())} - {key for key in mine if not (chosen and key in given)}
    update = {"version": version, "values": kept | given, "chosen": tuple(sorted(keys))}
    return SharedSettings.model_validate(shared.model_dump() | update)


# Settings


def test_a_setting_that_one_side_does_not_know_has_to_be_at_its_default(shared: SharedSettings) -> None:
    default, set_ = (changed(shared, LATER, chosen, novelty=3) for chosen in (False, True))
    assert default.difference(shared) == shared.difference(default) == ""
    assert default.digest == shared.digest != set_.digest
    assert set_.difference(shared) == (
        f"dapper_args.novelty is 3 there, and version {shared.version} here does not know it: upgrade version"
        f" {shared.version}, or leave it at its default"
    )
    assert shared.difference(set_) == (
        f"dapper_args.novelty is 3 here, and version {shared.version} there does not know it: upgrade version"
        f" {shared.version}, or leave it at its default"
    )
    gone = changed(shared, "0.0.9", former=3)
    assert "version 0.0.9" in gone.difference(shared)
    assert gone.difference(shared).endswith("go on with version 0.0.9")
    same = changed(shared, shared.version, novelty=3)
    assert same.difference(shared).endswith("both sides need the same code")


def test_a_default_that_changed_is_a_difference_and_can_be_set_to_what_it_was(shared: SharedSettings) -> None:
    key = "params.dapperfl.alpha_min"
    later = changed(shared, LATER, False, **{key: 0.2})
    assert later.difference(shared) == f"dapper_args.{key} is 0.2 there and 0.1 here"
    told = changed(shared, LATER, **{key: 0.1})
    assert told.digest != shared.digest  # so that a silo has to take over the server's
    assert told.difference(shared) == ""


def test_sections_that_one_side_leaves_out_differ_as_a_whole(shared: SharedSettings) -> None:
    args = '{"devices": ["raspberry_pi_5"], "round_s": 900}'
    fleet = SharedSettings.of_experiment(experiment_of(f"dapper_args.fleet={args}"))
    assert "dapper_args.fleet is given there and None here" in fleet.difference(shared)
    assert "dapper_args.fleet is given here and None there" in shared.difference(fleet)
    assert "does not know" not in fleet.difference(shared)


def test_rounds_count_only_where_the_method_depends_on_them(shared: SharedSettings) -> None:
    assert SharedSettings.of_experiment(experiment_of("comm_round=9")) == shared
    few, more = (
        SharedSettings.of_experiment(experiment_of("method=pfedsim", f"comm_round={rounds}")) for rounds in (2, 9)
    )
    assert more.difference(few) == "train_args.comm_round is 9 there and 2 here"


# Messages


@dataclass(frozen=True)
class Recorded:
    """A round's messages of schema 4 as bytes, and what they say."""

    bytes_down: bytes
    bytes_up: bytes
    downlink: Downlink
    upload: Upload


@pytest.fixture(scope="module")
def recorded(experiment: Experiment) -> Recorded:
    down, up = ((RECORDED / f"{name}_schema_4.bin").read_bytes() for name in ("downlink", "upload"))
    silo = codec_of(experiment)
    downlink, _ = silo.decode_downlink(down, "silo 1")
    upload, _ = silo.decode(up)
    assert isinstance(upload, Upload)
    return Recorded(down, up, downlink, upload)


def test_messages_of_the_schema_before_are_read_and_answered_in_it(experiment: Experiment, recorded: Recorded) -> None:
    assert (recorded.downlink.round, recorded.downlink.client_id, recorded.downlink.level) == (1, 0, 2)
    assert (recorded.upload.round, recorded.upload.client_id) == (1, 0)
    silo = codec_of(experiment)
    assert header_of(silo.encode(recorded.upload))["identity"]["wire_schema"] == WIRE_SCHEMA
    silo.decode_downlink(recorded.bytes_down, "silo 1")
    assert silo.encode(recorded.upload) == recorded.bytes_up


def test_who_knows_no_later_schema_is_sent_what_it_was_sent_before(experiment: Experiment, recorded: Recorded) -> None:
    was, now = header_of(recorded.bytes_down), header_of(codec_of(experiment).encode(recorded.downlink, schema=4))
    assert {key: value for key, value in now.items() if key not in ("identity", "settings")} == {
        key: value for key, value in was.items() if key not in ("identity", "settings")
    }
    assert now["identity"].keys() == was["identity"].keys()
    assert says_all_of(now["settings"], was["settings"])


def says_all_of(now: Any, was: Any) -> bool:
    """Whether all that ``was`` stands in ``now``, which may know more settings, section by section."""
    if not isinstance(was, dict):
        return bool(now == was)
    return all(key in now and says_all_of(now[key], value) for key, value in was.items())


def test_a_silo_takes_over_how_the_server_says_the_experiment(experiment: Experiment, recorded: Recorded) -> None:
    told = changed(SharedSettings.of_experiment(experiment), LATER, **{"params.dapperfl.alpha_min": 0.1})
    server, silo = Codec(experiment.method.problem.layout, Agreement(told, {})), codec_of(experiment)
    with pytest.raises(ProtocolError, match="settings digest"):
        server.decode(silo.encode(recorded.upload))
    silo.decode_downlink(server.encode(recorded.downlink), "silo 1")
    server.decode(silo.encode(recorded.upload))


@pytest.mark.parametrize("schema", [4, 5])
def test_other_settings_end_a_silo_with_both_values(experiment: Experiment, recorded: Recorded, schema: int) -> None:
    sent = recorded.bytes_down if schema == 4 else codec_of(experiment).encode(recorded.downlink)
    silo = codec_of(experiment_of("learning_rate=0.5", "dapper_args.defence.strikes=2"))
    with pytest.raises(ConfigError, match="silo 1 and the server run different experiments: ") as told:
        silo.decode_downlink(sent, "silo 1")
    assert str(told.value).endswith(
        "dapper_args.defence.strikes is None there and 2 here; train_args.learning_rate is 0.01 there and 0.5 here"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"wire_schema": 7, "version": LATER},
            f"{LATER} .* speaks message schema 7, .* knows 4 and 5: upgrade .*{{own}}$",
        ),
        ({"wire_schema": 3}, "speaks message schema 3, and version {own} knows 4 and 5: upgrade .* version {own}$"),
        ({"version": "0.9.1"}, "versions 0.9.1 and {own} of .* too far apart .*: upgrade .* version {own}$"),
        ({"version": "7"}, "`7` is no version"),
        ({"novelty": 1}, "malformed at `identity.novelty`: version {own} does not know it"),
    ],
)
@pytest.mark.parametrize("form", ["ours", "unknown"])
def test_what_is_not_understood_is_refused_with_who_is_to_upgrade(
    experiment: Experiment, recorded: Recorded, changes: dict[str, object], reason: str, form: str
) -> None:
    codec = codec_of(experiment)
    message = codec.encode(recorded.upload)
    header = header_of(message)
    header["identity"] |= changes
    if form == "unknown" and "novelty" not in changes:
        header |= {"round": "the first", "novelty": 1}
    size = int.from_bytes(message[36:40], "little")
    with pytest.raises(ProtocolError, match=reason.format(own=re.escape(__version__))):
        codec.decode(framed(json.dumps(header).encode(), message[40 + size :]))


def test_processes_speak_the_latest_schema_that_both_know() -> None:
    assert [common_schema("0.1.0", latest, own="0.2.0") for latest in (4, 5, 6)] == [4, 5, 5]
    for version, latest, own, older in (
        ("0.1.0", 3, "0.2.0", "0.1.0"), ("0.2.0", 7, "0.1.0", "0.1.0"), ("0.1.0", 5, "0.3.0", "0.1.0"),
        ("0.4.2", 5, "0.2.9", "0.2.9"), ("2.0.0", 5, "1.9.0", "1.9.0"),
    ):  # fmt: skip
        with pytest.raises(ProtocolError, match=f"upgrade the process of version {older}"):
            common_schema(version, latest, own)
    for good in ("0.1.7", "0.2.0rc1", "0.3.0.dev2+g1234"):
        check_understood(good, WIRE_SCHEMA, own="0.2.0")
    check_understood("1.7.0", WIRE_SCHEMA, own="1.0.0")
    for version, latest in ((3, 5), ("0.1.0", "5"), ("0.1.0\n", 5), ("x" * 1000, 5), ("0.1.0", True)):
        with pytest.raises(ProtocolError):
            common_schema(version, latest)


def test_a_silo_that_says_more_of_itself_than_a_server_knows_is_told_so() -> None:
    text = json.dumps({"domain": "a", "num_train": 9, "novelty": 1})
    with pytest.raises(ProtocolError, match=r"`novelty`: version .* does not know it, a later one may: upgrade"):
        read_announcement(text, levels=5)


# Files


def test_a_checkpoint_of_the_schema_before_is_gone_on_from(shared: SharedSettings) -> None:
    path = RECORDED / "checkpoint_schema_1.safetensors"
    checkpoint = load_checkpoint(path, shared, CPU)
    assert (checkpoint.round, len(checkpoint.weights)) == (1, len(load_file(path)))
    with pytest.raises(DataError, match=r"dapper_args.novelty is 3 here, and version 0.1.0 there does not know it"):
        load_checkpoint(path, changed(shared, LATER, novelty=3), CPU)
    load_checkpoint(path, changed(shared, LATER, False, novelty=3), CPU)
    with pytest.raises(DataError, match=r"alpha_min is 0.1 there and 0.2 here"):
        load_checkpoint(path, changed(shared, LATER, **{"params.dapperfl.alpha_min": 0.2}), CPU)


def test_a_ledger_of_an_earlier_version_is_one_of_the_same_experiment(experiment: Experiment, tmp_path: Path) -> None:
    ledger = (RECORDED / "ledger_of_0.1.0.jsonl").read_text()
    (tmp_path / LEDGER_NAME).write_text(ledger)
    open_run_dir(experiment, tmp_path, resume=True)
    lacking = json.loads(ledger)
    settings = lacking["settings"]["dapper_args"]
    del settings["uplink"], settings["params"]["dapperfl"]["gamma"], lacking["params"]["gamma"]
    (tmp_path / LEDGER_NAME).write_text(json.dumps(lacking) + "\n")
    open_run_dir(experiment, tmp_path, resume=True)
    lacking["params"]["alpha_0"] = 0.8  # as of a default that changed
    (tmp_path / LEDGER_NAME).write_text(json.dumps(lacking) + "\n")
    with pytest.raises(ConfigError, match=r"dapper_args.params.dapperfl.alpha_0 is 0.8 there and 0.9 here; take"):
        open_run_dir(experiment, tmp_path, resume=True)
    lacking["params"]["alpha_0"] = 0.9
    (tmp_path / LEDGER_NAME).write_text(json.dumps(lacking) + "\n")
    for override, key in (
        ("uplink=fp16", "dapper_args.uplink"),
        ("dapper_args.params.dapperfl.gamma=0.5", "dapper_args.params.dapperfl.gamma"),
    ):
        with pytest.raises(ConfigError, match=f"{key} is .* here, and version 0.1.0 there does not know it"):
            open_run_dir(experiment_of(override), tmp_path, resume=True)
