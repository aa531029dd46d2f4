"""Recorded steps of a process: taken where a step has been met before, kept while there is room for them.

Clients of one level train networks of one shape by one objective, round after round: their steps have one fingerprint
(:func:`~fedml_dapper.capture.reading.read`). A step's tensors are copied into those of the recording before the first
of several steps, and back after the last. A step that cannot be recorded, or whose recording does something else, is
Python's, with a warning.
"""

from __future__ import annotations

import logging
import pickle
import random
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedml_dapper.capture.eager import EagerSteps, Taker, TrainingStep
from fedml_dapper.capture.reading import NotCapturableError, Reading, Unchanging, read
from fedml_dapper.capture.recorders import Recorder, Recording, bytes_of
from fedml_dapper.capture.static_step import StaticBatch, StaticStep
from fedml_dapper.datasets import Batch
from fedml_dapper.inputs import tensors_of

LOGGER = logging.getLogger(__name__)
PATIENCE = 4
"""Steps that Python takes before one is recorded, which costs about as much as ten of them."""
MOST_SHAPES = 256
"""Steps that are remembered, recorded or not."""
TOLERANCE = 0.02
"""Largest distance of a recording's result from Python's, as a share of how far the step went. Two runs of one step
in bfloat16 differ by up to a hundredth, where kernels add in another order."""


@dataclass
class _Known:
    """A step that was met, with its recordings by the shape of their batch."""

    constants: tuple[Unchanging, ...]
    """What is told by its identity, which lasts as long as it is held."""
    written: int
    """Number of tensors that the step writes: the first of those that were read."""
    steps: int = 0
    static: StaticStep | None = None
    recordings: dict[Hashable, tuple[StaticBatch, Recording]] = field(default_factory=dict)
    refused: bool = False
    bytes: int = 0
    """Memory of the recordings and their tensors."""


class Captures:
    """Steps that ``recorder`` records."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._known: OrderedDict[Hashable, _Known] = OrderedDict()
        """From the one that was met longest ago."""
        self._said: set[str] = set()

    @contextmanager
    def steps(self, step: TrainingStep) -> Iterator[Taker]:
        try:
            remember_from_the_start(step.optimizer)
            reading = read(step)
            self._check_devices(reading)
        except NotCapturableError as error:
            self._say(f"its step {error}")
            yield EagerSteps(step)
            return
        known = self._known.get(reading.fingerprint)
        if known is None:
            written = read((step.model, step.optimizer, step.total)).tensors
            known = self._known[reading.fingerprint] = _Known(reading.constants, len(written))
        self._known.move_to_end(reading.fingerprint)
        steps = _Steps(step, reading, known, self._recorder, self._say)
        try:
            yield steps
        finally:
            steps.hand_back()
            self._evict()
        if not known.recordings and not known.refused and _reads_another(step, reading):
            self._say("its step changes what it reads besides tensors, and so is another one each time")

    def _check_devices(self, reading: Reading) -> None:
        """Raise :class:`NotCapturableError` where a step reads from elsewhere, which a recording does once for all."""
        if any(tensor.device.type != self._recorder.device.type for tensor in reading.tensors):
            raise NotCapturableError("reads a tensor that is not on the GPU")

    def _evict(self) -> None:
        """Forget what was not met for longest, until the rest fits; what was met last always stays."""
        most = self._recorder.most_bytes
        held = sum(known.bytes for known in self._known.values())
        while len(self._known) > 1 and (held > most or len(self._known) > MOST_SHAPES):
            _, known = self._known.popitem(last=False)
            held -= known.bytes
            if known.recordings:
                self._say(f"more shapes than fit into {most / 2**30:.1f} GB are trained, so recordings make way")

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            LOGGER.warning("device_args.capture: training goes on step by step where %s", reason)


class _Steps:
    """One step after another, which stay in the recording's tensors from batch to batch."""

    def __init__(
        self, step: TrainingStep, reading: Reading, known: _Known, recorder: Recorder, say: Callable[[str], None]
    ) -> None:
        self._step = step
        self._reading = reading
        self._known = known
        self._recorder = recorder
        self._say = say
        self._written = reading.tensors[: known.written]
        self._is_away = False
        """Whether the recording's tensors hold the values, and the step's own are old."""

    def __call__(self, batch: Batch) -> None:
        recorded = self._known.recordings.get(shape_of(batch))
        if recorded is not None:
            self._replay(batch, *recorded)
            return
        self.hand_back()
        if self._known.refused or self._known.steps < PATIENCE:
            self._known.steps += 1
            self._step(batch)
            return
        self._record(batch)

    def hand_back(self) -> None:
        if self._is_away and self._known.static is not None:
            self._known.static.hand_back(self._written)
        self._is_away = False

    def _replay(self, batch: Batch, static_batch: StaticBatch, recording: Recording) -> None:
        assert self._known.static is not None
        if not self._is_away:
            self._known.static.fill(self._reading.tensors)
            self._known.static.set_rates(self._step.optimizer)
            self._is_away = True
        static_batch.fill(batch)
        recording.replay()

    def _record(self, batch: Batch) -> None:
        """Take the step in Python, and record it beside, if its recording comes to the same."""
        before = [tensor.detach().clone() for tensor in self._reading.tensors]
        numbers_before = self._recorder.random_state()
        host_before = _host_numbers(self._recorder.device)
        self._step(batch)
        numbers = self._recorder.random_state()
        try:
            self._check_inputs(before, host_before)
            static_batch, recording = self._recorded(batch, before)
            self._recorder.set_random_state(numbers_before)
            recording.replay()
            self._check_result(before)
        except NotCapturableError as error:
            self._refuse(f"its step {error}")
        except RuntimeError as error:  # what torch raises where a step waits for the device while it is captured
            self._refuse(f"its step cannot be captured: {str(error).splitlines()[0]}")
        else:
            self._known.recordings[shape_of(batch)] = (static_batch, recording)
            self._known.bytes += recording.bytes + bytes_of(tensors_of(static_batch.batch.inputs))
        finally:
            self._recorder.set_random_state(numbers)

    def _recorded(self, batch: Batch, before: Sequence[Tensor]) -> tuple[StaticBatch, Recording]:
        """Record the step on ``batch``; afterwards the recording's tensors hold the values from ``before`` the step."""
        if self._known.static is None:
            self._known.static = StaticStep(self._step, self._reading)
            self._known.bytes = bytes_of(self._known.static.tensors)
        static = self._known.static
        static_batch = StaticBatch(batch)
        static.fill(before)
        static.set_rates(self._step.optimizer)
        recording = self._recorder.record(lambda: static.step(static_batch.batch))
        static.fill(before)
        return static_batch, recording

    def _check_inputs(self, before: Sequence[Tensor], host_before: bytes) -> None:
        """Raise :class:`NotCapturableError` where the step changed what a replay would not."""
        if _host_numbers(self._recorder.device) != host_before:
            raise NotCapturableError("draws random numbers on the CPU, and a replay would repeat what they decided")
        first = len(self._written)
        held = zip(self._reading.tensors[first:], before[first:], strict=True)
        if _reads_another(self._step, self._reading) or not all(torch.equal(*each) for each in held):
            raise NotCapturableError("changes more than its model and its optimizer")

    def _check_result(self, before: Sequence[Tensor]) -> None:
        """Raise :class:`NotCapturableError` where the recording ended elsewhere than the step."""
        assert self._known.static is not None
        went: defaultdict[str, float] = defaultdict(float)
        apart: defaultdict[str, float] = defaultdict(float)
        for old, own, recorded in zip(before, self._written, self._known.static.tensors, strict=False):
            kind = "weights" if own.requires_grad else "numbers" if own.is_floating_point() else "counts"
            went[kind] += float((own.detach() - old).double().square().sum())
            apart[kind] += float((own.detach() - recorded.detach()).double().square().sum())
        for kind, distance in apart.items():
            if not distance <= (0 if kind == "counts" else TOLERANCE**2) * went[kind]:
                raise NotCapturableError("comes to something else when it is replayed")

    def _refuse(self, reason: str) -> None:
        self._known.refused = True
        self._known.static = None
        self._known.recordings.clear()
        self._known.bytes = 0
        self._say(reason)


