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
from fedml_dapper.models.running import first_line

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
        _let_autograd_count_devices()
        try:
            given = tensors_of(self.example)
            program = torch.export.export(self.callable, given, dynamic_shapes=self.sizes(Dim("N", min=1)))
        except Exception as error:  # whatever the user's network makes it raise
            raise ConfigError(
                f"--format: torch.export, which onnx and torch-export go by, cannot follow {self.label}:"
                f" {first_line(error)}; try --format torchscript"
            ) from error
        _forget_where_it_was_written(program)
        return program


def _let_autograd_count_devices() -> None:
    """Torch's engine counts the devices that are there at its first backward pass. After ``torch.export`` there is one
    more, for which it would start threads, and then no fork of this process could train."""
    torch.ones((), requires_grad=True).backward()  # type: ignore[no-untyped-call]  # torch ships it untyped


def _forget_where_it_was_written(program: ExportedProgram) -> None:
    """Each of its nodes knows the source lines that it comes from, with the paths of this machine, and would take them
    into the file."""
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)


def runtime_of(module: Callable[..., Tensor]) -> Runtime:
    """Whatever ``module`` says of an input's tensors, in order."""

    @torch.no_grad()
    def run(inputs: Inputs) -> Tensor:
        return module(*tensors_of(inputs))

    return run


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
