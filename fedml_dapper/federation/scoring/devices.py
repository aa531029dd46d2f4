"""Tests of the models that devices get: the model of every capability level, as a device of that level runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from statistics import fmean

import torch

from fedml_dapper.datasets import ClientData
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.run_folder.records import DeviceFigures, DeviceScores, LevelFigures
from fedml_dapper.federation.scoring.testing import evaluate
from fedml_dapper.methods import ClientContext, ClientProfile, Memory, ServerState, as_sent, renew_statistics
from fedml_dapper.methods.contract.batchnorm import running_statistics
from fedml_dapper.models import Backbone
from fedml_dapper.models.loading import put_tensors
from fedml_dapper.process.profiling import part


@part("evaluation")
def measure_devices(
    experiment: Experiment,
    state: ServerState,
    memories: Mapping[int, Memory] | None = None,
    of_global: Mapping[str, float] | None = None,
) -> DeviceScores | None:
    """Test every level's model on every domain, and every client's level on the client's own domain.

    Models are tested as they are sent. Those with BatchNorm are tested once more, where clients' images are at hand,
    with the statistics that a device measures on its own training images, without labels.

    Args:
        experiment: Clients and test sets.
        state: The server's, with the global model.
        memories: The clients', by client id. Where norms stay at home, each client runs a model with its own.
        of_global: Headlines of the global model by domain, to be used for levels whose model is the same.

    Returns:
        None for methods that have neither a global model nor norms at home, and where memories are needed and missing.
    """
    method = experiment.method
    if not experiment.tests:
        return None
    if method.has_global_model:
        fleet: _Fleet = _LevelModels(experiment, state, of_global or {})
    elif method.problem.personal_tensors and memories is not None:
        fleet = _OwnModels(experiment, state, memories)
    else:
        return None
    own = fleet.figures(own_statistics=True) if fleet.has_statistics and experiment.clients else None
    return DeviceScores(sent=fleet.figures(own_statistics=False), own_statistics=own)


class _Fleet(ABC):
    """Devices of all levels, and the test sets that their models are tested on."""

    def __init__(self, experiment: Experiment, state: ServerState) -> None:
        self._experiment = experiment
        self._profiles = state.profiles
        self._tests = {test.domain: test for test in experiment.tests}

    @abstractmethod
    def models(self) -> Iterable[Backbone | None]:
        """Return the models that devices run; None for a device that can run none."""

    @abstractmethod
    def _of_client(self, profile: ClientProfile, own_statistics: bool) -> float | None:
        """Return the headline of a client's model on the client's domain."""

    @abstractmethod
    def _of_level(self, level: int, domain: str, own_statistics: bool) -> float | None:
        """Return the headline of a level's model on a domain."""

    @property
    def has_statistics(self) -> bool:
        """Whether some model normalises by running statistics, which a device can measure anew."""
        return any(model is not None and running_statistics(model, copy=False) for model in self.models())

    def figures(self, *, own_statistics: bool) -> DeviceFigures:
        """Test all levels side by side, in as many threads as there are workers, which are idle meanwhile."""
        method = self._experiment.method

        def of_level(level: int) -> LevelFigures:
            return self._figures_of(level, own_statistics)

        with ThreadPoolExecutor(self._experiment.workers.count) as side_by_side:
            levels = tuple(side_by_side.map(of_level, range(1, 1 + len(method.problem.ratios))))
        own = tuple(
            self._of_client(profile, own_statistics) for profile in self._profiles if profile.domain in self._tests
        )
        known = [value for value in own if value is not None]
        is_whole = bool(known) and len(known) == len(own)
        return DeviceFigures(
            levels=levels,
            clients=own,
            accuracy=fmean(known) if is_whole else None,
            worst=method.problem.task.headline.worst(known) if is_whole else None,
        )

    def _figures_of(self, level: int, own_statistics: bool) -> LevelFigures:
        found = {domain: self._of_level(level, domain, own_statistics) for domain in self._tests}
        by_domain = {domain: value for domain, value in found.items() if value is not None}
        return LevelFigures(
            level=level, accuracy=fmean(by_domain.values()) if by_domain else None, domain_accuracy=by_domain
        )

    def _measured(self, model: Backbone, domain: str, images: ClientData | None) -> float:
        """Test ``model`` on a domain, with statistics measured on a client's ``images`` if these are given."""
        method = self._experiment.method
        device = self._experiment.device
        model.to(device)
        before = running_statistics(model)
        if images is not None:
            renew_statistics(model, images, device)
        figure = evaluate(model, method.problem.task, self._tests[domain], device).headline
        put_tensors(model, before)  # the same model is tested on other domains, too
        return figure


