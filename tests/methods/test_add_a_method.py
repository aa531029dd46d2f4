"""The method that docs/add_a_method.md writes, taken from the page itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from fedml_dapper import methods
from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import build_experiment, simulate

SettingsFactory = Callable[..., Settings]
PAGE = (Path(__file__).parents[2] / "docs" / "add_a_method.md").read_text(encoding="utf-8")
FEW = ("client_num_in_total=4", "client_num_per_round=4", "client_share=0.05", "epochs=1")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.fixture
def fedavgm(monkeypatch: pytest.MonkeyPatch) -> str:
    """The page's method, registered, as the page's YAML selects it."""
    module: dict[str, object] = {}
    exec(compile(block("python"), "docs/add_a_method.md", "exec"), module)
    monkeypatch.setitem(methods.METHODS, "fedavgm", module["FedAvgM"])  # type: ignore[arg-type]
    selected = yaml.safe_load(block("yaml"))["dapper_args"]
    assert selected["method"] == "fedavgm"
    return f"dapper_args.params={selected['params']}".replace("'", "")


def test_the_page_s_method_runs(fedavgm: str, tiny_settings: SettingsFactory) -> None:
    final = {}
    for beta in ("as on the page", "beta: 0.0"):
        override = fedavgm if beta == "as on the page" else re.sub(r"beta: [0-9.]+", beta, fedavgm)
        server, _ = simulate(build_experiment(tiny_settings("method=fedavgm", override, *FEW)))
        final[beta] = server.state.weights
    plain, _ = simulate(build_experiment(tiny_settings("method=fedavg", *FEW)))
    name = "predictor.weight"
    torch.testing.assert_close(final["beta: 0.0"][name], plain.state.weights[name])
    assert not torch.allclose(final["as on the page"][name], plain.state.weights[name])


def test_its_settings_are_checked(fedavgm: str, tiny_settings: SettingsFactory) -> None:
    with pytest.raises(ConfigError, match=r"`beta` in dapper_args.params.fedavgm is 1"):
        build_experiment(tiny_settings("method=fedavgm", "dapper_args.params.fedavgm.beta=1"))


def test_it_is_about_thirty_lines() -> None:
    code = [line for line in block("python").splitlines() if line.strip() and not line.strip().startswith('"""')]
    assert len(code) <= 35
