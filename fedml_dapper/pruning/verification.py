"""Trials of slim networks against the dense one with its dropped channels silenced, on random weights and inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod, sqrt
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from fedml_dapper.errors import ConfigError
from fedml_dapper.inputs import Inputs, expanded, moved, tensors_of, with_numbers
from fedml_dapper.models.adapters import AdaptedLinear
from fedml_dapper.models.adopt import bare
from fedml_dapper.models.compiled import uncompiled
from fedml_dapper.models.copying import with_same_tensors
from fedml_dapper.models.passing import arguments
from fedml_dapper.models.running import first_line, running, undisturbed
from fedml_dapper.models.standardised import standardised, standardised_conv2d
from fedml_dapper.models.substitution import run_with
from fedml_dapper.process.profiling import part
from fedml_dapper.pruning.draws import Draws
from fedml_dapper.pruning.layout import ChannelLayout, Widths
from fedml_dapper.pruning.plan import PruningPlan
from fedml_dapper.pruning.slim import KeptIndices, slim_model

TOLERANCE = 1e-4
"""Largest difference between outputs, relative to the largest of them."""
TOLERANCE_IN_TRAINING = 1e-3
"""Largest relative difference in training, where norms divide by the difference of two inputs."""
_SEED = 17
_BATCH = 2
"""Batch size in training: norms by the batch's statistics need more than one input."""
_MANY = 8
"""Batch size where layers have not run on one input: some networks choose layers by the batch."""
_EPSILON = 0.1
"""Epsilon of norms by the batch's statistics. Two inputs may differ by so little that a small one would enlarge
rounding errors."""
_POOL = 65_537
"""Count of random numbers that are repeated to fill all weights: a prime, so that no two channels are alike."""


@part("pruning")
def verify_layout(
    model: nn.Module, layout: ChannelLayout, widths_by_ratio: Mapping[float, Widths], example: Inputs
) -> None:
    """Compare the slim network of every pruning ratio with the dense one whose dropped channels are silenced.

    Raises:
        ConfigError: A slim network fails or its outputs differ; the message names the first layer at fault.
    """
    trial = Trial(model, example)
    tried: list[Widths] = [{}]
    for ratio, widths in widths_by_ratio.items():
        if widths in tried:
            continue
        tried.append(widths)
        with uncompiled(bare(model)):
            fault = trial.fault(layout, widths, training=False)  # groups were tried in training when they were found
        if fault is not None:
            raise ConfigError(
                f"model: pruned by ratio {ratio:g} {fault}; leave that layer's channels whole, or write the network"
                " without sizes of its own"
            )


@dataclass(frozen=True)
class Fault:
    """What is wrong with a slim network, and the first layer where it shows."""

    layer: str
    what: str

    def __str__(self) -> str:
        return f"{self.what} in `{self.layer}`" if self.layer else self.what


@dataclass(frozen=True)
class _Mode:
    """How a network runs in a trial."""

    training: bool
    quantile: float
    """Quantile of everything that it draws (:class:`Draws`)."""

    def __str__(self) -> str:
        return " while training" if self.training else ""


_EVALUATION = _Mode(training=False, quantile=0.97)
_KEEPING = _Mode(training=True, quantile=0.97)
_DROPPING = _Mode(training=True, quantile=0.03)
"""Training in which dropout and stochastic depth keep everything, and in which they drop all they can. A path that is
there by chance is there in one of the two."""


