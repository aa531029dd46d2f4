"""Fill the workspace of job.yaml: our source, and a cross-silo experiment with every file it names.

    python run/launch/fill_workspace.py CONFIG [FOLDER]

FOLDER is run/launch/workspace, which is made anew, or one that is not there yet. Copies, because FedML leaves out
relative links when it packs.
"""

import shutil
import sys
from pathlib import Path

from fedml_dapper.config import Settings, load_settings, read_silo_levels
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
    text = with_files_in(settings, experiment).as_yaml()
    (experiment / "experiment.yaml").write_text(text, encoding="utf-8")


def with_files_in(settings: Settings, folder: Path) -> Settings:
    """``settings`` with the files they name copied into ``folder`` and named relative to it."""
    folder.mkdir()
    comm, silos = settings.comm_args, settings.client_specific_args
    if comm.grpc_ipconfig_path is not None:
        table = copied(comm.grpc_ipconfig_path, folder, "grpc_ipconfig.csv")
        comm = comm.model_copy(update={"grpc_ipconfig_path": table})
    if silos.data_silo_config is not None:
        files = [
            copied(file, folder, f"silos/silo_{rank}.yaml") for rank, file in enumerate(silos.data_silo_config, start=1)
        ]
        silos = silos.model_copy(update={"data_silo_config": tuple(files)})
    return settings.model_copy(update={"comm_args": comm, "client_specific_args": silos})


def copied(source: Path, folder: Path, name: str) -> Path:
    target = folder / name
    target.parent.mkdir(exist_ok=True)
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