class _LevelModels(_Fleet):
    """Devices that run the server's model, cut to their level."""

    def __init__(self, experiment: Experiment, state: ServerState, of_global: Mapping[str, float]) -> None:
        super().__init__(experiment, state)
        method = experiment.method
        self._data = {data.client_id: data for data in experiment.clients}
        self._models: dict[int, Backbone | None] = {
            level: method.level_model(state, level) if method.has_level_model(level) else None
            for level in range(1, 1 + len(method.problem.ratios))
        }
        self._found: dict[tuple[int, str, int | None], float] = {}
        whole = method.global_model(state)  # a level that cuts nothing runs this very model, which was tested before
        for level, model in self._models.items():
            if model is not None and _is_same(model, whole):
                self._found |= {(level, domain, None): headline for domain, headline in of_global.items()}

    def models(self) -> Iterable[Backbone | None]:
        return self._models.values()

    def _of_client(self, profile: ClientProfile, own_statistics: bool) -> float | None:
        return self._run(profile.level, profile.domain, profile.client_id if own_statistics else None)

    def _of_level(self, level: int, domain: str, own_statistics: bool) -> float | None:
        device = self._first_of(domain) if own_statistics else None
        return None if own_statistics and device is None else self._run(level, domain, device)

    def _first_of(self, domain: str) -> int | None:
        """Return the client whose images stand for those of the domain's devices."""
        return next((client_id for client_id, data in sorted(self._data.items()) if data.domain == domain), None)

    def _run(self, level: int, domain: str, device: int | None) -> float | None:
        """Test the level's model on a domain once, with statistics of client ``device``'s images if one is named."""
        model = self._models[level]
        key = (level, domain, device)
        if model is None:
            return None
        if key not in self._found:
            self._found[key] = self._measured(model, domain, None if device is None else self._data[device])
        return self._found[key]


class _OwnModels(_Fleet):
    """Devices that run models of their own; a level's figure on a domain is the mean over its clients there."""

    def __init__(self, experiment: Experiment, state: ServerState, memories: Mapping[int, Memory]) -> None:
        super().__init__(experiment, state)
        self._state = state
        self._memories = memories
        self._models = {
            profile.client_id: self._model(profile) for profile in self._profiles if profile.domain in self._tests
        }
        self._found: dict[tuple[int, bool], float] = {}

    def _model(self, profile: ClientProfile) -> Backbone | None:
        method = self._experiment.method
        client_id = profile.client_id
        if not method.has_level_model(profile.level):
            return None
        memory = self._memories.get(client_id, Memory())
        context = ClientContext(profile, self._experiment.data_of(client_id), memory, self._experiment.device)
        downlink = as_sent(method.downlink(self._state, client_id), method.problem.layout)
        return method.seeded_personal_model(context, downlink)

    def models(self) -> Iterable[Backbone | None]:
        return self._models.values()

    def _of_client(self, profile: ClientProfile, own_statistics: bool) -> float | None:
        model = self._models[profile.client_id]
        key = (profile.client_id, own_statistics)
        if model is None:
            return None
        if key not in self._found:
            images = self._experiment.data_of(profile.client_id) if own_statistics else None
            self._found[key] = self._measured(model, profile.domain, images)
        return self._found[key]

    def _of_level(self, level: int, domain: str, own_statistics: bool) -> float | None:
        members = [profile for profile in self._profiles if (profile.level, profile.domain) == (level, domain)]
        values = [self._of_client(profile, own_statistics) for profile in members]
        known = [value for value in values if value is not None]
        return fmean(known) if known else None


def _is_same(model: Backbone, other: Backbone) -> bool:
    tensors = model.state_dict()
    others = other.state_dict()
    alike = type(model) is type(other) and tensors.keys() == others.keys()
    return alike and all(torch.equal(tensors[name], others[name]) for name in tensors)