class Trial:
    """Comparison of slim networks with silenced dense ones, on the same random weights and inputs.

    Networks run in evaluation and in training, as some have layers or views in one of the two alone. Weights are
    random, since networks start with zeros in places (last norms of a block, predictors), which would hide faults
    before them. They run on the CPU, in full float32: on a GPU torch multiplies in TF32, of three digits.
    """

    def __init__(self, model: nn.Module, example: Inputs, many: bool = False) -> None:
        generator = torch.Generator().manual_seed(_SEED)
        self.ran = set[str]()
        """Layers that have run so far."""
        size = _MANY if many else _BATCH
        # not the backbone around it: a user's layer may have the name of one of its methods, and calls would find it
        module = bare(model)
        self._is_own = module is not model
        """Whether it is a user's module, which may store something for its next run."""
        self._dense = _randomised(module, generator).cpu()
        self._input = moved(example, "cpu")
        self._batch = expanded(self._input, size) if tensors_of(example)[0].shape[:1] == (1,) else self._input
        self._input = _random(self._input, generator)
        self._batch = _random(self._batch, generator)

    def fault(self, layout: ChannelLayout, widths: Widths, training: bool = True) -> Fault | None:
        """Return what is wrong with the network of these widths, or None.

        Channels are chosen at random: a fault shows for any of them. The network runs in evaluation and, with
        ``training``, in training too.
        """
        generator = torch.Generator().manual_seed(_SEED)
        kept = {
            name: torch.randperm(layout.groups[name].channels, generator=generator)[:width].sort().values
            for name, width in widths.items()
        }
        plan = PruningPlan(kept)
        try:
            slim = _Run(slim_model(self._dense, layout, plan))
            silencing = _Silencing(self._dense, layout, plan)
        except Exception as error:  # noqa: BLE001  # whatever the user's layers raise, or tensors of other sizes
            return Fault("", f"it cannot be made ({first_line(error)})")
        told = list(self._slim_outputs(slim, training))
        self.ran |= slim.ran
        del slim  # before the dense network runs: a device has room for one of them
        # A copy, so that nothing stays of what a network stores while it runs
        dense = _Run(with_same_tensors(self._dense) if self._is_own else self._dense, silencing.tensors)
        try:
            with silencing as norms:
                return self._first_fault(told, dense, norms, layout, plan)
        finally:
            self.ran |= dense.ran

    def _slim_outputs(self, slim: _Run, training: bool) -> Iterator[tuple[_Mode, list[Tensor] | Fault]]:
        """Yield what a slim network puts out in each mode; the last may be that it fails there."""
        modes = [_EVALUATION, *([_KEEPING, _DROPPING] if training else [])]
        for mode in modes:
            if mode is _DROPPING and not slim.draws:
                return
            try:
                outputs = slim.outputs(self._example(mode), mode)
            except Exception as error:  # noqa: BLE001  # whatever the user's network raises
                yield mode, Fault(slim.failed, f"it fails{mode} ({first_line(error)})")
                return
            yield mode, outputs

    def _first_fault(
        self,
        told: Sequence[tuple[_Mode, list[Tensor] | Fault]],
        dense: _Run,
        norms: _Norms,
        layout: ChannelLayout,
        plan: PruningPlan,
    ) -> Fault | None:
        """Return how outputs differ in the first mode in which they do, or None."""
        for mode, slim_outputs in told:
            if isinstance(slim_outputs, Fault):
                return slim_outputs
            try:
                with norms:
                    outputs = dense.outputs(self._example(mode), mode)
            except Exception as error:  # noqa: BLE001  # whatever the user's network raises
                return Fault(dense.failed, f"the dense network fails{mode} ({first_line(error)})")
            tolerance = TOLERANCE_IN_TRAINING if mode.training else TOLERANCE
            if len(slim_outputs) != len(outputs) or not all(
                _agree(slim_output, output, tolerance)
                for slim_output, output in zip(slim_outputs, outputs, strict=True)
            ):
                where = self._where(dense, norms, layout, plan, mode, tolerance)
                return Fault(where, f"its outputs{mode} are not the dense network's")
        return None

    def _where(
        self, dense: _Run, norms: _Norms, layout: ChannelLayout, plan: PruningPlan, mode: _Mode, tolerance: float
    ) -> str:
        """Return the first layer whose outputs differ; the dense network is silenced."""
        slim = _Run(slim_model(self._dense, layout, plan))
        with slim.watched():
            slim.outputs(self._example(mode), mode)
        with norms, dense.watched():
            dense.outputs(self._example(mode), mode)
        self.ran |= slim.ran
        return _first_difference(slim, dense, layout, KeptIndices(plan), tolerance)

    def _example(self, mode: _Mode) -> Inputs:
        return self._batch if mode.training else self._input


