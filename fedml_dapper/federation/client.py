"""The clients' side of a round, for however many clients this process serves."""

from __future__ import annotations

from collections.abc import Callable

from fedml_dapper.datasets import ClientData
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.methods import ClientContext, Downlink, Memory, Upload

ClientStepListener = Callable[[int, int, int], None]
"""Called after each optimizer step with (client id, steps done, steps in all)."""


class ClientSide:
    """Runs local updates and keeps each client's memory between rounds, by client id."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self.memories: dict[int, Memory] = {}
        self.on_step: ClientStepListener = lambda client_id, done, total: None

    def update(self, downlink: Downlink, data: ClientData) -> Upload:
        """One client's local round on ``data``."""
        client_id = downlink.client_id
        context = ClientContext(
            profile=self._experiment.profiles[client_id],
            data=data,
            memory=self.memories.setdefault(client_id, Memory()),
            device=self._experiment.device,
            on_step=lambda done, total: self.on_step(client_id, done, total),
        )
        return self._experiment.method.local_update(context, downlink)
