"""Networks for which nobody names a scope: internal where it meets all ratios, else grouped; refusals say both."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from fedml_dapper.benches.grid import folder_name
from fedml_dapper.cli import main
from fedml_dapper.config import ModelArgs, PruningArgs, Settings, check, load_settings
from fedml_dapper.config.fedml_args import BUILT_IN
from fedml_dapper.errors import ConfigError
from fedml_dapper.models import BACKBONES, adopt, build_backbone, example_image
from fedml_dapper.pruning import Scoped, trace_layout
from fedml_dapper.pruning.footprint import count_parameters

IMAGE = torch.zeros(1, 12)
AUTO = PruningArgs(scope="auto")


def one_hidden_layer() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 3))


def two_hidden_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 60), nn.ReLU(), nn.Linear(60, 8), nn.ReLU(), nn.Linear(8, 3))


class Added(nn.Module):
    """All its layers but the head are added to each other; a gate forbids the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 12)
        self.gate, self.head = nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(x).relu()
        return self.head(x + self.gate(x).softmax(1) * self.second(x))  # type: ignore[no-any-return]


class MostlyWhole(Added):
    """Two channels of it can be cut, beside thousands that cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(12, 2), nn.Linear(2, 12)
        self.whole = nn.Parameter(torch.ones(60_000))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.wide(self.narrow(x).relu())) + self.whole.mean()  # type: ignore[no-any-return]


def scoped(network: nn.Module, *ratios: float, pruning: PruningArgs = AUTO) -> Scoped:
    return Scoped.of(network, IMAGE, pruning, ratios)


def test_internal_where_it_meets_all_ratios() -> None:
    chosen = scoped(two_hidden_layers(), 0.0, 0.3)
    assert (chosen.scope, chosen.why) == ("internal", "it meets all ratios")
    assert list(chosen.layout.groups) == ["0"]


@pytest.mark.parametrize(
    ("network", "ratios", "why"),
    [
        (two_hidden_layers(), (0.0, 0.3, 0.985), r"internal reaches a ratio of 0\.9\d+"),
        (one_hidden_layer(), (0.0, 0.5), "internal cuts none of its channels"),
    ],
)
def test_else_grouped_and_why(network: nn.Module, ratios: tuple[float, ...], why: str) -> None:
    chosen = scoped(network, *ratios)
    assert chosen.scope == "grouped"
    assert re.fullmatch(why, chosen.why)
    for ratio in ratios:
        chosen.widths(ratio, AUTO, "ratios", network, IMAGE)


@pytest.mark.parametrize(("ratio", "scope"), [(0.9, "internal"), (0.985, "grouped")])
def test_widths_in_steps_need_the_same_reach(ratio: float, scope: str) -> None:
    pruning = PruningArgs(scope="auto", round_to=2)
    chosen = scoped(two_hidden_layers(), 0.0, ratio, pruning=pruning)
    assert chosen.scope == scope
    widths = chosen.widths(ratio, pruning, "ratios", two_hidden_layers(), IMAGE)
    assert 1 - count_parameters(chosen.layout, widths) / count_parameters(chosen.layout, {}) >= ratio - 0.03


def test_a_scope_that_is_named_is_taken_as_it_is() -> None:
    for scope in ("internal", "grouped"):
        named = scoped(one_hidden_layer(), 0.0, 0.5, pruning=PruningArgs(scope=scope))  # type: ignore[arg-type]
        assert (named.scope, named.why) == (scope, "")
        assert named.layout == trace_layout(one_hidden_layer(), IMAGE, scope)  # type: ignore[arg-type]


def refusal(network: nn.Module, ratio: float, scope: str) -> str:
    pruning = check(PruningArgs, {"scope": scope}, where="test")
    with pytest.raises(ConfigError) as caught:
        scoped(network, ratio, pruning=pruning).widths(ratio, pruning, "ratios", network, IMAGE)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_refusal_says_what_stays_whole_and_what_the_other_scope_reaches() -> None:
    internal = refusal(one_hidden_layer(), 0.5, "internal")
    assert "ratio 0.5 cannot be met: no channel of this network can be cut in this scope" in internal
    assert "it leaves whole what is added to another layer's channels or read by the last layer" in internal
    assert "; dapper_args.pruning.scope grouped reaches a ratio of 0.9" in internal
    most = refusal(two_hidden_layers(), 0.99, "internal")
    assert "the smallest share of this scope is" in most
    assert "; dapper_args.pruning.scope grouped reaches a ratio of 0.98" in most
    assert "; dapper_args.pruning.scope internal reaches a ratio of 0.9" in refusal(
        two_hidden_layers(), 0.999, "grouped"
    )


def test_it_says_that_neither_scope_cuts_only_where_neither_does() -> None:
    internal = refusal(one_hidden_layer(), 0.999, "grouped")
    assert internal.endswith("; dapper_args.pruning.scope internal cuts no channel")
    assert "cuts no channel either" in refusal(Added(), 0.5, "grouped")
    assert "; dapper_args.pruning.scope grouped reaches no ratio of 0.001" in refusal(MostlyWhole(), 0.5, "internal")
    assert scoped(MostlyWhole(), 0.0, 0.5).why == "internal reaches no ratio of 0.001"


@pytest.mark.parametrize("scope", ["auto", "internal", "grouped"])
def test_where_a_gate_forbids_all_cuts_it_says_which(scope: str) -> None:
    said = refusal(Added(), 0.5, scope)
    assert "cuts no channel either" in said
    assert ("`_softmax` works along the channels" in said) == (scope != "internal") or "`gate` not cut" in said


class Listed(nn.Module):
    """Most of its layers are in a plain list, which torch does not look into."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(12, 12), nn.Linear(12, 12)]
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("adopted", [True, False])
def test_where_layers_are_in_a_plain_list_it_says_so(adopted: bool) -> None:
    network = adopt(Listed(), IMAGE) if adopted else Listed()
    for scope in ("auto", "internal", "grouped"):
        assert "a weight is used that is none of the network's parameters" in refusal(network, 0.5, scope)