@dataclass
class _Run:
    """One side of a trial: a network with tensors in place of its own, and results of its runs."""

    model: nn.Module
    tensors: dict[str, Tensor] = field(default_factory=dict)
    failed: str = ""
    layer_outputs: dict[str, Tensor] = field(default_factory=dict)
    draws: int = 0
    """Number of random draws in the last run."""
    ran: set[str] = field(default_factory=set)
    """Layers that have run."""

    def outputs(self, example: Inputs, mode: _Mode) -> list[Tensor]:
        stack: list[str] = []
        self.model.train(mode.training)
        buffers = {name: self.tensors.get(name, buffer) for name, buffer in self.model.named_buffers()}
        copies = {name: buffer.clone() for name, buffer in buffers.items()}  # as training changes them
        given, named = arguments(self.model, example)
        with undisturbed(example), running(self.model, stack) as ran, Draws(mode.quantile) as draws:
            try:
                output = run_with(self.model, {**self.tensors, **copies}, given, named)
            except Exception:
                self.failed = stack[-1] if stack else ""
                raise
            finally:
                self.ran |= ran
        self.draws = draws.count
        return [each for each in tree_leaves(output) if isinstance(each, Tensor)]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note what each of the innermost layers puts out at its first call."""

        def note(name: str) -> Callable[..., None]:
            def hook(_layer: object, _inputs: object, output: Any) -> None:
                first = next((each for each in tree_leaves(output) if isinstance(each, Tensor)), None)
                if first is not None:
                    self.layer_outputs.setdefault(name, first.detach().clone())

            return hook

        layers = ((name, layer) for name, layer in self.model.named_modules() if not list(layer.children()))
        hooks = [layer.register_forward_hook(note(name)) for name, layer in layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _random(inputs: Inputs, generator: torch.Generator) -> Inputs:
    """Draw the numbers of ``inputs`` anew; counts, names and masks stay."""
    return with_numbers(inputs, lambda part: torch.randn(part.shape, generator=generator).to(part))


def _agree(slim: Tensor, dense: Tensor, tolerance: float) -> bool:
    if slim.shape != dense.shape:
        return False
    if not (slim.is_floating_point() or slim.is_complex()):
        return True
    return bool((slim - dense).abs().max() <= tolerance * dense.abs().max()) if slim.numel() else True


def _first_difference(slim: _Run, dense: _Run, layout: ChannelLayout, kept: KeptIndices, tolerance: float) -> str:
    """The first layer whose outputs differ, among those that can be compared."""
    for name, output in slim.layer_outputs.items():
        expected = dense.layer_outputs.get(name)
        if expected is None:
            return name
        weight = layout.tensors.get(f"{name}.weight")
        entries = {} if weight is None else kept.of(weight)
        for dim, size in enumerate(output.shape):
            if weight is not None and 0 in entries and expected.shape[dim] == weight.shape[0] != size:
                expected = expected.index_select(dim, entries[0])
        if output.shape == expected.shape and not _agree(output, expected, tolerance):
            return name
    return ""


class _Silencing:
    """A context in which every dropped entry of a dense network's tensors is zero; norms in it go over what is kept.

    Parameters are silenced in place, and hold at the end what they held before: a device tries out the whole network
    of which it trains a part, and would have to hold it once more.
    """

    def __init__(self, model: nn.Module, layout: ChannelLayout, plan: PruningPlan) -> None:
        kept = KeptIndices(plan)
        self.tensors: dict[str, Tensor] = {}
        """Buffers, silenced, to be put in place of the network's own, by name."""
        self._norms = _Norms()
        self._dropped: list[tuple[Tensor, int, Tensor]] = []
        """Parameter, axis and dropped entries of every cut."""
        self._before: list[Tensor] = []
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):  # a shared tensor has its first name
            cuts = kept.of(layout.tensors[name]) if name in layout.tensors else {}
            if not cuts:
                continue
            dropped = [(dim, _others(entries, tensor.shape[dim])) for dim, entries in cuts.items()]
            if isinstance(tensor, nn.Parameter) and tensor.is_floating_point():  # one that was drawn for the trial
                self._norms.cuts[id(tensor)] = cuts
                self._dropped += [(tensor.detach(), dim, entries) for dim, entries in dropped]
                continue
            silent = tensor.detach()
            for dim, entries in dropped:
                silent = silent.index_fill(dim, entries, 0)
            self.tensors[name] = silent
            self._norms.cuts[id(silent)] = cuts

    def __enter__(self) -> _Norms:
        for tensor, dim, entries in self._dropped:
            self._before.append(tensor.index_select(dim, entries))
            tensor.index_fill_(dim, entries, 0)
        return self._norms

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for tensor, dim, entries in reversed(self._dropped):
            tensor.index_copy_(dim, entries, self._before.pop())


