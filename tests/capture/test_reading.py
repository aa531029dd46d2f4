"""What tells two training steps apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.capture.reading import NotCapturableError, Unchanging, read


class Task(Unchanging):
    def __init__(self) -> None:
        self.weights = torch.ones(3)


def closure(*held: object) -> Callable[[], object]:
    return lambda: held


def layer(**changed: object) -> nn.Module:
    made = nn.Conv2d(2, 3, 3)
    for name, value in changed.items():
        setattr(made, name, value)
    return made


ALIKE = [
    (torch.zeros(3), torch.ones(3)),
    (layer(), layer()),
    (closure(torch.zeros(2), 0.5), closure(torch.ones(2), 0.5)),
    ({"mean": torch.zeros(1)}, {"mean": torch.ones(1)}),
]
APART = [
    (torch.zeros(3), torch.zeros(4)),
    (torch.zeros(3), torch.zeros(3, dtype=torch.float64)),
    (layer(), layer(stride=(2, 2))),
    (layer(), layer().eval()),
    (layer(), layer(note="another")),
    (nn.ReLU(), nn.GELU()),
    (closure(0.5), closure(0.25)),
    (closure(1), closure(True)),
    (closure(Task()), closure(Task())),
    ({"mean": torch.zeros(1)}, {"median": torch.zeros(1)}),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_values_of_tensors_do_not_count(one: object, other: object) -> None:
    assert read(one).fingerprint == read(other).fingerprint


@pytest.mark.parametrize(("one", "other"), APART)
def test_all_else_does(one: object, other: object) -> None:
    assert read(one).fingerprint != read(other).fingerprint


def test_two_that_are_one_are_not_like_two_that_are_two() -> None:
    tensor = torch.zeros(3)
    assert read([tensor, tensor]).fingerprint != read([tensor, torch.zeros(3)]).fingerprint
    assert len(read([tensor, tensor]).tensors) == 1


def test_tensors_come_in_one_order_and_constants_keep_theirs() -> None:
    task = Task()
    network = nn.Sequential(layer(), nn.BatchNorm2d(3))
    reading = read((network, closure(task, torch.zeros(2))))
    assert [tensor.shape for tensor in reading.tensors][-1] == (2,)
    assert len(reading.tensors) == len(network.state_dict()) + 1
    assert reading.constants == (task,)


def hooked() -> nn.Module:
    made = layer()
    made.register_forward_pre_hook(lambda each, given: None)
    return made


class Counter:
    def __init__(self) -> None:
        self.sum = torch.zeros(1)


def computed() -> Tensor:
    return torch.ones(2, requires_grad=True) * 2


@pytest.mark.parametrize(
    "value", [hooked(), Counter(), computed(), torch.Generator()], ids=lambda each: type(each).__name__
)
def test_what_may_change_beside_its_tensors_is_refused(value: object) -> None:
    with pytest.raises(NotCapturableError, match=r"^(has hooks|reads a)"):
        read(closure(value))
