"""Measurements of an exported file by its own runtime: agreement with the model, accuracy, time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from torch import Tensor, nn

from fedml_dapper.datasets import TestData
from fedml_dapper.deployment.formats import Runtime
from fedml_dapper.deployment.parity import COMPARED, random_inputs
from fedml_dapper.errors import ConfigError
from fedml_dapper.export.inputs import as_pixels, spread
from fedml_dapper.export.subjects import CPU
from fedml_dapper.federation.run_folder.finished import FinishedRun
from fedml_dapper.federation.scoring.testing import evaluate
from fedml_dapper.inputs import Inputs, joined, rows, tensors_of
from fedml_dapper.tasks import Task

_WARM_UP = 5
_TIMED = 30


@dataclass(frozen=True, eq=False)
class TestSets:
    """A run's test samples by domain, as networks and as exported files take them."""

    __test__ = False  # the name would make pytest collect it

    for_network: Mapping[str, TestData]
    for_files: Mapping[str, TestData]
    compared: tuple[Inputs, Inputs]
    """Some inputs, in the form that the network takes and in that of files."""


def sets_of(run: FinishedRun, client: int | None = None) -> TestSets:
    """Return the domains' test samples, the unseen domain's included, and those of ``client``.

    There are none where the data are not available; the inputs to compare are then random.
    """
    experiment = run.experiment
    tests = dict[str, TestData]()
    if experiment is not None:
        tests |= {test.domain: test for test in experiment.tests}
        if experiment.unseen is not None:
            tests[f"{experiment.unseen.test.domain} (unseen)"] = experiment.unseen.test
        if client is not None:
            tests[f"client {client}'s own"] = experiment.own_tests(client).test
    for_files = {name: as_pixels(test) for name, test in tests.items()}
    example = run.method.problem.example
    compared = (_some(tests, example), _some(for_files, example)) if tests else random_inputs(run.origin)
    return TestSets(tests, for_files, compared)


def accuracy(runtime: Runtime, task: Task, tests: Mapping[str, TestData]) -> dict[str, float]:
    """Return the task's headline figure on each of ``tests``."""
    return {name: evaluate(_Running(runtime), task, test, CPU).headline for name, test in tests.items()}


def milliseconds(runtimes: Sequence[Runtime], sets: TestSets) -> list[float]:
    """Return the median time of one input through each of ``runtimes``, in milliseconds.

    Runtimes take turns, so that other things that slow the machine slow all of them.
    """
    one = rows(sets.compared[1], slice(1))
    seconds = [list[float]() for _ in runtimes]
    for _ in range(_WARM_UP + _TIMED):
        for runtime, taken in zip(runtimes, seconds, strict=True):
            started = time.perf_counter()
            runtime(one)
            taken.append(time.perf_counter() - started)
    return [1000 * median(taken[_WARM_UP:]) for taken in seconds]


class _Running(nn.Module):
    """A file's model in the form of a module."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    def forward(self, inputs: Inputs) -> Tensor:
        return self._runtime(inputs)


def _some(tests: Mapping[str, TestData], example: Inputs) -> Inputs:
    """Return the inputs of a few samples of each of ``tests``.

    Raises:
        ConfigError: They differ from ``example`` in shape, as texts of unequal length do; a file takes one shape.
    """
    samples = [next(iter(spread(test, COMPARED))).inputs for test in tests.values()]
    shapes = {str([list(part.shape[1:]) for part in tensors_of(one)]) for one in (example, *samples)}
    if len(shapes) > 1:
        raise ConfigError(
            f"inputs of this run differ in shape, {' and '.join(sorted(shapes)[:2])}, and an exported file takes one;"
            " let the function that loads the data pad or cut all of them to one length, and train again"
        )
    return joined(samples)
