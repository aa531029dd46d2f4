"""What server and clients remember between rounds."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedml_dapper.pruning import Tensors, Verdict

Value = int | float | str | bool | None | list["Value"] | dict[str, "Value"]
"""Anything JSON can hold."""


@dataclass
class Memory:
    """A method's own memory on one side: tensors and plain values by name, ready to be checkpointed."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)

    def keep(self, group: str, tensors: Tensors) -> None:
        """Remember copies of ``tensors`` as ``group``, in place of what was remembered as that before."""
        for name in [name for name in self.tensors if name.startswith(f"{group}/")]:
            del self.tensors[name]
        for name, tensor in tensors.items():
            self.tensors[f"{group}/{name}"] = tensor.detach().clone()

    def recall(self, group: str) -> dict[str, Tensor]:
        """What was last kept as ``group``; empty if nothing was."""
        prefix = f"{group}/"
        return {name[len(prefix) :]: tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}

    def snapshot(self) -> Memory:
        """All of it as it is now. Tensors are shared: they are replaced, never changed, by what remembers them."""
        return Memory(dict(self.tensors), copy.deepcopy(self.values))


@dataclass(frozen=True)
class ClientProfile:
    """What the server knows of a client: capability level (1 is strongest), the pruning ratio it allows, its domain."""

    client_id: int
    domain: str
    level: int
    ratio: float
    num_samples: int


@dataclass
class ServerState:
    """The federation's state: completed rounds, the global model, and the method's memory."""

    round: int
    weights: dict[str, Tensor]
    profiles: tuple[ClientProfile, ...]
    memory: Memory = field(default_factory=Memory)
    clients: tuple[int, ...] = ()
    """Who trains in the open round, ascending; nobody between two rounds."""
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)
    """On the uploads of the round just closed, by client id, where ``dapper_args.defence`` judges them."""