def settings_of(model: str | None, pruning: dict[str, str] | None = None) -> Settings:
    values = {"model_args": {"model": model}, "dapper_args": {"pruning": pruning or {}}}
    return check(Settings, values, where="test")


def test_only_networks_that_are_not_built_in_choose_for_themselves() -> None:
    assert set(BUILT_IN) == set(BACKBONES)
    for model, scope in (
        ("resnet10", "internal"),
        ("net.py:Net", "auto"),
        ("torchvision:resnet18", "auto"),
        (None, "auto"),
    ):
        made = settings_of(model)
        assert made.dapper_args.pruning.scope == scope
        assert check(Settings, made.model_dump(mode="json"), where="test") == made
        for named in ("internal", "grouped", "auto"):
            assert settings_of(model, {"scope": named}).dapper_args.pruning.scope == named
    assert PruningArgs().scope == "internal"


def test_cells_are_found_again_by_the_name_of_the_version_before() -> None:
    """There every network's default was internal, which is what auto comes to where that met the ratios."""
    for model in ("resnet10", "torchvision:resnet18"):
        assert folder_name(settings_of(model)) == folder_name(settings_of(model, {"scope": "internal"}))
        assert folder_name(settings_of(model)) != folder_name(settings_of(model, {"scope": "grouped"}))
        kept = settings_of(model, {"ratio_of": "flops"})
        assert folder_name(kept) == folder_name(settings_of(model, {"ratio_of": "flops", "scope": "internal"}))


def test_built_in_networks_are_cut_as_before() -> None:
    image, pruning = example_image(32), settings_of("resnet10").dapper_args.pruning
    backbone = build_backbone(ModelArgs(model="resnet10", width=8), 10, 1)
    with pytest.raises(ConfigError, match=r"the smallest share of this scope is .*the scope is internal"):
        Scoped.of(backbone, image, pruning, (0.99,)).widths(0.99, pruning, "ratios", backbone, image)


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n"
        "def Net(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(768, 40), nn.ReLU(), nn.Linear(40, num_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    return "net.py:Net"


def test_an_experiment_of_init_leaves_the_scope_to_the_network(network: str) -> None:
    done = CliRunner().invoke(main, ["init", "experiment.yaml", "--yes", "--model", network])
    assert done.exit_code == 0, done.output
    assert load_settings([Path("experiment.yaml")]).dapper_args.pruning.scope == "auto"


@pytest.mark.long
def test_a_network_of_one_hidden_layer_is_cut_and_the_level_table_says_how(
    network: str, tmp_path: Path, tiny_settings: Callable[..., Settings]
) -> None:
    settings = tiny_settings(
        f"model={network}", "image_size=16", "width=null", "method=dapperfl_slim", "comm_round=1",
        "dapper_args.pruning.scope=auto", f"output_dir={tmp_path / 'runs'}",
    )  # fmt: skip
    file = tmp_path / "experiment.yaml"
    file.write_text(settings.as_yaml())
    done = CliRunner().invoke(main, ["run", "-c", str(file)])
    assert done.exit_code == 0, done.output
    assert "cut in scope grouped: internal cuts none of its channels" in " ".join(done.output.split())


def test_footprints_say_the_scope(network: str) -> None:
    done = CliRunner().invoke(main, ["footprint", "--model", network, "--input", "16", "--method", "dapperfl_slim"])
    assert done.exit_code == 0, done.output
    assert "scope grouped (internal cuts none of its channels)" in " ".join(done.output.split())
