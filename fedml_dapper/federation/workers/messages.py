"""Messages between workers and the process that forked them, and the global model in memory that they share.

Messages are pickled, since both ends are one program on a pipe that nobody else has. Unlike the messages of
``federation/wire.py`` they preserve tensors exactly: their layout in memory, on which the bits of sums depend, and
values that are not finite, with which a simulation goes on.

A small network's hundred tensors take longer to pickle than to copy. So a message begins with the bytes of all its
tensors; then come their places, the message itself, which has their numbers in place of tensors, and the length of
these two.
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
from fedml_dapper.models.in_bulk import copy_each
from fedml_dapper.process.profiling import Part, part
from fedml_dapper.pruning import Tensors

_ALIGNMENT = 64
"""Bytes to which tensors are aligned in the shared memory and in messages: a cache line."""
_LENGTH_BYTES = 8
"""Bytes of a message's last number, the length of what follows its tensors."""


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


class _Form(NamedTuple):
    """How a tensor lies in memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    nbytes: int
    """Bytes from the tensor's first entry to its last."""

    @classmethod
    def of(cls, tensor: Tensor) -> _Form:
        shape = tuple(tensor.shape)
        stride = tensor.stride()
        nbytes = tensor.nbytes
        if nbytes and not tensor.is_contiguous():
            nbytes = tensor.itemsize * (1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)))
        return cls(tensor.dtype, shape, stride, nbytes)


_Places = list[tuple[str | int, _Form]]
"""Where a message's tensors are: the name of each in the shared memory, or its offset among the message's bytes."""


class _Block(NamedTuple):
    offset: int
    nbytes: int


class SharedModel:
    """The global model in memory that this process shares with all processes forked from it.

    :meth:`pack` sends a reference in place of each of its tensors. The memory is anonymous: it has no name that could
    be left behind, and takes no room in ``/dev/shm``, of which containers have little.
    """

    def __init__(self, weights: Tensors) -> None:
        self._blocks = dict[str, _Block]()
        size = 0
        for name, tensor in weights.items():
            self._blocks[name] = _Block(size, _Form.of(tensor).nbytes)
            size += _aligned(self._blocks[name].nbytes)
        self._memory = torch.frombuffer(mmap.mmap(-1, max(size, 1)), dtype=torch.uint8)
        self._shown: dict[int, tuple[str, Tensor]] = {}
        """Name and tensor by ``id(tensor)``; the tensors are kept alive, so that no other one gets the same id."""

    def show(self, weights: Tensors) -> None:
        """Copy ``weights`` into the shared memory, while no worker is reading."""
        self._shown = {}
        for name, tensor in weights.items():
            form = _Form.of(tensor)
            block = self._blocks.get(name)
            if block is not None and form.nbytes <= block.nbytes:
                self._flat(name, form).copy_(_flattened(tensor, form))
                self._shown[id(tensor)] = name, tensor

    @part("wire")
    def pack(self, message: Task | Step | Done | Failed) -> memoryview:
        """Encode a message."""
        body = io.BytesIO()
        pickler = _Pickler(body, self._shown)
        pickler.dump(message)
        head = pickle.dumps(pickler.places, protocol=5) + body.getvalue()
        packed = torch.empty(pickler.nbytes + len(head) + _LENGTH_BYTES, dtype=torch.uint8)
        pickler.write(packed)
        memory = packed.numpy().data
        memory[pickler.nbytes : -_LENGTH_BYTES] = head
        memory[-_LENGTH_BYTES:] = len(head).to_bytes(_LENGTH_BYTES, "little")
        return memory

    @part("wire")
    def unpack(self, data: bytes) -> Task | Step | Done | Failed:
        """Decode a message that :meth:`pack` encoded at the pipe's other end."""
        length = int.from_bytes(data[-_LENGTH_BYTES:], "little")
        head = io.BytesIO(data[-_LENGTH_BYTES - length : -_LENGTH_BYTES])
        places = _Unpickler(head, [], data, self).load()
        message = _Unpickler(head, places, data, self).load()
        assert isinstance(message, Task | Step | Done | Failed)
        return message

    def tensor(self, name: str, form: _Form) -> Tensor:
        """Return the shared tensor itself, not a copy."""
        return self._flat(name, form).as_strided(form.shape, form.stride)

    def _flat(self, name: str, form: _Form) -> Tensor:
        offset = self._blocks[name].offset
        return self._memory[offset : offset + form.nbytes].view(form.dtype)


class _Pickler(pickle.Pickler):
    """Pickles a message with a number in place of each tensor, by which :attr:`places` says where it is."""

    def __init__(self, buffer: io.BytesIO, shown: dict[int, tuple[str, Tensor]]) -> None:
        super().__init__(buffer, protocol=5)
        self._shown = shown
        self._sent: list[tuple[int, _Form, Tensor]] = []
        """Offset and form of what travels; tensors are kept alive, as some are made while the message is pickled."""
        self.places: _Places = []
        self.nbytes = 0
        """Bytes of all that travels, with what aligns it."""

    def persistent_id(self, found: Any) -> int | None:
        if not isinstance(found, Tensor):
            return None
        form = _Form.of(found)
        name, _ = self._shown.get(id(found), (None, None))
        self.places.append((self._begun(found, form) if name is None else name, form))
        return len(self.places) - 1

    def _begun(self, tensor: Tensor, form: _Form) -> int:
        """Return the offset at which the bytes of ``tensor`` will begin."""
        offset = self.nbytes
        self._sent.append((offset, form, tensor))
        self.nbytes += _aligned(form.nbytes)
        return offset

    def write(self, packed: Tensor) -> None:
        """Write the bytes of what travels into ``packed``."""
        copy_each(
            [_flattened(tensor, form) for _, form, tensor in self._sent],
            [packed[offset : offset + form.nbytes].view(form.dtype) for offset, form, _ in self._sent],
        )


class _Unpickler(pickle.Unpickler):
    def __init__(self, head: io.BytesIO, places: _Places, data: bytes, model: SharedModel) -> None:
        super().__init__(head)
        self._places = places
        self._data = memoryview(data)
        self._model = model

    def persistent_load(self, number: int) -> Tensor:
        place, form = self._places[number]
        if isinstance(place, str):
            return self._model.tensor(place, form)
        # in memory of its own, or one tensor that is kept would keep the whole message
        content = bytearray(self._data[place : place + form.nbytes])
        flat = torch.frombuffer(content, dtype=form.dtype) if content else torch.empty(0, dtype=form.dtype)
        return flat.as_strided(form.shape, form.stride)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _flattened(tensor: Tensor, form: _Form) -> Tensor:
    """Return all entries in memory from a tensor's first to its last, as a flat view."""
    return tensor.detach().as_strided((form.nbytes // tensor.itemsize,), (1,))
