"""What ``run/container`` says of its images and services."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from dockerfile_parse import DockerfileParser

from ..platform.processes import ROOT

FOLDER = ROOT / "run" / "container"
EXPERIMENT = FOLDER / "experiment" / "experiment.yaml"


@dataclass(frozen=True)
class Image:
    """A target of the Dockerfile, with what it has from the stages that it is made from."""

    entrypoint: Sequence[str]
    health: Sequence[str]
    user: str
    folder: str
    environment: Mapping[str, str]


def image(target: str) -> Image:
    said = dict(_instructions_of(target))  # the last of each kind counts
    variables = dict(pair.split("=", 1) for pair in shlex.split(said["ENV"]))
    health = json.loads(said["HEALTHCHECK"].partition("CMD ")[2])
    return Image(json.loads(said["ENTRYPOINT"]), health, said["USER"], said["WORKDIR"], variables)


def instructions() -> Iterator[tuple[str, str]]:
    """Those of the Dockerfile, and what each says."""
    for part in DockerfileParser(path=str(FOLDER)).structure:
        if part["instruction"] != "COMMENT":
            yield part["instruction"], part["value"]


def _instructions_of(target: str) -> Iterator[tuple[str, str]]:
    here = False
    for instruction, value in instructions():
        if instruction == "FROM":
            base, _, name = value.partition(" AS ")
            here = name == target
            if here:
                yield from _instructions_of(base)
        elif here:
            yield instruction, value


def compose(experiment: Path | None = None, certificates: Path | None = None) -> dict[str, Any]:
    """``compose.yaml`` with its variables filled in, by their defaults where nothing is given."""
    given = {"DAPPER_EXPERIMENT": experiment, "DAPPER_CERTS": certificates}
    text = re.sub(
        r"\$\{(\w+):-([^}]+)\}", lambda found: str(given[found[1]] or found[2]), (FOLDER / "compose.yaml").read_text()
    )
    content: dict[str, Any] = yaml.safe_load(text)
    return content
