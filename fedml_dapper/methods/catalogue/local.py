"""Stand-alone training, the baseline without a federation.

Each client trains a model of its own from the common initial one; nothing travels. It trains E epochs in every round it
takes part in, T E in a run of T rounds, the budget of the methods it is compared with. As with them the optimiser
starts anew every round; ``keep_momentum`` makes a client's rounds one uninterrupted run of it.
"""

from __future__ import annotations

from functools import cached_property

from torch import Tensor

from fedml_dapper.methods.contract import ClientContext, Downlink, LocalTraining, Method, MethodParams, Upload


class LocalParams(MethodParams):
    """Settings of stand-alone training."""

    keep_momentum: bool = False
    """Whether momentum, or whatever the optimizer remembers, goes on from one round to the next."""


class Local(Method[LocalParams]):
    """Training of every client alone: every tensor is personal, so there is no global model."""

    name = "local"
    Params = LocalParams
    has_global_model = False
    serves_newcomers = False
    cost_note = "every client trains the full model; nothing is sent either way."

    @cached_property
    def personal(self) -> frozenset[str]:
        return frozenset(self.problem.backbone.state_dict())

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """E epochs, from where the client's last round ended."""
        model = self.load(client, downlink)
        epochs = self.epochs(client.profile)
        training = LocalTraining(client, downlink.round, self.problem.training, epochs)
        optimizer = training.optimizer(model)
        parameters = dict(model.named_parameters())
        for name, tensor in client.memory.recall("optimizer").items():
            owner, _, key = name.rpartition("/")
            parameter = parameters[owner]
            device = parameter.device if tensor.shape == parameter.shape else tensor.device
            optimizer.state[parameter][key] = tensor.to(device, copy=True)
        training.epoch(model, optimizer, self.objective(client, downlink), times=epochs)
        if self.params.keep_momentum:
            state = {
                f"{name}/{key}": value
                for name, parameter in parameters.items()
                for key, value in optimizer.state[parameter].items()
                if isinstance(value, Tensor)
            }
            client.memory.keep("optimizer", state)
        return self.upload(client, downlink, model, training)
