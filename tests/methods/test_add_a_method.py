"""The methods that docs/add_a_method.md writes, taken from the page itself."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from fedml_dapper.cli import main
from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError, DapperError
from fedml_dapper.federation import Experiment, build_experiment, simulate

SettingsFactory = Callable[..., Settings]
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add_a_method.md").read_text(encoding="utf-8")
BENCHES = (ROOT / "docs" / "benches.md").read_text(encoding="utf-8")
EQUAL_COST = (ROOT / "docs" / "equal_cost.md").read_text(encoding="utf-8")
FEW = ("client_num_in_total=4", "client_num_per_round=4", "client_share=0.05", "epochs=1")


def block(name: str, page: str = PAGE) -> str:
    found = re.search(rf"```\w+\n(# {re.escape(name)}\b.*?)```", page, flags=re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """The first method's two files, as a user would save them; the second's are beside them."""
    for name in ("heavyball.py", "heavyball.yaml", "calibrated.py", "calibrated.yaml"):
        (tmp_path / name).write_text(block(name))
    return tmp_path / "heavyball.yaml"


def final_weights(experiment: Experiment) -> dict[str, Tensor]:
    return simulate(experiment)[0].state.weights


@pytest.mark.usefixtures("page")
def test_it_stands_in_a_bench_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(block("mine.yaml", BENCHES))
    result = CliRunner().invoke(main, ["bench", "mine.yaml", "--seeds", "1", "--report"])
    assert result.exit_code == 0, result.output
    assert re.search(r"HeavyBall +│ 0 of 1", result.stdout), result.stdout


@pytest.mark.usefixtures("page")
def test_it_enters_a_shipped_bench_beside_the_finished_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "small").mkdir(parents=True)
    (tmp_path / "results" / "small" / "cells").symlink_to(ROOT / "results" / "small" / "cells")
    command = re.search(r"^fedml-dapper (bench .* --also .*)$", EQUAL_COST, flags=re.MULTILINE)
    assert command is not None
    result = CliRunner().invoke(main, [*command.group(1).split(), "--seeds", "11", "--report"])
    assert result.exit_code == 0, result.output
    assert re.search(r"heavyball +│ 0 of 1", result.stdout), result.stdout
    assert re.search(r"FedRolex +│ 1 of 1", result.stdout), result.stdout


@pytest.mark.long
def test_the_page_s_method_runs(page: Path, tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings(*FEW, above=page))
    assert experiment.method.name == "heavyball"
    assert experiment.record().sources["dapper_args.method"].startswith("heavyball.py:HeavyBall (source ")
    moved = final_weights(experiment)
    still = final_weights(build_experiment(tiny_settings(*FEW, "dapper_args.params.heavyball.beta=0", above=page)))
    plain = final_weights(build_experiment(tiny_settings("method=fedavg", *FEW)))
    name = "predictor.weight"
    torch.testing.assert_close(still[name], plain[name])
    assert not torch.allclose(moved[name], plain[name])


@pytest.mark.long
def test_the_page_s_loss_is_what_clients_minimise(page: Path, tiny_settings: SettingsFactory) -> None:
    above = page.with_name("calibrated.yaml")
    shifted = final_weights(build_experiment(tiny_settings(*FEW, above=above)))
    off = final_weights(build_experiment(tiny_settings(*FEW, "dapper_args.params.calibrated.tau=0", above=above)))
    plain = final_weights(build_experiment(tiny_settings("method=fedavg", *FEW)))
    assert all(torch.equal(off[name], plain[name]) for name in plain)
    assert not torch.allclose(shifted["predictor.bias"], plain["predictor.bias"])


@pytest.mark.long
def test_the_page_s_test_passes_and_can_fail(page: Path, tmp_path: Path) -> None:
    (tmp_path / "test_heavyball.py").write_text(block("test_heavyball.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_heavyball.py"]
    passed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert passed.returncode == 0, passed.stdout
    source = page.with_name("heavyball.py")
    source.write_text(source.read_text().replace("before[name] + change", "before[name] + 2 * change"))
    failed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed" in failed.stdout


EARLIER = """
from pydantic import Field

from fedml_dapper.methods import Aggregation, Method, MethodParams, RecoverAndAverage, ServerState


class Params(MethodParams):
    beta: float = Field(default=0.9, ge=0, lt=1)


class HeavyBall(Method[Params]):
    name = "heavyball"
    Params = Params
    takes_at_home = True

    def aggregation(self, server: ServerState) -> Aggregation:
        return MomentumAverage(server, self.problem, beta=self.params.beta)


