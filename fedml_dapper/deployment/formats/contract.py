"""Base class of file formats: how a model is written, and how the format's own runtime reads and runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from fedml_dapper.deployment.deployed import Deployed, InPositions
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.run_folder.model_file import ModelOrigin
from fedml_dapper.inputs import Inputs, mapped, repeated, tensors_of
from fedml_dapper.models import Backbone
from fedml_dapper.models.backward import initialise_autograd
from fedml_dapper.models.running import first_line

TAKES_ONE_SIZE = (
    "takes the number of inputs for one that never changes, so that no format can hold it for others: in its forward,"
    " write x.shape[0] for len(x) and int(x.shape[0]), and views with -1 or x.shape[0] in front"
)
"""What errors say of a network whose graph holds for one batch size alone."""
_FIXED = "to be a constant"
"""Part of torch's error for such a network."""
Runtime = Callable[[Inputs], Tensor]
"""A function that runs a model from a file: inputs (N, ...) on the CPU to outputs (N, ...)."""


@dataclass(frozen=True, eq=False)
class Product:
    """A model to be written."""

    model: Backbone
    """The model, with the network's own names."""
    deployed: Deployed
    """Model in the form that devices run."""
    origin: ModelOrigin
    round: int
    label: str
    """Name of the network in errors."""
    input_names: tuple[str, ...]
    """Names under which the file takes an input's tensors, in order."""
    output_name: str
    kept: Mapping[str, Tensor]
    """Kept channels of a slim model's groups where it matters which they are (:func:`filled_channels`)."""

    @property
    def example(self) -> Inputs:
        """A batch of two inputs of zeros; tracers would take a batch of one for a fixed size."""
        example = self.origin.example
        if self.origin.preprocessing is not None:
            example = mapped(example, lambda part: part.to(torch.uint8))
        return repeated(example, 2)

    @property
    def callable(self) -> nn.Module:
        """Module to trace: one of a single tensor, or of several in positions."""
        return self.deployed if isinstance(self.example, Tensor) else InPositions(self.deployed, self.example)

    def sizes(self, of_batch: object) -> tuple[object, ...]:
        """Return, for each argument of :attr:`callable`, the sizes that are free: the batch's."""
        free = tuple({0: of_batch} for _ in self.input_names)
        return free if isinstance(self.example, Tensor) else (free,)

    @cached_property
    def program(self) -> ExportedProgram:
        """Exported program for batches of any size.

        Raises:
            ConfigError: ``torch.export`` cannot follow the network.
        """
        initialise_autograd()
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
        _remove_source_lines(program)
        return program


def _remove_source_lines(program: ExportedProgram) -> None:
    """Remove each node's source lines, which would bring paths of this machine into the file."""
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)


def runtime_of(module: Callable[..., Tensor]) -> Runtime:
    """Return a runtime that calls ``module`` with an input's tensors, in order."""

    @torch.no_grad()
    def run(inputs: Inputs) -> Tensor:
        return module(*tensors_of(inputs))

    return run


class Format(ABC):
    """A file format for models."""

    name: ClassVar[str]
    file_name: ClassVar[str]

    def check_installed(self) -> None:  # noqa: B027  # most formats need nothing more
        """Check that this machine has what the format needs.

        Raises:
            ConfigError: A package is missing.
        """

    @abstractmethod
    def write(self, product: Product, path: Path) -> None:
        """Write ``product`` to ``path``.

        Raises:
            ConfigError: The format cannot hold it.
        """

    @abstractmethod
    def read(self, path: Path, *, trust_code: bool = False) -> Runtime:
        """Read the model in ``path``.

        Args:
            path: The file.
            trust_code: Whether to run it though it is or names code that this user neither ran nor wrote here.

        Raises:
            DataError: The file is damaged.
            ConfigError: It is not to be run without ``trust_code``.
        """

    def note_own(self, path: Path) -> None:  # noqa: B027  # most files are data
        """Note that this user has written ``path``, so that it is read without ``trust_code``."""
