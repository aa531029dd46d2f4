"""What a round costs a client of each level: counted for a cell's method, and timed on a device of the bench's."""

from __future__ import annotations

from statistics import fmean

from fedml_dapper.federation import Experiment
from fedml_dapper.federation.run_folder.records import Record
from fedml_dapper.fleet import DeviceProfile, demands
from fedml_dapper.fleet.demand import Demand
from fedml_dapper.fleet.families import Family, family_of
from fedml_dapper.fleet.fitting import training_seconds
from fedml_dapper.fleet.planning import network_label


class LevelNeed(Record):
    """What a client of a level needs for a round."""

    demand: Demand
    num_samples: float
    """Samples of the level's clients in this seed, mean; 0 where it has none."""


class Needs(Record):
    """What the clients of a cell need, of the levels that train."""

    network: str
    """Name of the network in devices' profiles."""
    family: Family
    levels: tuple[LevelNeed, ...]

    @classmethod
    def of(cls, experiment: Experiment) -> Needs:
        """Count the needs of an experiment's method."""
        method = experiment.method
        samples = dict[int, list[int]]()
        for profile in experiment.profiles:
            samples.setdefault(profile.level, []).append(method.trained_samples(profile))
        return cls(
            network=network_label(experiment.settings.model_args, method),
            family=family_of(method.problem.backbone),
            levels=tuple(
                LevelNeed(demand=one, num_samples=fmean(samples.get(one.level, [0]))) for one in demands(method)
            ),
        )

    def macs_on(self, num_samples: float) -> dict[int, float]:
        """Return the multiply-accumulates of a round on so many samples, by level."""
        return {one.demand.level: one.demand.round_macs * num_samples for one in self.levels}

    def seconds_on(self, device: DeviceProfile, num_samples: float) -> dict[int, float]:
        """Return the seconds of a round's local training on so many samples, by level, on ``device``."""
        speed, _ = device.speed_for(self.network, self.family)
        return {one.demand.level: training_seconds(one.demand, speed, 1) * num_samples for one in self.levels}
