"""Settings through FedML's flat ``args`` and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.platform.arguments import init, settings_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_data" / "experiment.yaml"


def test_keys_of_several_sections_stay_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings: Settings = load_settings([EXAMPLE], ["model_args.arguments={}", "data_args.arguments={samples: 80}"])
    file = tmp_path / "experiment.yaml"
    file.write_text(settings.as_yaml())
    monkeypatch.setattr("sys.argv", ["program"])
    args = init(file)
    read = settings_of(args)
    assert read.data_args.arguments == {"samples": 80}
    assert read.model_args.arguments == {}
