"""Fill the workspace of job.yaml: our source, and a cross-silo experiment with every file it names.

    python run/launch/fill_workspace.py CONFIG [FOLDER]

FOLDER is run/launch/workspace, which is made anew, or one that is not there yet. Copies, because FedML leaves out
relative links when it packs.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedml_dapper.config import Reference, Settings, load_settings, read_silo_levels
from fedml_dapper.config.references import references
from fedml_dapper.errors import ConfigError

LAUNCH = Path(__file__).resolve().parent
ROOT = LAUNCH.parents[1]
WORKSPACE = LAUNCH / "workspace"
SOURCE_FILES = ("setup.py", "pyproject.toml", "README.md", "constraints.txt")


def main(config: Path, folder: Path) -> None:
    settings = load_settings([config])
    if settings.common_args.training_type != "cross_silo":
        raise ConfigError(f"{config}: launching needs training_type cross_silo, as in config/cross_silo.yaml")
    read_silo_levels(settings)
    if folder == WORKSPACE:
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "fedml_dapper", folder / "fedml_dapper", ignore=shutil.ignore_patterns("__pycache__"))
    for name in SOURCE_FILES:
        shutil.copyfile(ROOT / name, folder / name)
    copied(LAUNCH / "fedml_config.yaml", folder / "config", "fedml_config.yaml")
    experiment = folder / "experiment"
    gathered = with_code_in(with_files_in(settings, experiment), experiment)
    (experiment / "experiment.yaml").write_text(gathered.as_yaml(with_secrets=True), encoding="utf-8")
    if settings.comm_args.backend == "MQTT_S3":
        print(
            f"{folder} holds the broker's password and the store's secret key, and so will the packages",
            file=sys.stderr,
        )


def with_files_in(settings: Settings, folder: Path) -> Settings:
    """``settings`` with the files they name copied into ``folder`` and named relative to it."""
    folder.mkdir()
    comm, silos, model = settings.comm_args, settings.client_specific_args, settings.model_args
    if comm.grpc_ipconfig_path is not None:
        table = copied(comm.grpc_ipconfig_path, folder, "grpc_ipconfig.csv")
        comm = comm.model_copy(update={"grpc_ipconfig_path": table})
    if silos.data_silo_config is not None:
        files = [
            copied(file, folder, f"silos/silo_{rank}.yaml") for rank, file in enumerate(silos.data_silo_config, start=1)
        ]
        silos = silos.model_copy(update={"data_silo_config": tuple(files)})
    if model.weights is not None:
        model = model.model_copy(update={"weights": copied(model.weights, folder, "weights.safetensors")})
    return settings.model_copy(update={"comm_args": comm, "client_specific_args": silos, "model_args": model})


def with_code_in(settings: Settings, folder: Path) -> Settings:
    """``settings`` with the Python files they name copied into ``folder``, each into a folder of its own."""
    for key, value in references(settings):
        reference = Reference.parse(value)
        if reference is not None and reference.file is not None:
            name = copied(reference.file, folder, f"{key.rpartition('.')[2]}/{reference.file.name}")
            settings = with_value(settings, key.split("."), f"{name}:{reference.name}")
    return settings


def with_value(section: Any, steps: Sequence[str], value: str) -> Any:
    """``section`` with another value at the key whose steps are given."""
    first, *others = steps
    return section.model_copy(update={first: with_value(getattr(section, first), others, value) if others else value})


def copied(source: Path, folder: Path, name: str) -> Path:
    target = folder / name
    target.parent.mkdir(exist_ok=True)  # the folder itself, or one in it
    shutil.copyfile(source, target)
    return Path(name)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python run/launch/fill_workspace.py CONFIG [FOLDER]")
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else WORKSPACE)
    except ConfigError as error:
        print(f"fill_workspace.py: {error}", file=sys.stderr)
        sys.exit(2)
