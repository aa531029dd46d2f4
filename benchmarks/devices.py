"""A server of thousands of devices that come and go: its memory, and what a round costs outside training."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import click
import grpc
import grpc.aio
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from benchmarks.output import Figure, Findings, json_option
from fedml_dapper.config import SecureGrpcConfig, load_settings
from fedml_dapper.device.introduction import introduce
from fedml_dapper.federation import Agreement, Announcement, Codec, RunJournal, Server, build_experiment
from fedml_dapper.federation.wire import vocabulary as say
from fedml_dapper.methods import Downlink, TrainingMetrics, Upload
from fedml_dapper.operations import AuditLog
from fedml_dapper.operations.authority import Authority
from fedml_dapper.operations.credentials import CredentialFiles
from fedml_dapper.platform.device_rounds import DevicePhase, DeviceRounds
from fedml_dapper.process.rss import peak_bytes, resident_bytes
from fedml_dapper.secure_grpc import AnyMessage, CallServer, Message
from fedml_dapper.secure_grpc.endpoint import CALL, CALL_SECONDS, SERVICE, SILO_OPTIONS
from fedml_dapper.secure_grpc.parcel import MIB, Numbering, Parcel, read_envelope, read_payload

ROOT = Path(__file__).parents[1]
PORT = 20871
MAX_FAILURES = 3
"""Calls in a row that fail before a stub takes the server for gone."""
EXPERIMENT: dict[str, Any] = {
    "common_args": {"training_type": "cross_device", "random_seed": 1},
    "data_args": {"dataset": "folder", "partition": "own", "classes": ["a", "b", "c", "d"], "image_size": 32},
    "model_args": {"model": "resnet10", "width": 8, "norm": "standardised"},
    "train_args": {"epochs": 1, "batch_size": 8, "max_grad_norm": 2},
    "device_args": {"threads": 1, "using_gpu": False},
    "dapper_args": {"method": "dapperfl_slim", "levels": {"ratios": [0.0, 0.4, 0.8]}, "round_timeout_s": 120},
}


@click.command()
@click.option("--registered", default=10_000, show_default=True, help="Devices that have ever called.")
@click.option("--connected", default=1_000, show_default=True, help="Devices that keep calling.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--per-round", default=100, show_default=True)
@click.option("--come-back", default=10.0, show_default=True, help="Seconds between two calls of a device.")
@json_option
def main(registered: int, connected: int, rounds: int, per_round: int, come_back: float, as_json: bool) -> None:
    """Run rounds of stub devices, which answer at once with the weights that they were sent."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = _written(folder, registered, rounds, per_round, come_back)
        _certify(folder / "certs", connected)
        context = multiprocessing.get_context("spawn")
        told: multiprocessing.Queue[dict[str, float]] = context.Queue()
        server = context.Process(target=_serve, args=(file, registered, connected, told))
        server.start()
        before = told.get()
        asyncio.run(_call_all(file, connected, come_back))
        after = told.get()
        server.join()
    rows: list[dict[str, Figure]] = [
        {"what": "memory of the server, nobody registered (MB)", "value": before["resident"] / 1e6},
        {"what": f"memory, {registered} registered (MB)", "value": before["registered"] / 1e6},
        {"what": f"peak of memory in {rounds} rounds (MB)", "value": after["peak"] / 1e6},
        {"what": "threads of the server in a round", "value": after["threads"]},
        {"what": "closing a round (s)", "value": after["close"]},
        {"what": "answering all calls of a round (s)", "value": after["answers"]},
        {"what": "calls a round", "value": after["calls"]},
    ]
    title = f"{connected} of {registered} devices call, {per_round} answer a round"
    Findings(title, 1, rows, are="figures of one run").show(as_json)


def _written(folder: Path, registered: int, rounds: int, per_round: int, come_back: float) -> Path:
    content = json.loads(json.dumps(EXPERIMENT))
    count = {"client_num_in_total": registered, "client_num_per_round": per_round, "comm_round": rounds}
    content["train_args"] |= count
    grpc_args = {"server_address": f"localhost:{PORT}", "certificates": str(folder / "certs")}
    content["comm_args"] = {"backend": "DAPPER_GRPC", "dapper_grpc": grpc_args}
    content["dapper_args"] |= {"check_in": {"come_back_s": come_back}, "min_clients_per_round": per_round}
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


# The server


def _serve(file: Path, registered: int, connected: int, told: multiprocessing.Queue[dict[str, float]]) -> None:
    """Run the server's part; put its figures into ``told`` when it listens, and at the end."""
    settings = load_settings([file])
    experiment = build_experiment(settings)
    server = Server(experiment)
    resident = float(resident_bytes())
    announcement = Announcement(domain="a domain", num_train=100)
    for client_id in range(connected, registered):  # they have called before, and are not there now
        server.join(client_id, announcement)
    journal = RunJournal(experiment, server, [])
    journal.started()
    codec = Codec(experiment.method.problem.layout, Agreement.of(experiment))
    rounds = DeviceRounds(experiment, server, codec, journal)
    config = settings.comm_args.dapper_grpc
    assert config is not None
    figures = asyncio.run(_rounds_of(config, registered, rounds, told, resident))
    told.put(figures)


