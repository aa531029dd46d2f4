"""ProFL, by hand: which tensors change in which step, who trains what, when steps end; and runs that are cut short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedml_dapper.config import PruningArgs, Settings, TrainArgs
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import ClientSide, Experiment, RoundRecord, Server, build_experiment, simulate
from fedml_dapper.fleet import demands
from fedml_dapper.methods import METHODS, Pass, Problem, ServerState, TrainingMetrics, Upload
from fedml_dapper.methods.catalogue.profl import ProFL, ProFLParams
from fedml_dapper.methods.contract.local_training import training_memory
from fedml_dapper.methods.parts.block_steps import Step
from fedml_dapper.methods.parts.stand_ins import distance
from fedml_dapper.models import example_image
from fedml_dapper.models.resnet import ResNet
from fedml_dapper.pruning import DENSE, trace_layout
from fedml_dapper.pruning.footprint import count_macs, count_parameters

from ..federation.interruptions import resumed, run_until
from .own_clients import at_start

SettingsFactory = Callable[..., Settings]
RATIOS = (0.0, 0.4, 0.45, 0.8)
FIVE = ("method=profl", "client_num_in_total=5", "client_num_per_round=5", "client_share=0.03", "epochs=1")
EVERY_ROUND_A_STEP = "dapper_args.params.profl={most_rounds: 1}"
SEVEN = (*FIVE, "comm_round=7", "frequency_of_the_test=9", EVERY_ROUND_A_STEP)
STEPS = (
    "shrinking 4", "shrinking 3", "shrinking 2", "growing 1", "growing 2", "growing 3", "growing 4"
)  # fmt: skip
TRAINED = {
    "shrinking 4": {"stages.3", "stand_ins.4", "predictor"},
    "shrinking 3": {"stages.2", "stand_ins.3", "stand_ins.4", "predictor"},
    "shrinking 2": {"stages.1", "stand_ins.2", "stand_ins.3", "stand_ins.4", "predictor"},
    "growing 1": {"stem", "stages.0", "stand_ins.2", "stand_ins.3", "stand_ins.4", "predictor"},
    "growing 2": {"stages.1", "stand_ins.3", "stand_ins.4", "predictor"},
    "growing 3": {"stages.2", "stand_ins.4", "predictor"},
    "growing 4": {"stages.3", "predictor"},
}
"""Parts of the network whose parameters a step trains."""
MEASURED = {
    "shrinking 4": {"stem", "stages.0", "stages.1", "stages.2"},
    "shrinking 3": {"stem", "stages.0", "stages.1"},
    "shrinking 2": {"stem", "stages.0"},
}
"""Further parts whose statistics a step measures."""


def profl(ratios: tuple[float, ...] = RATIOS, network: nn.Module | None = None, **values: Any) -> ProFL:
    problem = Problem(
        ResNet([1, 1, 1, 1], 4, 10), example_image(16), TrainArgs(comm_round=21), PruningArgs(), uniform_weights=False,
        seed=0, ratios=ratios, slims=False,
    )  # fmt: skip
    return ProFL(ProFLParams(**values), problem)


def part_of(name: str) -> str:
    """Part of the network that a tensor belongs to."""
    return ".".join(name.split(".")[: 2 if name.startswith("sta") else 1])


def parts(names: Sequence[str] | frozenset[str]) -> set[str]:
    return {part_of(name) for name in names}


def in_step(method: ProFL, step: str) -> ServerState:
    """The server before a round of that step."""
    state = at_start(method)
    state.memory.values["step"] = STEPS.index(step)
    return state


def answered(method: ProFL, state: ServerState, change: Callable[[str, Tensor], Tensor]) -> None:
    """Close a round in which client 0 answers with changed tensors."""
    plan = method.upload_plan(state, 0)
    sent = method.downlink(state, 0).weights
    weights = {name: change(name, tensor) for name, tensor in sent.items() if name not in plan.omitted}
    aggregation = method.aggregation(state)
    aggregation.add(Upload(1, 0, 1, weights, TrainingMetrics(0.0, 1, 0.0), plan))
    aggregation.close()
    state.round += 1


def added(amount: float) -> Callable[[str, Tensor], Tensor]:
    return lambda _, tensor: tensor + amount if tensor.is_floating_point() else tensor


class Kept:
    """The global model and the notes after every round."""

    def __init__(self, experiment: Experiment) -> None:
        self.server, clients = Server(experiment), ClientSide(experiment)
        self.weights = [dict(self.server.state.weights)]
        self.records = list[RoundRecord]()
        while self.server.has_rounds_left:
            for client_id in self.server.round_clients():
                self.server.receive(clients.update(self.server.downlink(client_id), experiment.clients[client_id]))
            self.records.append(self.server.close_round())
            self.weights.append(dict(self.server.state.weights))


# Steps


def test_the_network_shrinks_from_the_back_and_grows_from_the_front() -> None:
    assert tuple(map(str, profl().steps)) == STEPS
    assert tuple(map(str, profl(shrink=False).steps)) == STEPS[3:]


@pytest.mark.parametrize("step", STEPS)
def test_a_client_is_sent_the_step_s_model_and_sends_what_it_trains(step: str) -> None:
    method = profl()
    state = in_step(method, step)
    block, grows = int(step[-1]), step.startswith("grow")
    blocks = {"stem", "predictor", *(f"stages.{place}" for place in range(block))}
    stand_ins = {f"stand_ins.{number}" for number in range(2, 5) if number > block or (number == block and not grows)}
    downlink = method.downlink(state, 0)
    model = method.local_model(downlink.plan)
    assert parts(list(downlink.weights)) == blocks | stand_ins
    assert model.state_dict().keys() == downlink.weights.keys()
    sent_back = downlink.weights.keys() - method.upload_plan(state, 0).omitted
    parameters = {name for name, _ in model.named_parameters()}
    assert parts(frozenset(sent_back & parameters)) == TRAINED[step]
    statistics = sent_back - parameters
    assert parts(frozenset(statistics)) == (TRAINED[step] | MEASURED.get(step, set())) - {"predictor"}


def test_what_changes_in_each_step_and_what_stays_bit_for_bit(tiny_settings: SettingsFactory) -> None:
    """In the first of each step's two rounds; after the second the next step's output module is put in."""
    two = ("client_num_in_total=4", "client_num_per_round=1", "comm_round=14", "batch_size=64", "ratios=[0.0]")
    run = Kept(build_experiment(tiny_settings(*SEVEN, *two, "dapper_args.params.profl={most_rounds: 2}")))
    assert [record.notes["step"] for record in run.records] == [step for step in STEPS for _ in range(2)]
    parameters = {name for name, _ in run.server._method.problem.backbone.named_parameters()}
    for place, step in enumerate(STEPS):
        before, after = run.weights[2 * place : 2 * place + 2]
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert parts(frozenset(changed & parameters)) == TRAINED[step], step
        statistics = (TRAINED[step] | MEASURED.get(step, set())) - {"predictor"}
        assert parts(frozenset(changed - parameters)) == statistics, step


def test_growing_takes_up_the_output_module_that_shrinking_left(tiny_settings: SettingsFactory) -> None:
    """The step before has trained another one, which is put away."""
    run = Kept(build_experiment(tiny_settings(*SEVEN, "ratios=[0.0]", "comm_round=4")))
    method = run.server._method
    assert isinstance(method, ProFL)
    assert str(method.step_of(run.server.state)) == "growing 2"
    shrunk, grown = run.weights[3], run.weights[4]
    for name in method.blocks.output_module(2):
        assert torch.equal(grown[name], shrunk[name])
    first = Kept(build_experiment(tiny_settings(*SEVEN, "ratios=[0.0]", "comm_round=3")))
    assert str(method.step_of(first.server.state)) == "growing 1"
    assert {key.partition("/")[0] for key in first.server.state.memory.tensors} == {"output2", "output3", "output4"}


def test_a_step_ends_when_its_block_has_settled() -> None:
    """Movements are 1 while all scalars go on; the first line is through those of rounds 2 and 3."""
    method = profl(window=2, threshold=0.1, patience=2, most_rounds=20)
    state = at_start(method)
    steps = []
    for _ in range(4):
        answered(method, state, added(1.0))
        steps.append(str(method.step_of(state)))
    assert steps == ["shrinking 4", "shrinking 4", "shrinking 4", "shrinking 3"]
    assert [key for key in state.memory.tensors if key.startswith("past")] == []


def test_a_step_goes_on_while_movement_falls() -> None:
    """Half of the scalars turn back in turn: after a window of two, movement is 1, then 0.5, then 0.5."""
    method = profl(window=2, threshold=0.1, patience=1, most_rounds=20)
    state = at_start(method)
    first = "stages.3.0.conv1.weight"
    found = []
    for round_ in range(1, 5):
        turned = -1.0 if round_ in (3, 4) and round_ % 2 else 1.0
        answered(method, state, lambda name, tensor, turned=turned: tensor + (turned if name == first else 1.0)
                 if tensor.is_floating_point() else tensor)  # fmt: skip
        found.append(method.round_notes(state).get("effective_movement"))
    parameters = {name: tensor for name, tensor in method.problem.backbone.named_parameters() if "stages.3." in name}
    share = parameters[first].numel() / sum(tensor.numel() for tensor in parameters.values())
    assert found[0] is None
    assert found[1:] == pytest.approx([1, 1 - share, 1 - share])


def test_a_step_that_does_not_settle_ends_after_its_share_of_the_rounds() -> None:
    assert profl().most_rounds == 3
    assert profl(shrink=False).most_rounds == 5
    assert profl(most_rounds=8).most_rounds == 8
    method = profl(threshold=0.0)
    state = at_start(method)
    steps = []
    for _ in range(21):
        steps.append(str(method.step_of(state)))
        answered(method, state, added(0.5))
    assert steps == [step for step in STEPS for _ in range(3)]
    assert str(method.step_of(state)) == "growing 4"
    assert "most_rounds" in method.depends_on_comm_round
    assert profl(most_rounds=8).depends_on_comm_round == ""


# Who trains what


def test_memory_decides_who_trains_the_block() -> None:
    method = profl()
    example, training = method.problem.example, method.problem.training
    whole = METHODS["fedavg"](METHODS["fedavg"].check_params({}), method.problem).problem.backbone
    assert isinstance(whole, ResNet)
    plain = ResNet([1, 1, 1, 1], 4, 10)
    bytes_of = sum(tensor.nbytes for tensor in plain.state_dict().values())
    full = training_memory(plain, example, training).peak(training.batch_size) + bytes_of
    for step in method.steps:
        state = in_step(method, str(step))
        for client_id, ratio in enumerate(RATIOS):
            trains = bool(method.downlink(state, client_id).extras["trains_block"])
            needed = method._needed(step, trains_block=True)
            assert trains == (ratio == 0 or needed <= (1 - ratio) * full)
    growing = [method._needed(Step(block, grows=True), True) / full for block in (1, 2, 3, 4)]
    assert max(growing) < 0.8
    assert growing == sorted(growing, reverse=True)  # on small maps of many channels the last blocks are smallest


def test_a_client_without_that_memory_trains_what_is_behind_the_block() -> None:
    method = profl()
    for step in STEPS:
        state = in_step(method, step)
        downlink = method.downlink(state, 2)
        if downlink.extras["trains_block"]:
            continue
        block = int(step[-1])
        sent_back = downlink.weights.keys() - method.upload_plan(state, 2).omitted
        assert sent_back == method.blocks.output_module(block)
        assert downlink.plan.omitted == method.blocks.sent_plan(Step(block, grows=True), True).omitted
        method.check_plan(state, Upload(1, 2, 3, {}, TrainingMetrics(0, 1, 0), method.upload_plan(state, 2)))
    assert not profl().downlink(in_step(method, "growing 1"), 2).extras["trains_block"]


def test_frozen_layers_save_nothing() -> None:
    """Where the last of three linear layers alone is trained, the backward pass needs its input, and the loss's ten
    logarithms."""
    layers = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Linear(5, 4), nn.Linear(4, 10))
    for layer in (layers[1], layers[2]):
        layer.requires_grad_(False)
    memory = training_memory(layers, example_image(2), TrainArgs())
    assert memory.saved_per_sample == 4 * (4 + 10)
    assert memory.gradients == memory.optimizer == 4 * (4 * 10 + 10)
    assert memory.weights == 4 * (12 * 5 + 5 + 5 * 4 + 4 + 50)


def test_levels_that_hold_no_step_take_no_part_and_it_is_said() -> None:
    method = profl()
    assert [method.takes_part(level) for level in (1, 2, 3, 4)] == [True, True, True, False]
    assert [method.has_level_model(level) for level in (1, 2, 3, 4)] == [True, True, True, False]
    assert method.notes[0] == "4 blocks are trained in 7 steps, each for 3 rounds at most"
    behind = [str(step) for step in method.steps if not method.trains_block(step, RATIOS[2])]
    assert f"level 3 trains the layers behind the block alone in {', '.join(behind)}" in method.notes
    assert "growing 1" in behind
    assert method.notes[-1] == "level 4 takes no part: some step's model does not fit its memory in training"
    assert [one.level for one in demands(method)] == [1, 2, 3]


def test_what_is_announced_is_within_the_level_s_memory() -> None:
    method = profl()
    full = method._whole_memory
    for one in demands(method)[1:]:
        assert one.memory_bytes <= (1 - one.ratio) * full * 1.25  # the largest message and the largest step in one
    assert [one.bytes_down for one in demands(method)] == [method.footprint(one).bytes_down for one in RATIOS[:3]]


def test_macs_are_what_a_client_really_runs(tiny_settings: SettingsFactory) -> None:
    """Relative to FedAvg's step, since torch leaves out norms and the first layer's input gradient."""

    def counted(name: str, model: nn.Module, loss: Callable[[Tensor], Tensor]) -> int:
        with FlopCounterMode(display=False) as counter:
            loss(model(torch.randn(2, 3, 16, 16))).backward()
        return int(counter.get_total_flops())

    method = profl()
    plain = ResNet([1, 1, 1, 1], 4, 10)
    full = counted("full", plain.train(), lambda logits: logits.square().mean())
    whole = 3 * method.model_size(method.blocks.sent_plan(method.steps[-1], True))[1]
    assert method.pass_macs(Pass(method.blocks.sent_plan(method.steps[-1], True))) == whole
    for step in method.steps:
        one = method.blocks.pass_of(step, True)
        model = method.pass_model(one).train()

        def loss(logits: Tensor, model: nn.Module = model, step: Step = step) -> Tensor:
            return logits.square().mean() + (0 if step.grows else distance(model))

        ran = counted(str(step), model, loss) / full
        assert method.pass_macs(one) / whole == pytest.approx(ran, rel=0.1), str(step)


def test_rounds_are_what_the_footprint_says_at_most(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings(*SEVEN, "assignment=[1, 2, 3, 4, 1]"))
    method = experiment.method
    _, records = simulate(experiment)
    assert {client.client for client in records[0].clients} == {0, 1, 2, 3, 4} - {
        profile.client_id for profile in experiment.profiles if not method.takes_part(profile.level)
    }
    for profile in experiment.profiles:
        clients = [client for record in records for client in record.clients if client.client == profile.client_id]
        if clients:
            cost = method.footprint(profile.ratio)
            assert max(client.params for client in clients) == cost.parameters
            assert max(client.macs for client in clients) == cost.macs
            assert max(client.bytes_up for client in clients) == cost.bytes_up
            assert max(client.bytes_down for client in clients) == cost.bytes_down + 1  # what it is told besides


# Networks


def test_a_network_of_one_stage_is_left_with_fedavg_bit_for_bit(tiny_settings: SettingsFactory) -> None:
    base = build_experiment(tiny_settings("method=fedavg", "ratios=[0.0]", "client_share=0.03", "epochs=1"))
    problem = replace(base.method.problem, backbone=ResNet([2], 8, 10))
    plain, ours = (
        simulate(replace(base, method=METHODS[name](METHODS[name].check_params({}), problem)))[0].state.weights
        for name in ("fedavg", "profl")
    )
    assert plain.keys() == ours.keys()
    assert all(torch.equal(tensor, ours[name]) for name, tensor in plain.items())


def test_the_global_model_is_the_step_s_and_in_the_end_the_full_network() -> None:
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    method = profl()
    for step in STEPS:
        model = method.global_model(in_step(method, step)).eval()
        block = int(step[-1])
        assert {part for part in parts(list(model.state_dict())) if "stand" in part} == {
            f"stand_ins.{number}" for number in range(block + 1, 5)
        }
        assert model(images).shape == (2, 10)
    whole = method.problem.backbone.eval()
    assert torch.equal(method.global_model(in_step(method, "growing 4")).eval()(images), whole(images))


def test_the_whole_network_is_counted_without_stand_ins_as_a_model_card_says_it() -> None:
    layout = trace_layout(ResNet([1, 1, 1, 1], 4, 10), example_image(16), "internal")
    assert profl().model_size(DENSE) == (count_parameters(layout, {}), count_macs(layout, {}))


def test_stand_ins_learn_what_their_blocks_do(tiny_settings: SettingsFactory) -> None:
    """On images of a client; without mapping the stand-in stays as it is while its block is trained."""
    few = (*FIVE, "ratios=[0.0]", "comm_round=1", "epochs=6", "norm=group")
    apart = {}
    for weight in (0.0, 1.0):
        setting = f"dapper_args.params.profl={{mapping: {weight}, most_rounds: 5}}"
        experiment = build_experiment(tiny_settings(*few, setting))
        server, _ = simulate(experiment)
        method = experiment.method
        before = method.problem.backbone.state_dict()["stand_ins.4.0.weight"]
        assert torch.equal(server.state.weights["stand_ins.4.0.weight"], before) == (weight == 0)
        downlink = method.downlink(server.state, 0)
        model = method.local_model(downlink.plan).train()
        model.load_state_dict(downlink.weights)
        model(next(iter(experiment.clients[0].batches(1, 1))).inputs)
        apart[weight] = distance(model).item()
    assert apart[1.0] < 0.7 * apart[0.0]


def test_a_network_of_the_user_s_own_blocks_runs(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    few = ("width=null", f"model={tmp_path / 'own.py'}:Net", "image_size=8", "comm_round=5")
    experiment = build_experiment(tiny_settings(*SEVEN, *few, "ratios=[0.0]"))
    server, records = simulate(experiment)
    assert [record.notes["step"] for record in records] == [
        "shrinking 3", "shrinking 2", "growing 1", "growing 2", "growing 3"
    ]  # fmt: skip
    assert all(bool(torch.isfinite(tensor).all()) for tensor in server.state.weights.values())
    named = "dapper_args.params.profl={blocks: [blocks.0, blocks.1], most_rounds: 1}"
    fewer = build_experiment(tiny_settings(*SEVEN, *few, "ratios=[0.0]", named)).method
    assert isinstance(fewer, ProFL)
    assert parts(fewer.blocks.output_module(2)) == {"blocks", "head"}


OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, channels=8):
        super().__init__()
        self.cut = nn.Conv2d(3, channels, 2, 2)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(channels), nn.Dropout(0.5), nn.Linear(channels, channels)) for _ in range(3)
        )
        self.head = nn.Linear(channels, num_classes)

    def forward(self, x):
        rows = self.cut(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            rows = block(rows)
        return self.head(rows.mean(dim=1))
"""


