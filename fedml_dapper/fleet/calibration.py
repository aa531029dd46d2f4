"""Calibration: the profile of this machine, from measured step times and peak memory of training at each level.

Each network's steps are timed after one warm-up step. Memory is measured in fresh processes, as freed memory stays with
a process and would hide what is needed again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fedml_dapper.config import ModelArgs
from fedml_dapper.errors import DapperError
from fedml_dapper.fleet.demand import demands
from fedml_dapper.fleet.families import family_of
from fedml_dapper.fleet.planning import network_label
from fedml_dapper.fleet.profiles import DeviceProfile, Figure, Source, Speed, StepTime
from fedml_dapper.inputs import mapped, tensors_of
from fedml_dapper.methods import ClientProfile, Method, Pass
from fedml_dapper.methods.contract.local_training import new_optimizer
from fedml_dapper.process.memory_limit import narrowest_limit
from fedml_dapper.process.provenance import machine
from fedml_dapper.process.rss import peak_extra_bytes, resident_bytes

SOURCE = "calibration"
_SMALL = 2
"""Batch size of the step that warms a process up."""
_STEPS = 7
_SECONDS = 4.0
"""Time limit: at most ``_STEPS`` steps of a network are timed, and at least two."""


def step_times(method: Method[Any]) -> tuple[StepTime, ...]:
    """Return the milliseconds of training per sample, for every network that a client of some level trains."""
    count = method.problem.training.samples_at_a_time
    times = {}
    for plan in _trained_plans(method):
        mmacs = method.pass_macs(plan) / 1e6
        if mmacs not in times:
            times[mmacs] = StepTime(mmacs=mmacs, ms=1e3 * _step_seconds(method, plan) / count)
    return tuple(times[mmacs] for mmacs in sorted(times))


def calibrate(build: Callable[[], Method[Any]], model: ModelArgs) -> DeviceProfile:
    """Measure this machine on the method that ``build`` makes, with the network that ``model`` names.

    Raises:
        DapperError: A measuring process was killed, most likely for lack of memory.
    """
    method = build()
    counted = demands(method)
    measured = {one: measured_peak(build, one.level) for one in (counted[0], counted[-1])}
    factor = max(1.0, *(peak / (one.memory_bytes - one.bytes_down) for one, (_, peak) in measured.items()))
    speed = Speed(
        network=network_label(model, method),
        family=family_of(method.problem.backbone),
        ms_per_sample=step_times(method),
        mark="measured",
        source=SOURCE,
        how=f"{method.problem.training.samples_at_a_time} samples at a time, {torch.get_num_threads()} threads",
    )
    return DeviceProfile(
        description=f"this machine: {machine()}",
        sources={SOURCE: Source(title="fedml-dapper calibrate", address="measured on the machine itself")},
        memory_mb=_all_memory(),
        runtime_mb=_measured(round(max(before for before, _ in measured.values()) / 1e6), "resident before training"),
        memory_factor=_measured(round(factor, 3), "peak of the largest step, of two levels the larger; at least 1"),
        speeds=(speed,),
    )


def with_line(profile: DeviceProfile, downlink_mbps: float, uplink_mbps: float, server: str) -> DeviceProfile:
    """Return a calibrated ``profile`` with the speed of the connection to ``server``."""
    how = f"through TLS from and to the server at {server}"
    line = {"downlink_mbps": downlink_mbps, "uplink_mbps": uplink_mbps}
    return profile.model_copy(update={key: _measured(round(mbps, 2), how) for key, mbps in line.items()})


def _measured(value: float, how: str) -> Figure:
    return Figure(value=value, mark="measured", source=SOURCE, how=how)


def measured_peak(build: Callable[[], Method[Any]], level: int) -> tuple[int, int]:
    """Measure, in a fresh process, the bytes held before training, and the peak beyond them in a level's largest step.

    ``build`` makes the method in that process, so it has to be picklable.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        try:
            return pool.submit(_in_fresh_process, build, level, torch.get_num_threads()).result()
        except BrokenProcessPool as error:
            raise DapperError(
                f"calibrate: the process that measures level {level} was killed, most likely as memory ran out; lower"
                " train_args.batch_size or model_args.width"
            ) from error


def _in_fresh_process(build: Callable[[], Method[Any]], level: int, threads: int) -> tuple[int, int]:
    torch.set_num_threads(threads)
    return largest_step(build(), level)


def largest_step(method: Method[Any], level: int) -> tuple[int, int]:
    """Return the bytes that are resident before, and the peak beyond them during two steps of a client of ``level``.

    The steps are those that hold most memory in a round. A step on a small batch comes first, as the first step loads
    code.
    """
    profile = ClientProfile(0, "", level, method.problem.ratios[level - 1], 0)
    phases = method.local_phases(profile)
    sizes = [sum(method.pass_macs(one) * one.backward for one in phase.passes) for phase in phases]
    phase = phases[sizes.index(max(sizes))]

    def train(batch_size: int) -> None:
        for _ in _steps(method, phase.passes, 2, batch_size):
            pass

    train(_SMALL)
    return resident_bytes(), peak_extra_bytes(lambda: train(method.problem.training.samples_at_a_time))


def _steps(method: Method[Any], passes: tuple[Pass, ...], count: int, batch_size: int) -> Iterator[float]:
    """Yield the seconds of each of ``count`` training steps on inputs of zeros."""
    example = method.problem.example
    training = method.problem.training
    inputs = mapped(example, lambda part: _zeros(batch_size, part))
    models = [method.pass_model(one).to(tensors_of(example)[0].device).train() for one in passes]
    optimizer = new_optimizer(training, models[0].parameters(), rate=0.0)
    for _ in range(count):
        begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        for model, one in zip(models, passes, strict=True):  # one after the other, as in a round
            with torch.set_grad_enabled(one.backward):
                value = model(inputs).square().mean()
            if one.backward:
                value.backward()
        optimizer.step()
        yield time.perf_counter() - begun


def _step_seconds(method: Method[Any], one: Pass) -> float:
    begun = time.perf_counter()
    seconds = []
    for step_s in _steps(method, (one,), 1 + _STEPS, method.problem.training.samples_at_a_time):
        seconds.append(step_s)
        if len(seconds) > 2 and time.perf_counter() - begun > _SECONDS:
            break
    return median(seconds[1:])


def _trained_plans(method: Method[Any]) -> Iterator[Pass]:
    for level, ratio in enumerate(method.problem.ratios, start=1):
        if method.takes_part(level):
            for phase in method.local_phases(ClientProfile(0, "", level, ratio, 0)):
                yield from (one for one in phase.passes if one.backward)


def _zeros(batch_size: int, example: Tensor) -> Tensor:
    zeros = torch.zeros(batch_size, *example.shape[1:], dtype=example.dtype)
    is_image = example.dim() == 4
    return zeros.contiguous(memory_format=torch.channels_last if is_image else torch.contiguous_format)


def _all_memory() -> Figure:
    """What a process may have here: all of the machine's, or what a limit leaves of it."""
    of_machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = narrowest_limit()
    if limit is not None and limit < of_machine:
        return _measured(round(limit / 1e6), "the limit of this process, or of its cgroup")
    return _measured(round(of_machine / 1e6), "all of the machine's")
