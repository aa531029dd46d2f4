"""This machine as a device's profile: how long training takes at each level's size, and its peak memory.

A network's step is timed after one to warm up. Memory is measured in fresh processes: memory that was freed stays with
a process, and hides what is needed again.
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
from fedml_dapper.fleet.demand import BACKWARD, demands
from fedml_dapper.fleet.families import family_of
from fedml_dapper.fleet.planning import network_label
from fedml_dapper.fleet.profiles import DeviceProfile, Figure, Source, Speed, StepTime
from fedml_dapper.inputs import mapped, tensors_of
from fedml_dapper.methods import ClientProfile, Method, Pass
from fedml_dapper.methods.contract.local_training import new_optimizer
from fedml_dapper.provenance import machine
from fedml_dapper.resident import peak_extra_bytes, resident_bytes

SOURCE = "calibration"
_SMALL = 2
_STEPS = 7
_SECONDS = 4.0
"""A network's steps: so many, or as many as fit into these seconds, at least two."""


def step_times(method: Method[Any]) -> tuple[StepTime, ...]:
    """Milliseconds of training for each sample, for every network that a client of some level trains."""
    count = method.problem.training.samples_at_a_time
    times = {}
    for plan in _trained_plans(method):
        mmacs = (1 + BACKWARD) * method.model_size(plan.plan)[1] / 1e6
        if mmacs not in times:
            times[mmacs] = StepTime(mmacs=mmacs, ms=1e3 * _step_seconds(method, plan) / count)
    return tuple(times[mmacs] for mmacs in sorted(times))


def calibrate(build: Callable[[], Method[Any]], model: ModelArgs) -> DeviceProfile:
    """Measure this machine on the method that ``build`` makes, of the network that ``model`` names.

    Raises :class:`DapperError` where a process fails.
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
        memory_mb=_measured(round(_all_memory() / 1e6), "all of the machine's"),
        runtime_mb=_measured(round(max(before for before, _ in measured.values()) / 1e6), "resident before training"),
        memory_factor=_measured(round(factor, 3), "peak of the largest step, of two levels the larger; at least 1"),
        speeds=(speed,),
    )


def with_line(profile: DeviceProfile, downlink_mbps: float, uplink_mbps: float, server: str) -> DeviceProfile:
    """A calibrated ``profile`` with how fast the line to ``server`` is."""
    how = f"through TLS from and to the server at {server}"
    line = {"downlink_mbps": downlink_mbps, "uplink_mbps": uplink_mbps}
    return profile.model_copy(update={key: _measured(round(mbps, 2), how) for key, mbps in line.items()})


def _measured(value: float, how: str) -> Figure:
    return Figure(value=value, mark="measured", source=SOURCE, how=how)


def measured_peak(build: Callable[[], Method[Any]], level: int) -> tuple[int, int]:
    """Bytes that a fresh process holds before it trains, and how many more at most during the largest step of a level.

    ``build`` makes the method over there, so it has to be something that can be pickled.
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
    """Bytes that are resident before, and how many more at most while two of the steps that hold most in a round of a
    client of ``level`` are trained. A step on a small batch comes first: the first one loads code."""
    profile = ClientProfile(0, "", level, method.problem.ratios[level - 1], 0)
    phases = method.local_phases(profile)
    sizes = [sum(method.model_size(one.plan)[1] * one.backward for one in phase.passes) for phase in phases]
    phase = phases[sizes.index(max(sizes))]

    def train(batch_size: int) -> None:
        for _ in _steps(method, phase.passes, 2, batch_size):
            pass

    train(_SMALL)
    return resident_bytes(), peak_extra_bytes(lambda: train(method.problem.training.samples_at_a_time))


def _steps(method: Method[Any], passes: tuple[Pass, ...], count: int, batch_size: int) -> Iterator[float]:
    """Seconds of each of ``count`` training steps, on zeros."""
    example = method.problem.example
    training = method.problem.training
    inputs = mapped(example, lambda part: _zeros(batch_size, part))
    models = [method.local_model(one.plan).to(tensors_of(example)[0].device).train() for one in passes]
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
    for taken in _steps(method, (one,), 1 + _STEPS, method.problem.training.samples_at_a_time):
        seconds.append(taken)
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
    return zeros.contiguous(memory_format=_layout(example))


def _layout(example: Tensor) -> torch.memory_format:
    return torch.channels_last if example.dim() == 4 else torch.contiguous_format  # images


def _all_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