def test_what_is_frozen_from_the_start_stays_frozen_and_never_travels(
    tiny_settings: SettingsFactory, tmp_path: Path
) -> None:
    frozen = "        self.blocks[1][2].weight.requires_grad_(False)\n\n    def forward"
    (tmp_path / "own.py").write_text(OWN.replace("\n    def forward", frozen))
    few = ("width=null", f"model={tmp_path / 'own.py'}:Net", "image_size=8", "comm_round=5")
    experiment = build_experiment(tiny_settings(*SEVEN, *few, "ratios=[0.0]"))
    server, _ = simulate(experiment)
    initial = experiment.method.problem.backbone.state_dict()
    assert "blocks.1.2.weight" not in server.state.weights
    assert not torch.equal(server.state.weights["blocks.1.2.bias"], initial["blocks.1.2.bias"])
    found = experiment.method.global_model(server.state).state_dict()
    assert torch.equal(found["blocks.1.2.weight"], initial["blocks.1.2.weight"])


def test_frozen_blocks_run_as_in_evaluation(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    """Dropout in a block that no longer changes would hide part of it; in front of a shrinking block all train."""
    (tmp_path / "own.py").write_text(OWN)
    few = ("width=null", f"model={tmp_path / 'own.py'}:Net", "image_size=8", "comm_round=5")
    method = build_experiment(tiny_settings(*SEVEN, *few, "ratios=[0.0]")).method
    assert isinstance(method, ProFL)
    for step in method.steps:
        model = method.local_model(method.blocks.sent_plan(step, True))
        method.set_modes(model, method.blocks.frozen(step, trains_block=True))
        training = [model.get_submodule(f"blocks.{place}").training for place in range(step.block)]
        frozen = step.block - 1 if step.grows else 0
        assert training == [False] * frozen + [True] * (step.block - frozen)
        assert model.get_submodule("cut").training == (frozen == 0)
        assert model.get_submodule("head").training
        dropouts = [layer for name, layer in model.named_modules() if isinstance(layer, nn.Dropout)]
        assert [layer.training for layer in dropouts] == training
    output_alone = method.local_model(method.blocks.sent_plan(Step(3, grows=False), False))
    method.set_modes(output_alone, method.blocks.frozen(Step(3, grows=False), trains_block=False))
    assert [output_alone.get_submodule(f"blocks.{place}").training for place in range(3)] == [False] * 3
    assert output_alone.get_submodule("head").training


# Both sides


def test_an_upload_of_another_step_or_part_is_refused() -> None:
    method = profl()
    earlier, later = in_step(method, "growing 1"), in_step(method, "growing 2")
    upload = Upload(1, 0, 1, {}, TrainingMetrics(0.0, 1, 0.0), method.upload_plan(earlier, 0))
    method.check_plan(earlier, upload)
    with pytest.raises(ProtocolError, match="not the one that its client was sent"):
        method.check_plan(later, upload)
    assert not method.takes_late_uploads
    assert method.takes_edges
    assert method.beyond_sums == ""


def test_counters_of_a_block_stay_where_only_weak_clients_answer() -> None:
    method = profl()
    state = in_step(method, "growing 1")
    counter = "stages.0.0.bn1.num_batches_tracked"
    state.weights[counter] = torch.tensor(7)
    before = dict(state.weights)
    plan = method.upload_plan(state, 2)
    sent = method.downlink(state, 2).weights
    weights = {name: added(1.0)(name, tensor) for name, tensor in sent.items() if name not in plan.omitted}
    aggregation = method.aggregation(state)
    aggregation.add(Upload(1, 2, 3, weights, TrainingMetrics(0.0, 1, 0.0), plan))
    aggregation.close()
    same = {name for name in before if torch.equal(before[name], state.weights[name])}
    assert before.keys() - same == {name for name in weights if weights[name].is_floating_point()}
    assert state.weights[counter] == 7


def test_clients_own_figures_are_of_the_whole_model_that_they_run(tiny_settings: SettingsFactory) -> None:
    """Though they send back a part of it alone."""
    few = (*FIVE, "comm_round=1", "client_num_in_total=4", "client_num_per_round=4")
    _, records = simulate(build_experiment(tiny_settings(*few, "ratios=[0.0]", "personal=trained", "client_share=0.1")))
    assert all(client.accuracy_after is not None for client in records[0].clients)


@pytest.mark.parametrize("round_", [pytest.param(2, marks=pytest.mark.long), 5])
def test_a_run_that_is_killed_in_the_middle_of_a_step_ends_with_the_same_bits(
    tiny_settings: SettingsFactory, tmp_path: Path, round_: int
) -> None:
    """Steps of three rounds at most, whose windows of two are remembered; round 5 is the second of the second step."""
    settle = "dapper_args.params.profl={most_rounds: 3, window: 2, threshold: 0.001}"
    few = ("client_num_in_total=4", "client_num_per_round=2", "client_share=0.02", "comm_round=6", "batch_size=32")
    settings = tiny_settings(*FIVE, *few, "checkpoint_every=1", "frequency_of_the_test=9", "ratios=[0, 0.4]", settle)
    whole, records = simulate(build_experiment(settings), run_dir=tmp_path / "whole")
    run_until(round_, settings, tmp_path / "cut")
    again, _ = resumed(settings, tmp_path / "cut")
    assert [record.notes["step"] for record in records[2:4]] == ["shrinking 4", "shrinking 3"]
    assert any("effective_movement" in record.notes for record in records)
    assert again.state.memory.values == whole.state.memory.values
    assert again.state.memory.tensors.keys() == whole.state.memory.tensors.keys()
    for mine, theirs in (
        (again.state.weights, whole.state.weights),
        (again.state.memory.tensors, whole.state.memory.tensors),
    ):
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


@pytest.mark.parametrize(
    "setting",
    [
        {"window": 1},
        {"threshold": -1},
        {"patience": 0},
        {"most_rounds": 0},
        {"kernel": 2},
        {"mapping": -1},
        {"gamma": 1},
    ],
)
def test_settings_out_of_range_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"settings of profl.*{next(iter(setting))}"):
        ProFL.check_params(setting)
