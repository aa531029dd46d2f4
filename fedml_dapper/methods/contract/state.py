"""State of server and clients, and what they remember between rounds."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedml_dapper.models.in_bulk import copies_of
from fedml_dapper.pruning import Tensors, Verdict

Value = int | float | str | bool | None | list["Value"] | dict[str, "Value"]
"""A value that JSON can hold."""


@dataclass
class Memory:
    """A method's own memory on one side: tensors and plain values by name, ready to be checkpointed."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)

    def keep(self, group: str, tensors: Tensors) -> None:
        """Remember copies of ``tensors`` as ``group``, in place of what was remembered as that before."""
        for name in [name for name in self.tensors if name.startswith(f"{group}/")]:
            del self.tensors[name]
        self.tensors.update(zip((f"{group}/{name}" for name in tensors), copies_of(tensors.values()), strict=True))

    def recall(self, group: str) -> dict[str, Tensor]:
        """Tensors last kept as ``group``, by name; empty if nothing was."""
        prefix = f"{group}/"
        return {name[len(prefix) :]: tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}

    def snapshot(self) -> Memory:
        """A copy of the memory as it is now. Tensors are shared: whoever remembers them replaces, never changes
        them."""
        return Memory(dict(self.tensors), copy.deepcopy(self.values))


@dataclass(frozen=True)
class ClientProfile:
    """Profile of a client at the server: capability level (1 is strongest), the pruning ratio it allows, its domain."""

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
    """Ids of the clients that train in the open round, ascending; empty between two rounds."""
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)
    """Verdicts on the uploads of the round just closed, by client id, where ``dapper_args.defence`` judges them."""