def _others(entries: Tensor, size: int) -> Tensor:
    dropped = torch.ones(size, dtype=torch.bool)
    dropped[entries] = False
    return dropped.nonzero().flatten()


class _Norms(TorchFunctionMode):
    """A mode in which layer norms and standardised filters ignore dropped channels.

    They normalise over kept channels alone, and give 0 for the others.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cuts: dict[int, Mapping[int, Tensor]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is standardised_conv2d:
            return self._convolved(*args, **kwargs)
        if func not in (F.layer_norm, F.rms_norm):
            return func(*args, **kwargs)
        names = (
            ("input", "normalized_shape", "weight", "bias", "eps")
            if func is F.layer_norm
            else ("input", "normalized_shape", "weight", "eps")
        )
        values = {**dict(zip(names, args, strict=False)), **kwargs}
        cuts = self.cuts.get(id(values.get("weight")))
        if not cuts:
            return func(*args, **kwargs)
        x = values["input"]
        first = values["input"].dim() - len(values["normalized_shape"])
        small = _selected(x, {first + dim: kept for dim, kept in cuts.items()})
        for name in ("weight", "bias"):
            if values.get(name) is not None:
                values[name] = _selected(values[name], cuts)
        values |= {"input": small, "normalized_shape": small.shape[first:]}
        result = func(**values)
        for dim, kept in cuts.items():
            shape = list(result.shape)
            shape[first + dim] = x.shape[first + dim]
            result = result.new_zeros(shape).index_copy_(first + dim, kept, result)
        return result

    def _convolved(
        self, input: Tensor, weight: Tensor, gain: Tensor, bias: Tensor | None, stride: Any, padding: Any
    ) -> Tensor:
        cuts = self.cuts.get(id(weight), {})
        filters = standardised(_selected(weight, cuts), _selected(gain, {0: cuts[0]} if 0 in cuts else {}))
        for dim, kept in cuts.items():
            shape = list(filters.shape)
            shape[dim] = weight.shape[dim]
            filters = filters.new_zeros(shape).index_copy_(dim, kept, filters)
        return F.conv2d(input, filters, bias, stride, padding)


def _selected(tensor: Tensor, entries: Mapping[int, Tensor]) -> Tensor:
    for dim, kept in entries.items():
        tensor = tensor.index_select(dim, kept)
    return tensor


@torch.no_grad()
def _randomised(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy with weights that about keep the size of activations, and statistics that differ between channels."""
    pool = sqrt(3) * (2 * torch.rand(_POOL, generator=generator) - 1)  # of variance 1
    replaced: dict[int, object] = {}
    for parameter in model.parameters():
        if parameter.is_floating_point():
            noise = pool.repeat(1 + parameter.numel() // _POOL)[: parameter.numel()].view(parameter.shape).to(parameter)
            # He initialisation; the pool is shifted each time, so that no two tensors are alike
            size = sqrt(2 / max(1, prod(parameter.shape[1:])))
            values = size * noise if parameter.dim() > 1 else parameter + 0.2 * noise
            replaced[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
            pool = pool.roll(1)
    random = copy.deepcopy(model, replaced)
    for layer in random.modules():
        if isinstance(layer, _NormBase) and layer.running_mean is not None and layer.running_var is not None:
            layer.running_mean.copy_(0.2 * torch.randn(layer.running_mean.shape, generator=generator))
            layer.running_var.copy_(0.5 + torch.rand(layer.running_var.shape, generator=generator))
            layer.eps = _EPSILON
        if isinstance(layer, AdaptedLinear):  # beside its base, not above it: attention would enlarge rounding errors
            layer.lora_b.div_(2 * layer.scaling)
    return random
