"""The networks whose training steps are timed: one of each pruning ratio, cut out of the same dense one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import click
import torch
from torch import Tensor

from benchmarks.step import training_step
from fedml_dapper.config import ModelArgs, Norm, Precision
from fedml_dapper.models import BACKBONES, Backbone, build_backbone, example_image
from fedml_dapper.pruning import ChannelLayout, footprint, plan_by_importance, slim_model, solve_widths, trace_layout

Command = TypeVar("Command", bound=Callable[..., object])


def network_options(command: Command) -> Command:
    """What a user says of :class:`Networks`."""
    for option in (
        click.option("--batch", default=64, show_default=True),
        click.option("--input", "input_size", default=32, show_default=True, help="Image side."),
        click.option("--norm", type=click.Choice(["batch", "standardised"]), default="batch", show_default=True),
        click.option("--width", type=int, help="Channels of the first layer; as published when absent."),
        click.option("--model", type=click.Choice(sorted(BACKBONES)), default="resnet18", show_default=True),
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class Networks:
    """Of ten classes, cut by parameters in the internal scope; with a batch of made-up images, channels last."""

    model: str
    width: int | None
    """Channels of the first layer; as published when None."""
    norm: Norm
    input_size: int
    batch: int
    device: str = "cpu"

    def __str__(self) -> str:
        width = "" if self.width is None else f" of width {self.width}"
        return f"{self.model}{width}, norm {self.norm}, batch {self.batch}, {self.input_size}x{self.input_size}"

    def slim(self, ratio: float) -> Backbone:
        weights, widths = self._dense.state_dict(), solve_widths(self._layout, ratio, "parameters")
        slim = slim_model(self._dense, self._layout, plan_by_importance(self._layout, weights, widths))
        return slim.to(self.device)

    def macs(self, ratio: float) -> int:
        """Of one image's forward pass."""
        return footprint(self._layout, solve_widths(self._layout, ratio, "parameters")).macs

    def step(self, network: Backbone, precision: Precision) -> Callable[[], None]:
        """A training step of such a network on the batch."""
        labels = torch.arange(self.batch, device=self.device) % 10
        return training_step(network, self._images, labels, precision)

    @cached_property
    def _dense(self) -> Backbone:
        args = ModelArgs(model=self.model, width=self.width, norm=self.norm)
        return build_backbone(args, 10, 1, example_image(self.input_size))

    @cached_property
    def _layout(self) -> ChannelLayout:
        return trace_layout(self._dense, example_image(self.input_size), "internal")

    @cached_property
    def _images(self) -> Tensor:
        images = torch.randn(self.batch, 3, self.input_size, self.input_size)
        return images.to(self.device, memory_format=torch.channels_last)
