"""Messages between workers and the process that forked them, and the global model in memory that they share.

Messages are pickled, since both ends are one program on a pipe that nobody else has. Unlike the messages of
``federation/wire.py`` they preserve tensors exactly: their layout in memory, on which the bits of sums depend, and
values that are not finite, with which a simulation goes on.
"""

from __future__ import annotations

import io
import mmap
import pickle
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedml_dapper.methods import Downlink, Memory, Upload
from fedml_dapper.process.profiling import Part, part
from fedml_dapper.pruning import Tensors

_ALIGNMENT = 64
"""Bytes to which tensors are aligned in the shared memory: a cache line."""


@dataclass(frozen=True, eq=False)
class Task:
    """Message to a worker: the round of one client."""

    downlink: Downlink
    memory: Memory | None
    """The client's memory; None where it never trained."""


@dataclass(frozen=True)
class Step:
    """Message from a worker: an optimizer step was taken."""

    client_id: int
    done: int
    total: int


@dataclass(frozen=True, eq=False)
class Done:
    """Message from a worker: a client has trained."""

    upload: Upload
    memory: Memory
    seconds: float
    """Seconds that the worker took."""
    parts: dict[Part, float] = field(default_factory=dict)
    """Seconds by part of the round, where a profiler runs."""


@dataclass(frozen=True, eq=False)
class Failed:
    """Message from a worker: a client's round raised an error."""

    error: BaseException
    trace: str


class _Place(NamedTuple):
    offset: int
    nbytes: int


class _Shared(NamedTuple):
    """Reference to a tensor in the shared model."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class SharedModel:
    """The global model in memory that this process shares with all processes forked from it.

    :meth:`pack` sends a reference in place of each of its tensors. The memory is anonymous: it has no name that could
    be left behind, and takes no room in ``/dev/shm``, of which containers have little.
    """

    def __init__(self, weights: Tensors) -> None:
        self._places = dict[str, _Place]()
        size = 0
        for name, tensor in weights.items():
            self._places[name] = _Place(size, _span(tensor) * tensor.element_size())
            size += -(-self._places[name].nbytes // _ALIGNMENT) * _ALIGNMENT
        self._block = torch.frombuffer(mmap.mmap(-1, max(size, 1)), dtype=torch.uint8)
        self._shown: dict[int, tuple[str, Tensor]] = {}
        """Name and tensor by ``id(tensor)``; the tensors are kept alive, so that no other one gets the same id."""

    def show(self, weights: Tensors) -> None:
        """Copy ``weights`` into the shared memory, while no worker is reading."""
        self._shown = {}
        for name, tensor in weights.items():
            place = self._places.get(name)
            if place is not None and _span(tensor) * tensor.element_size() <= place.nbytes:
                self._flat(name, tensor.dtype, _span(tensor)).copy_(_flattened(tensor))
                self._shown[id(tensor)] = name, tensor

    @part("wire")
    def pack(self, message: Task | Step | Done | Failed) -> memoryview:
        """Encode a message."""
        buffer = io.BytesIO()
        _Pickler(buffer, self._shown).dump(message)
        return buffer.getbuffer()

    @part("wire")
    def unpack(self, data: bytes) -> Task | Step | Done | Failed:
        """Decode a message that :meth:`pack` encoded at the pipe's other end."""
        message = _Unpickler(io.BytesIO(data), self).load()
        assert isinstance(message, Task | Step | Done | Failed)
        return message

    def tensor(self, shared: _Shared) -> Tensor:
        """Return the shared tensor itself, not a copy."""
        flat = self._flat(shared.name, shared.dtype, _span_of(shared.shape, shared.stride))
        return flat.as_strided(shared.shape, shared.stride)

    def _flat(self, name: str, dtype: torch.dtype, span: int) -> Tensor:
        offset = self._places[name].offset
        return self._block[offset : offset + span * dtype.itemsize].view(dtype)


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, shown: dict[int, tuple[str, Tensor]]) -> None:
        super().__init__(buffer, protocol=5)
        self._shown = shown

    def persistent_id(self, found: Any) -> _Shared | None:
        name, _ = self._shown.get(id(found), (None, None))
        return None if name is None else _Shared(name, found.dtype, tuple(found.shape), found.stride())

    def reducer_override(self, found: Any) -> Any:
        if not isinstance(found, Tensor):
            return NotImplemented
        content = _flattened(found).contiguous().view(torch.uint8).numpy()
        return _restored, (content, found.dtype, tuple(found.shape), found.stride())


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, model: SharedModel) -> None:
        super().__init__(buffer)
        self._model = model

    def persistent_load(self, shared: _Shared) -> Tensor:
        return self._model.tensor(shared)


def _restored(content: Any, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(content).view(dtype).as_strided(shape, stride)


def _flattened(tensor: Tensor) -> Tensor:
    """Return all entries in memory from a tensor's first to its last, as a flat view."""
    return tensor.detach().as_strided((_span(tensor),), (1,))


def _span(tensor: Tensor) -> int:
    return _span_of(tensor.shape, tensor.stride())


def _span_of(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Return the number of entries in memory from the first to the last of a strided tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
