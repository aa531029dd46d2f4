"""Finished runs of seconds, on the embedded digits."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedml_dapper.config import load_settings
from fedml_dapper.export.inputs import as_pixels, spread
from fedml_dapper.federation import build_experiment, simulate
from fedml_dapper.federation.run_folder.finished import FinishedRun, open_finished

ROOT = Path(__file__).parents[2]
FEW = (
    "client_num_in_total=5", "client_num_per_round=5", "client_share=0.1", "image_size=16", "comm_round=1", "epochs=1",
    "learning_rate=0.05", "threads=1", "workers=1",
)  # fmt: skip


def finish(folder: Path, *overrides: str, config: Path = ROOT / "config" / "digits_offline.yaml") -> FinishedRun:
    """Train a run in ``folder``, and open it as those who export it do."""
    settings = load_settings([config], [*FEW, f"output_dir={folder.parent}", *overrides])
    simulate(build_experiment(settings), run_dir=folder)
    return open_finished(folder)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """DapperFL on ResNet10 with BatchNorm, five levels."""
    return finish(tmp_path_factory.mktemp("digits") / "run", "width=8")


@pytest.fixture(scope="session")
def finished_quickstart(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """The quickstart's run, in seconds."""
    config = ROOT / "config" / "quickstart.yaml"
    return finish(tmp_path_factory.mktemp("quickstart") / "run", "width=8", config=config)


@pytest.fixture(scope="session")
def finished_own(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """The same with a network of the user's own."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copy(ROOT / "examples" / "own_model" / "my_model.py", folder)
    config = shutil.copy(ROOT / "examples" / "own_model" / "experiment.yaml", folder)
    return finish(folder / "run", config=Path(config))


def write_pictures(run: FinishedRun, folder: Path, count: int = 12) -> list[Path]:
    """Test pictures of the run's first domain, as files in ``folder``, of the size that the network takes."""
    folder.mkdir(parents=True)
    files = []
    for number, picture in enumerate(pixels_of(run, count)):
        files.append(folder / f"{number:02}.png")
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(files[-1])
    return files


def pixels_of(run: FinishedRun, count: int) -> torch.Tensor:
    """uint8 (count, 3, S, S), from all over the first domain's test set."""
    assert run.experiment is not None
    return next(iter(spread(as_pixels(run.experiment.tests[0]), count))).inputs