def _reads_another(step: TrainingStep, reading: Reading) -> bool:
    """Return whether what ``step`` reads besides the values of tensors is no longer what ``reading`` found."""
    try:
        return read(step).fingerprint != reading.fingerprint
    except NotCapturableError:
        return True


def _host_numbers(device: torch.device) -> bytes:
    """Return where the generators are that a recording on ``device`` does not draw from."""
    of_torch = b"" if device.type == "cpu" else torch.get_rng_state().numpy().tobytes()
    return pickle.dumps((random.getstate(), np.random.get_state(), of_torch))


def shape_of(batch: Batch) -> Hashable:
    """Return what two batches have in common for which one recording will do."""
    names = tuple(batch.inputs) if isinstance(batch.inputs, dict) else ()
    return names, tuple((each.shape, each.dtype) for each in (*tensors_of(batch.inputs), batch.targets))


@torch.no_grad()
def remember_from_the_start(optimizer: torch.optim.Optimizer) -> None:
    """Give ``optimizer`` the memory that it has after a first step from zero, as a recording cannot begin another way.

    Raises :class:`NotCapturableError` for an optimizer of which that is not known.
    """
    for group in optimizer.param_groups:
        new = [parameter for parameter in group["params"] if not optimizer.state.get(parameter)]
        if isinstance(optimizer, torch.optim.SGD) and group["dampening"] == 0:
            names = ["momentum_buffer"] if group["momentum"] != 0 else []
        elif isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW) and not group["amsgrad"]:
            names = ["exp_avg", "exp_avg_sq"]
            for parameter in new:
                place = parameter.device if group["capturable"] or group["fused"] else "cpu"
                optimizer.state[parameter]["step"] = torch.zeros((), device=place)
        else:
            raise NotCapturableError(f"is by {type(optimizer).__name__}, whose first step may be one of its own")
        for name in names:
            moments = [torch.empty_like(parameter) for parameter in new]
            if moments:
                torch._foreach_zero_(moments)
            for parameter, moment in zip(new, moments, strict=True):
                optimizer.state[parameter][name] = moment
