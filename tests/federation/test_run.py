from __future__ import annotations

import re
from collections.abc import Callable
from math import isnan
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.federation import (
    LEDGER_NAME,
    MODEL_NAME,
    ClientSide,
    LedgerWriter,
    RoundRecord,
    RunObserver,
    Server,
    build_experiment,
    read_ledger,
    run_rounds,
    simulate,
)

SettingsFactory = Callable[..., Settings]
SECONDS = re.compile(r'"seconds":(\{[^}]*\}|[0-9.e-]+)')


def ledger_text(settings: Settings, path: Path) -> str:
    simulate(build_experiment(settings), [LedgerWriter(path)])
    return SECONDS.sub('"seconds":0', path.read_text())


@pytest.mark.long
def test_a_repeated_run_gives_the_same_ledger_but_for_seconds(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    first = ledger_text(tiny_settings(), tmp_path / "1.jsonl")
    assert first == ledger_text(tiny_settings(), tmp_path / "2.jsonl")
    assert first != ledger_text(tiny_settings("random_seed=2"), tmp_path / "3.jsonl")


@pytest.mark.long
def test_ledger_reads_back_and_says_what_everyone_cost(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    experiment = build_experiment(tiny_settings())
    _, records = simulate(experiment, [LedgerWriter(tmp_path / "ledger.jsonl")])
    run, rounds = read_ledger(tmp_path / "ledger.jsonl")
    assert run == experiment.record()
    assert rounds == records
    by_level = {row.level: row for row in run.footprints}
    for client in rounds[0].clients:
        level = by_level[client.level]
        assert (client.params, client.macs) == (level.params, level.macs)
        assert (client.bytes_up, client.bytes_down) == (level.bytes_up, level.bytes_down)
        assert client.seconds > 0


def test_a_ledger_is_never_overwritten(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_text("somebody's results\n")
    with pytest.raises(DataError, match="File exists"):
        LedgerWriter(tmp_path / "ledger.jsonl").run_started(build_experiment(tiny_settings()).record())
    assert (tmp_path / "ledger.jsonl").read_text() == "somebody's results\n"


@pytest.mark.long
def test_torn_ledgers_keep_their_rounds_and_damaged_ones_are_refused_by_line(
    tiny_settings: SettingsFactory, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.jsonl"
    simulate(build_experiment(tiny_settings("epochs=1")), [LedgerWriter(path)])
    text = path.read_text()
    path.write_text(text[: len(text) - 40])
    assert [record.round for record in read_ledger(path)[1]] == [1]  # a killed run loses only its unfinished record
    path.write_text(text.replace('"round":2', '"round":"two"'))
    with pytest.raises(DataError, match="line 3"):
        read_ledger(path)
    path.write_text("{}\n")
    with pytest.raises(DataError, match="line 1"):
        read_ledger(path)
    with pytest.raises(DataError, match="no ledger at"):
        read_ledger(tmp_path / "none.jsonl")


@pytest.mark.parametrize(("torn", "line"), [("utf-16", 1), ("latin-1", 2)])
def test_a_ledger_in_another_encoding_is_refused_by_line(
    torn: str, line: int, tiny_settings: SettingsFactory, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.jsonl"
    run = build_experiment(tiny_settings()).record().model_dump_json()
    path.write_bytes(f'{run}\n{{"record":"é"}}\n'.encode(torn))
    with pytest.raises(DataError, match=f"line {line}"):
        read_ledger(path)


def test_a_ledger_torn_in_the_middle_of_a_letter_keeps_its_rounds(
    tiny_settings: SettingsFactory, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.jsonl"
    run = build_experiment(tiny_settings()).record()
    path.write_bytes(f'{run.model_dump_json()}\n{{"record":"é'.encode()[:-1])
    assert read_ledger(path) == (run, [])


class _Interrupt(RunObserver):
    finished = False

    def round_finished(self, record: RoundRecord) -> None:
        if record.round == 1:
            raise KeyboardInterrupt

    def run_finished(self) -> None:
        self.finished = True


def test_an_interrupted_run_keeps_its_finished_rounds(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    experiment = build_experiment(tiny_settings("checkpoint_every=1", "epochs=1"))
    server, clients, interrupt = Server(experiment), ClientSide(experiment), _Interrupt()
    with pytest.raises(KeyboardInterrupt):
        run_rounds(
            experiment,
            server,
            clients,
            lambda downlink: clients.update(downlink, experiment.clients[downlink.client_id]),
            [interrupt],
            tmp_path,
        )
    assert interrupt.finished
    assert len(read_ledger(tmp_path / LEDGER_NAME)[1]) == 1
    saved = load_file(tmp_path / MODEL_NAME)
    assert all(torch.equal(tensor, server.state.weights[name]) for name, tensor in saved.items())
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train_args={client_num_in_total: 3, client_num_per_round: 3}", "domain"),
        ("client_share=0.001", "client"),
        ("using_gpu=true", "finds no GPU"),
        ("dataset=digit_offline", "did you mean `digits_offline`"),
    ],
)
def test_what_cannot_run_is_refused_at_once(tiny_settings: SettingsFactory, override: str, message: str) -> None:
    if "gpu" in override and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises((ConfigError, DataError), match=message):
        build_experiment(tiny_settings(override))


@pytest.mark.nightly
def test_partial_aggregation_of_slim_uploads_learns(tiny_settings: SettingsFactory) -> None:
    params = "dapper_args.params.dapperfl.alpha_0=0.1"
    five = ("client_num_in_total=5", "client_num_per_round=5")  # one of each level
    settings = tiny_settings(*five, "comm_round=7", "epochs=3", "client_share=0.2", "batch_size=8", params)
    _, records = simulate(build_experiment(settings))
    scores = records[-1].scores
    assert scores is not None
    assert scores.global_accuracy > 30  # 10 % is chance


@pytest.mark.nightly
def test_a_diverged_loss_can_be_written_and_read(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    writer, experiment = LedgerWriter(tmp_path / "ledger.jsonl"), build_experiment(tiny_settings("epochs=1"))
    _, records = simulate(experiment)
    client = records[0].clients[0].model_copy(update={"loss": float("nan")})
    writer.run_started(experiment.record())
    writer.round_finished(records[0].model_copy(update={"clients": (client,)}))
    writer.run_finished()
    assert isnan(read_ledger(writer.path)[1][0].clients[0].loss)
