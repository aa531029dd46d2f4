"""Flower: its simulation by Ray, with the strategy that averages the state dicts of all clients."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.work import Diary, Work, given, network_of_process


def clients_app(work: Work, folder: Path) -> ClientApp:
    """What Ray's processes run for a client."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]  # flwr is not in the environment that is checked
    def train(message: Message, context: Context) -> Message:
        network = network_of_process(work, folder)
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        work.train(network, int(context.node_config["partition-id"]))
        arrays = ArrayRecord({name: tensor.cpu() for name, tensor in network.state_dict().items()})
        metrics = MetricRecord({"num-examples": work.images})
        return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def server_app(work: Work, diary: Diary) -> ServerApp:
    """The server, which takes part in this process."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]  # as above
    def main(grid: Grid, _context: Context) -> None:
        network = work.network()

        def noting(server_round: int, _arrays: ArrayRecord) -> None:
            if server_round > 0:  # the first call comes before the first round
                diary.round_ended()

        everyone = FedAvg(fraction_evaluate=0.0, min_train_nodes=work.clients, min_available_nodes=work.clients)
        first = ArrayRecord(network.state_dict())
        result = everyone.start(grid, first, num_rounds=work.rounds, evaluate_fn=noting)
        network.load_state_dict(result.arrays.to_torch_state_dict())
        diary.keep(network)

    return app


def main() -> None:
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    work, folder = given()
    on_gpu = 1 / work.processes if work.device == "cuda" else 0.0
    run_simulation(
        server_app(work, Diary(folder)),
        clients_app(work, folder),
        num_supernodes=work.clients,
        backend_config={
            "init_args": {"num_cpus": work.processes, "_temp_dir": str(folder / "ray")},
            "client_resources": {"num_cpus": 1, "num_gpus": on_gpu},
        },
    )


if __name__ == "__main__":
    main()