async def _rounds_of(
    config: SecureGrpcConfig,
    registered: int,
    rounds: DeviceRounds,
    told: multiprocessing.Queue[dict[str, float]],
    resident: float,
) -> dict[str, float]:
    seconds: list[float] = []
    closing: list[float] = []

    def timed(rank: int, message: AnyMessage) -> AnyMessage:
        begun = time.perf_counter()
        answer = rounds.answer(rank, message)
        seconds.append(time.perf_counter() - begun)
        return answer

    calls = CallServer(config, CredentialFiles(config, 0), registered, timed, AuditLog(None))
    await calls.start()
    told.put({"resident": resident, "registered": float(resident_bytes())})
    threads = 0
    while rounds.phase is not DevicePhase.OVER:
        await asyncio.sleep(0.05)
        threads = max(threads, len(list(Path("/proc/self/task").iterdir())))
        if rounds.begin_closing():
            begun = time.perf_counter()
            await asyncio.to_thread(rounds.close)
            closing.append(time.perf_counter() - begun)
    while not rounds.all_told():
        await asyncio.sleep(0.05)
    await calls.stop()
    return {
        "peak": float(peak_bytes()),
        "threads": float(threads),
        "close": median(closing),
        "answers": sum(seconds) / len(closing),
        "calls": len(seconds) / len(closing),
    }


# The devices


async def _call_all(file: Path, connected: int, come_back: float) -> None:
    settings = load_settings([file])
    experiment = build_experiment(settings)
    codec = Codec(experiment.method.problem.layout, Agreement.of(experiment))
    config = settings.comm_args.dapper_grpc
    assert config is not None
    await asyncio.gather(*(_device(rank, config, codec, come_back) for rank in range(1, connected + 1)))


async def _device(rank: int, config: SecureGrpcConfig, codec: Codec, come_back: float) -> None:
    """Call until the run is over, or the server is gone; a task is answered with the weights that came with it."""
    await asyncio.sleep(come_back * (rank % 97) / 97)  # not all at the same moment
    numbering = Numbering(config.max_message_mb * MIB)
    failures = 0
    while failures < MAX_FAILURES:
        try:
            answer = await _said(rank, config, numbering, _status(rank))
            if answer.get_type() == say.FINISH:
                return
            if answer.get_type() == say.SYNC_MODEL:
                await _said(rank, config, numbering, _report(rank, answer, codec))
            failures = 0
        except grpc.aio.AioRpcError:
            failures += 1
        await asyncio.sleep(come_back)


def _status(rank: int) -> AnyMessage:
    status = Message(say.CLIENT_STATUS, rank, 0)
    status.add_params(say.STATUS, say.ONLINE)
    status.add_params(say.HOLDS, Announcement(domain="a domain", num_train=100).as_text())
    introduce(status)
    return status


def _report(rank: int, task: AnyMessage, codec: Codec) -> AnyMessage:
    downlink, _ = codec.decode_downlink(task.get(say.MODEL), "a stub")
    assert isinstance(downlink, Downlink)
    metrics = TrainingMetrics(loss=1.0, steps=13, seconds=0.1)
    upload = Upload(downlink.round, rank - 1, 100, dict(downlink.weights), metrics, downlink.plan)
    report = Message(say.SEND_UPLOAD, rank, 0)
    report.add_params(say.MODEL, codec.encode(upload))
    report.add_params(say.TICKET, task.get(say.TICKET))
    return report


async def _said(rank: int, config: SecureGrpcConfig, numbering: Numbering, message: AnyMessage) -> AnyMessage:
    folder = config.certificates
    tls = grpc.ssl_channel_credentials(
        *((folder / name).read_bytes() for name in ("ca.pem", f"silo-{rank}.key", f"silo-{rank}.pem"))
    )
    async with grpc.aio.secure_channel(config.server_address, tls, options=SILO_OPTIONS) as channel:
        frames = iter(list(numbering.parcel(message).frames()))
        call = channel.stream_stream(f"/{SERVICE}/{CALL}")(frames, timeout=CALL_SECONDS)
        frames = iter([frame async for frame in call])
    envelope = read_envelope(frames, config.max_message_mb * MIB)
    return Parcel(envelope, read_payload(frames, envelope)).message()


def _certify(folder: Path, count: int) -> None:
    """Make an authority and the server's certificate, and those of so many devices."""
    subprocess.run(["bash", ROOT / "run" / "make_certs.sh", folder, "0", "localhost"], check=True, capture_output=True)
    authority = Authority(folder)
    for rank in range(1, count + 1):
        key = ec.generate_private_key(ec.SECP256R1())
        (folder / f"silo-{rank}.pem").write_bytes(authority.certify(f"silo-{rank}", key.public_key()))
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / f"silo-{rank}.key").write_bytes(pem)


if __name__ == "__main__":
    main()
