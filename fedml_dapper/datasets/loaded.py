"""Data that a program passes as loaders, used as they are: FedML's eight-part dataset tuple.

A loader is a ``DataLoader``, a list of (inputs, targets) batches, or anything else that gives such batches whenever it
is iterated over. It makes, shuffles and augments batches as it likes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from fedml_dapper.datasets.batches import ClientData, ClientTests, TestData
from fedml_dapper.datasets.class_numbers import check_count
from fedml_dapper.datasets.division import Division
from fedml_dapper.datasets.finite import not_finite, say_not_finite
from fedml_dapper.datasets.readable import hindrance, say_unreadable
from fedml_dapper.datasets.samples import Batch
from fedml_dapper.errors import DataError
from fedml_dapper.inputs import as_inputs, moved, rows, tensors_of

LOGGER = logging.getLogger(__name__)
Loader: TypeAlias = Iterable[Any]

DOMAIN = "all"
"""Name of the one domain: FedML's tuple does not tell domains apart."""
_PARTS = (
    "train samples",
    "test samples",
    "training data",
    "test data",
    "samples per client",
    "training data per client",
    "test data per client",
    "classes",
)


@dataclass(frozen=True, eq=False)
class LoadedClient(ClientData):
    """The training samples of one client, as a loader gives them, whatever the round and the epoch.

    A last batch of exactly one sample is dropped, as BatchNorm cannot train on it. What a loader draws from torch's
    global generator follows from the experiment's seed; a generator of its own goes on from one epoch to the next.
    """

    client_id: int
    loader: Loader
    count: int
    """Number of samples, as FedML's tuple says."""
    domain: str = DOMAIN
    warned: set[str] = field(default_factory=set)
    """Holds the client's name once a warning on its inputs was given."""

    @property
    def num_samples(self) -> int:
        return self.count

    @cached_property
    def labels(self) -> Tensor | None:
        """Classes of all samples, int64 (N,), in any order; None where a target is something else than one class.

        The loader is run once to find them.
        """
        targets = [batch.targets for batch in _undisturbed(self)]
        return torch.cat(targets) if all(one.dtype == torch.int64 and one.dim() == 1 for one in targets) else None

    @cached_property
    def steps_per_epoch(self) -> int:
        """Number of batches that :meth:`batches` yields."""
        sizes = _sizes(self)
        return len(sizes) - (bool(sizes) and sizes[-1] == 1 and max(sizes) > 1)

    @cached_property
    def first(self) -> Batch:
        """The loader's first sample as a batch, on the CPU."""
        batch = next(_undisturbed(self))
        return Batch(moved(rows(batch.inputs, slice(1)), "cpu"), batch.targets[:1].cpu())

    def take(self, indices: Tensor) -> LoadedClient:
        """Raise :class:`DataError`, as a loader cannot give single samples."""
        raise DataError(f"{self}: the method asks for single samples, which a loader does not give; choose another")

    def to(self, device: torch.device | str) -> LoadedClient:
        """Return the object itself: batches are moved one by one."""
        del device
        return self

    def batches(self, round: int, epoch: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """Yield the loader's batches on ``device``."""
        del round, epoch
        larger = False
        waiting = None
        for batch in self:
            if waiting is not None:
                yield _on(device, waiting)
            larger = larger or len(batch.targets) > 1
            waiting = batch
        if waiting is not None and not (larger and len(waiting.targets) == 1):
            yield _on(device, waiting)

    def __iter__(self) -> Iterator[Batch]:
        return _batches(self.loader, str(self), self.warned)

    def __len__(self) -> int:
        return _length(self.loader, str(self))

    def __str__(self) -> str:
        return f"client {self.client_id}"


@dataclass(frozen=True, eq=False)
class LoadedTest(TestData):
    """Test samples, as a loader gives them."""

    loader: Loader
    domain: str = DOMAIN
    warned: set[str] = field(default_factory=set)
    """Holds the name of the data once a warning on their inputs was given."""

    @cached_property
    def num_samples(self) -> int:
        return sum(_sizes(self))

    def take(self, indices: Tensor) -> LoadedTest:
        """Raise :class:`DataError`, as a loader cannot give single samples."""
        raise DataError(f"{self}: single samples are asked for, which a loader does not give")

    def to(self, device: torch.device | str) -> LoadedTest:
        """Return the object itself: batches are moved one by one."""
        del device
        return self

    def batches(self, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """Yield every sample once, in batches on ``device``."""
        return (_on(device, batch) for batch in self)

    def __iter__(self) -> Iterator[Batch]:
        return _batches(self.loader, str(self), self.warned)

    def __len__(self) -> int:
        return _length(self.loader, str(self))

    def __str__(self) -> str:
        return "the test data"


@dataclass(frozen=True)
class _Chained:
    """Several loaders one after another."""

    loaders: tuple[Loader, ...]

    def __iter__(self) -> Iterator[Any]:
        return (batch for loader in self.loaders for batch in loader)

    def __len__(self) -> int:
        return sum(_length(loader, "the test data") for loader in self.loaders)


def loaded_division(dataset: object) -> tuple[Division, Batch, int]:
    """Turn FedML's eight-part tuple into a division, a batch of one sample, and the number of classes.

    The global model is tested on the global test data or, without these, on those of all clients. A client without test
    data of its own is tested on the global ones.

    Raises:
        DataError: It is no such tuple, or somebody has no samples.
    """
    if not isinstance(dataset, Sequence) or len(dataset) != len(_PARTS):
        found = f"{len(dataset)} parts" if isinstance(dataset, Sequence) else type(dataset).__name__
        raise DataError(f"the program passes {found} as its dataset, expected FedML's eight: {', '.join(_PARTS)}")
    _, _, _, test_global, counts, train_local, test_local, num_classes = dataset
    if not isinstance(train_local, Mapping) or sorted(train_local) != list(range(len(train_local))) or not train_local:
        raise DataError("the program's training data per client should be a dict with keys 0 to N - 1")
    clients = tuple(_client(number, train_local[number], counts) for number in range(len(train_local)))
    own = [(test_local or {}).get(client.client_id) for client in clients]
    given = [loader for loader in own if loader is not None]
    if test_global is None and not given:
        raise DataError("the program passes no test data, neither global nor of any client")
    test = _test(_Chained(tuple(given)) if test_global is None else test_global)
    tests = tuple(ClientTests(test if loader is None else _test(loader)) for loader in own)
    division = Division(clients, tests, (test,))
    where = "the program's dataset, its eighth part"
    return division, clients[0].first, check_count(where, _whole(f"{where} (the number of classes)", num_classes))


def _client(number: int, loader: Loader, counts: Mapping[int, int]) -> LoadedClient:
    num_batches = _length(loader, f"client {number}")  # raises for a loader without length, which may have no end
    count = counts.get(number) if isinstance(counts, Mapping) else None
    if count is None:
        count = LoadedTest(loader).num_samples if num_batches else 0
    count = _whole(f"the program's dataset, its fifth part (samples of client {number})", count)
    if count < 2:
        raise DataError(f"client {number} has {count} training samples; training needs 2 or more")
    if num_batches == 0:
        raise DataError(
            f"client {number}: its loader gives no batch, and it has {count} samples; with drop_last, batch_size may be"
            " no larger than that"
        )
    return LoadedClient(number, loader, count)


def _whole(where: str, number: object) -> int:
    try:
        return int(number)  # type: ignore[call-overload,no-any-return]  # whatever the program passes
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} is {number!s:.40} ({type(number).__name__}), and has to be a number") from error


def _test(loader: Loader) -> LoadedTest:
    test = LoadedTest(loader)
    if len(test) == 0 or test.num_samples == 0:
        raise DataError("a client or the server has test data without samples; leave them out (None), or fill them")
    return test


def _batches(loader: Loader, owner: str, warned: set[str]) -> Iterator[Batch]:
    """Yield the batches of ``loader``, with a warning on the first inputs that are not finite.

    Raises:
        DataError: There are none, as of an iterator that was used up, or one is no batch.
    """
    is_empty = True
    for number, given in enumerate(loader):
        is_empty = False
        batch = _batch(given, owner)
        if not warned and (found := not_finite(batch.inputs)):
            warned.add(owner)
            LOGGER.warning("%s", say_not_finite(f"{owner}, batch {number}", found, len(batch.targets)))
        yield batch
    if is_empty:
        raise DataError(f"{owner}: the loader gives no batch; it has to begin anew whenever it is iterated over")


def _batch(given: Any, owner: str) -> Batch:
    if not isinstance(given, list | tuple) or len(given) != 2:
        parts = f"{len(given)} parts" if isinstance(given, list | tuple) else type(given).__name__
        raise DataError(f"{owner}: a batch of {parts}, expected (inputs, targets)")
    inputs = as_inputs(given[0])
    targets = _one_tensor(given[1], f"{owner}: targets of a batch")
    if inputs is None:
        inputs = _one_tensor(given[0], f"{owner}: inputs of a batch")
    unread = next(filter(hindrance, (*tensors_of(inputs), targets)), None)
    if unread is not None:
        raise DataError(say_unreadable(f"{owner}: a batch", unread))
    if not all(part.dim() for part in (*tensors_of(inputs), targets)):
        raise DataError(
            f"{owner}: a single sample where a batch belongs, whose inputs and targets have a row a sample; give the"
            " DataLoader a batch_size"
        )
    sizes = [len(part) for part in tensors_of(inputs)]
    if set(sizes) != {len(targets)}:
        raise DataError(
            f"{owner}: a batch whose inputs are tensors of {', '.join(map(str, sizes))} rows, with {len(targets)}"
            " targets; give each a row a target"
        )
    if not targets.is_floating_point():
        targets = targets.long()
    return Batch(inputs, targets)


def _one_tensor(given: object, what: str) -> Tensor:
    if isinstance(given, Mapping):
        raise DataError(f"{what} are a dict of other things than tensors; make each a tensor")
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        of = f" of {type(given[0]).__name__}" if isinstance(given, list | tuple) and given else ""
        raise DataError(f"{what} are a {type(given).__name__}{of}, no tensor or numbers; make them one") from error


def _on(device: torch.device | str, batch: Batch) -> Batch:
    return Batch(moved(batch.inputs, device), batch.targets.to(device))


def _sizes(data: LoadedClient | LoadedTest) -> list[int]:
    """The sizes of the batches; the loader is run only where nothing else tells them."""
    loader = data.loader
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return [len(batch.targets) for batch in _undisturbed(data)]
    count, size = len(loader.sampler), loader.batch_size  # type: ignore[arg-type]  # those with an end have a length
    rest = 0 if loader.drop_last else count % size
    return [size] * (count // size) + [rest] * (rest > 0)


def _length(loader: Loader, owner: str) -> int:
    try:
        return len(loader)  # type: ignore[arg-type]  # a loader without length raises, as is asked here
    except TypeError as error:
        raise DataError(
            f"{owner}: data without length ({error}); pass a list of batches, or a DataLoader of a map-style dataset"
        ) from error


def _undisturbed(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield all batches; torch's global generator is afterwards as before."""
    with torch.random.fork_rng(devices=[]):
        yield from batches
