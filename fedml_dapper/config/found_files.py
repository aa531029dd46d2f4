"""Files and folders that settings name, looked for in the working directory and beside the experiment's files."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fedml_dapper.config.comm_args import SecureGrpcConfig
from fedml_dapper.config.fleet_args import FleetArgs
from fedml_dapper.config.paths import expanded
from fedml_dapper.config.references import ENTRY_POINTS, Reference
from fedml_dapper.config.settings import Settings
from fedml_dapper.files.regular_file import in_place_of_file


class Search:
    """Looks for files in the working directory and in ``folders``, and collects a mistake for each that is missing."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self.mistakes: list[str] = []

    def find(self, path: Path, key: str, kind: Literal["file", "folder"] = "file", hint: str = "") -> Path:
        """Return ``path`` as an absolute one; unchanged where nothing is there."""
        try:
            path = expanded(path)
        except ValueError as error:
            self.mistakes.append(f"{key}: {error}")
            return path
        found = self.find_if_there(path, kind)
        if found is None:
            places = ", ".join(str(candidate.parent.absolute()) for candidate in self._candidates(path))
            self.mistakes.append(f"{key}: no {kind} {path}{self._instead(path, kind)}; looked in {places}{hint}")
        return found or path

    def find_if_there(self, path: Path, kind: Literal["file", "folder"] = "file") -> Path | None:
        """Return ``path`` as an absolute one; None where nothing is there, which is no mistake."""
        for candidate in self._candidates(path):
            if candidate.is_file() if kind == "file" else candidate.is_dir():
                return candidate.resolve()
        return None

    def _instead(self, path: Path, kind: Literal["file", "folder"]) -> str:
        """Return what is there in place of a file, in brackets; empty where nothing is."""
        found = filter(None, map(in_place_of_file, self._candidates(path) if kind == "file" else ()))
        return next((f" (there is {each} of that name)" for each in found), "")

    def _candidates(self, path: Path) -> list[Path]:
        return list(dict.fromkeys((path, *(folder / path for folder in self._folders))))


def with_found_sources(values: dict[str, Any], search: Search) -> dict[str, Any]:
    """Return unchecked ``values`` in which ``path/to/file.py:Name`` has an absolute path."""
    found = copy.deepcopy(values)
    for key in ENTRY_POINTS:
        *sections, last = key.split(".")
        place: Any = found
        for section in sections:
            place = place.get(section) if isinstance(place, dict) else None
        value = place.get(last) if isinstance(place, dict) else None
        reference = Reference.parse(value) if isinstance(value, str) else None
        if reference is not None and reference.file is not None:
            place[last] = f"{search.find(reference.file, key)}:{reference.name}"
    return found


def with_found_files(settings: Settings, search: Search) -> Settings:
    """Return settings with absolute paths of files and folders."""
    comm = settings.comm_args
    silos = settings.client_specific_args
    data = settings.data_args
    model = settings.model_args
    if data.data_cache_dir is not None:  # a missing folder is reported when the data are read
        found = search.find_if_there(data.data_cache_dir, "folder") or data.data_cache_dir
        data = data.model_copy(update={"data_cache_dir": found})
    if model.weights is not None:
        model = model.model_copy(update={"weights": search.find(model.weights, "model_args.weights")})
    if comm.backend == "GRPC" and comm.grpc_ipconfig_path is not None:
        table = search.find(comm.grpc_ipconfig_path, "comm_args.grpc_ipconfig_path")
        comm = comm.model_copy(update={"grpc_ipconfig_path": table})
    if comm.backend == "DAPPER_GRPC" and comm.dapper_grpc is not None:
        grpc = _with_found_credentials(comm.dapper_grpc, search)
        comm = comm.model_copy(update={"dapper_grpc": grpc})
    if silos.data_silo_config is not None:
        files = tuple(search.find(path, "client_specific_args.data_silo_config") for path in silos.data_silo_config)
        silos = silos.model_copy(update={"data_silo_config": files})
    dapper = settings.dapper_args
    if dapper.fleet is not None:
        dapper = dapper.model_copy(update={"fleet": _with_found_profiles(dapper.fleet, search)})
    own = settings.silo_args
    if own.data_cache_dir is not None:
        place = search.find(own.data_cache_dir, "silo_args.data_cache_dir", "folder")
        own = own.model_copy(update={"data_cache_dir": place})
    if own.device is not None and own.device.endswith(".yaml"):
        own = own.model_copy(update={"device": str(search.find(Path(own.device), "silo_args.device"))})
    if own.known is not None:
        own = own.model_copy(update={"known": search.find(own.known, "silo_args.known")})
    found_sections = {"comm_args": comm, "client_specific_args": silos, "silo_args": own, "dapper_args": dapper}
    return settings.model_copy(update={**found_sections, "data_args": data, "model_args": model})


def _with_found_credentials(grpc: SecureGrpcConfig, search: Search) -> SecureGrpcConfig:
    hint = f". For a trial, `bash run/make_certs.sh {grpc.certificates} NUM_SILOS` makes it (docs/security.md)"
    places = {"certificates": search.find(grpc.certificates, "dapper_grpc.certificates", "folder", hint)}
    if grpc.token_file is not None:
        places["token_file"] = search.find(grpc.token_file, "dapper_grpc.token_file")
    if grpc.members_file is not None:  # silos have none; servers report a missing one
        places["members_file"] = search.find_if_there(grpc.members_file) or grpc.members_file
    return grpc.model_copy(update=places)


def _with_found_profiles(fleet: FleetArgs, search: Search) -> FleetArgs:
    """The fleet with absolute paths of profiles that are files; names of shipped ones are kept."""

    def find(name: str, key: str) -> str:
        return str(search.find(Path(name), f"dapper_args.fleet.{key}")) if name.endswith(".yaml") else name

    devices = fleet.devices
    if isinstance(devices, dict):
        found: Any = {domain: find(name, "devices") for domain, name in devices.items()}
    else:
        found = None if devices is None else tuple(find(name, "devices") for name in devices)
    network = None if fleet.network is None else find(fleet.network, "network")
    return fleet.model_copy(update={"devices": found, "network": network})
