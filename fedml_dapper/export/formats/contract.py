"""What a file format is: how a model is written in it, and read and run by the format's own runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from fedml_dapper.errors import ConfigError
from fedml_dapper.export.deployed import Deployed, InPositions
from fedml_dapper.federation.model_file import ModelOrigin
from fedml_dapper.inputs import Inputs, mapped, repeated, tensors_of
from fedml_dapper.models import Backbone
from fedml_dapper.models.backward import count_devices
from fedml_dapper.models.running import first_line

TAKES_ONE_SIZE = (
    "takes the number of inputs for one that never changes, so that no format can hold it for others: in its forward,"
    " write x.shape[0] for len(x) and int(x.shape[0]), and views with -1 or x.shape[0] in front"
)
"""What to say of a network whose graph is one of so many inputs alone."""
_FIXED = "to be a constant"
"""So torch says it."""
Runtime = Callable[[Inputs], Tensor]
"""A model out of a file: inputs (N, ...) on the CPU to its outputs (N, ...)."""


@dataclass(frozen=True, eq=False)
class Product:
    """A model that is to be written."""

    model: Backbone
    """With its own names."""
    deployed: Deployed
    """The same as devices run it."""
    origin: ModelOrigin
    round: int
    label: str
    """What errors call the network."""
    input_names: tuple[str, ...]
    """The names under which the file takes an input's tensors, in order."""
    output_name: str

    @property
    def example(self) -> Inputs:
        """A batch of two inputs, of zeros: a batch of one would be taken for the only size there is."""
        example = self.origin.example
        if self.origin.preprocessing is not None:
            example = mapped(example, lambda part: part.to(torch.uint8))
        return repeated(example, 2)

    @property
    def callable(self) -> nn.Module:
        """What is traced: the network of one tensor, or of several in positions."""
        return self.deployed if isinstance(self.example, Tensor) else InPositions(self.deployed, self.example)

    def sizes(self, of_batch: object) -> tuple[object, ...]:
        """For each argument of :attr:`callable` which of its sizes are free: the batch's."""
        free = tuple({0: of_batch} for _ in self.input_names)
        return free if isinstance(self.example, Tensor) else (free,)

    @cached_property
    def program(self) -> ExportedProgram:
        """Its graph, for batches of any size; raises :class:`ConfigError` where ``torch.export`` cannot follow it."""
        count_devices()
        try:
            given = tensors_of(self.example)
            program = torch.export.export(self.callable, given, dynamic_shapes=self.sizes(Dim("N", min=1)))
        except Exception as error:  # whatever the user's network makes it raise
            if _FIXED in str(error):
                raise ConfigError(f"--format: {self.label} {TAKES_ONE_SIZE}") from error
            raise ConfigError(
                f"--format: torch.export, which onnx and torch-export go by, cannot follow {self.label}:"
                f" {first_line(error)}; try --format torchscript"
            ) from error
        _forget_where_it_was_written(program)
        return program


def _forget_where_it_was_written(program: ExportedProgram) -> None:
    """Each of its nodes knows the source lines that it comes from, with the paths of this machine, and would take them
    into the file."""
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)


class Format(ABC):
    """A file format."""

    name: ClassVar[str]
    file_name: ClassVar[str]

    def check_installed(self) -> None:  # noqa: B027  # most need nothing more
        """Raises :class:`ConfigError` where this machine lacks what the format needs."""

    @abstractmethod
    def write(self, product: Product, path: Path) -> None:
        """Write ``product`` to ``path``; raises :class:`ConfigError` where the format cannot hold it."""

    @abstractmethod
    def read(self, path: Path) -> Runtime:
        """The model in ``path``; raises :class:`~fedml_dapper.errors.DataError` where it is damaged."""