class MomentumAverage(RecoverAndAverage):
    def __init__(self, *args, beta: float) -> None:
        super().__init__(*args)
        self._beta = beta

    def close(self) -> None:
        server, before, last = self._server, self._server.weights, self._server.memory.recall("step")
        super().close()
        trainable = [name for name, spec in self._layout.tensors.items() if spec.trainable]
        step = {name: server.weights[name] - before[name] + self._beta * last.get(name, 0) for name in trainable}
        server.weights |= {name: before[name] + change for name, change in step.items()}
        server.memory.keep("step", step)
"""
"""The page's method as it was written before there was ``server_update``."""


def test_a_method_that_was_written_before_runs_as_it_did(page: Path, tiny_settings: SettingsFactory) -> None:
    small = (*FEW, "width=2", "client_share=0.02")
    now = final_weights(build_experiment(tiny_settings(*small, above=page)))
    page.with_name("heavyball.py").write_text(EARLIER)
    before = final_weights(build_experiment(tiny_settings(*small, above=page)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in now.items())
    assert build_experiment(tiny_settings(*small, "personal_layers=norms", above=page)).method.personal


def test_its_settings_are_checked(page: Path, tiny_settings: SettingsFactory) -> None:
    with pytest.raises(ConfigError, match=r"`beta` in dapper_args.params.heavyball is 1"):
        build_experiment(tiny_settings("dapper_args.params.heavyball.beta=1", above=page))
    with pytest.raises(ConfigError, match=r"dapper_args.params: unknown method `fedavgn`; did you mean `fedavg`"):
        build_experiment(tiny_settings("dapper_args.params.fedavgn.beta=1", above=page))


def test_a_run_is_not_resumed_with_other_code(page: Path, tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    simulate(build_experiment(tiny_settings(*FEW, above=page)), run_dir=run_dir)
    source = page.with_name("heavyball.py")
    source.write_text(source.read_text().replace("+ beta *", "- beta *"))
    with pytest.raises(
        ConfigError, match=r"other settings: dapper_args.method is heavyball.py:HeavyBall \(source .* there"
    ):
        simulate(build_experiment(tiny_settings(*FEW, above=page)), run_dir=run_dir, resume=True)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("HeavyBall = 3", "is no method; derive a class from fedml_dapper.methods.Method"),
        ("from fedml_dapper.methods import Method\nclass HeavyBall(Method): ...", "is a method without `name`"),
    ],
)
def test_what_is_no_method_is_refused(page: Path, tiny_settings: SettingsFactory, code: str, message: str) -> None:
    page.with_name("heavyball.py").write_text(code)
    with pytest.raises(ConfigError, match=message):
        build_experiment(tiny_settings(*FEW, above=page))


OWN = """
from fedml_dapper.methods import Method, MethodParams


class Params(MethodParams): ...


class Own(Method[Params]):
    name = "own"
    Params = Params

{hook}
"""


def with_hook(tmp_path: Path, tiny_settings: SettingsFactory, hook: str) -> Settings:
    (tmp_path / "own.py").write_text(OWN.format(hook=textwrap.indent(hook, "    ")))
    return tiny_settings(*FEW, f"method={tmp_path / 'own.py'}:Own")


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (
            "def server_update(self, server, mean): return mean",
            "Own.server_update returns something, which nobody reads",
        ),
        (
            "def server_update(self, server, mean): server.weights = {n: mean[n] for n in sorted(mean)[1:]}",
            "Own.server_update leaves a global model in which 1 entries are missing, new or of another shape, such as",
        ),
        (
            "def objective(self, client, downlink): return self.params.nu",
            r"client \d, round 1: dapper_args.method: method `own` fails: AttributeError: .* \(own.py, line 12\)",
        ),
        (
            "def downlink(self, server, client_id): return 1 / 0",
            r"downlink to client \d, round 1: .* `own` fails: ZeroDivisionError: division by zero \(own.py, line 12\)",
        ),
        (
            "def server_update(self, server, mean): server.memory.keep('x', 3)",
            r"end of round 1: .* method `own` fails: TypeError: .* \(own.py, line 12\)",
        ),
    ],
)
def test_a_slip_in_a_hook_is_one_line(tmp_path: Path, tiny_settings: SettingsFactory, hook: str, said: str) -> None:
    with pytest.raises(DapperError, match=said) as caught:
        simulate(build_experiment(with_hook(tmp_path, tiny_settings, hook)))
    assert "\n" not in str(caught.value)


def test_a_hook_that_is_misspelt_is_told(
    tmp_path: Path, tiny_settings: SettingsFactory, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = "def server_updates(self, server, mean): ...\ndef my_part(self): ..."
    build_experiment(with_hook(tmp_path, tiny_settings, hooks))
    assert caplog.messages == ["`server_updates` of Own overrides nothing; did you mean `server_update`?"]
