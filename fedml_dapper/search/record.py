"""Plan and state of a hyper-parameter search."""

from __future__ import annotations

from statistics import fmean
from typing import Any, Literal

from fedml_dapper.config import Settings, check, merge
from fedml_dapper.federation.run_folder.records import Record
from fedml_dapper.methods import METHODS
from fedml_dapper.search.choices import SamplerName
from fedml_dapper.search.space import Params, Range, SearchSpace

TrialState = Literal["running", "finished", "pruned", "refused"]


class SearchPlan(Record):
    """All that determines a search, except for the number of its trials."""

    settings: dict[str, Any]
    """Settings of the experiment; the searched ones are laid over them."""
    suite: str
    """The data's label; it says "(subset)" where the data are not the complete set."""
    seeds: tuple[int, ...]
    """Seeds of every trial, so that trials differ in nothing but what is searched."""
    sampler: SamplerName
    prune: bool
    """Whether trials stop early whose validation accuracy stays below the median of the others'."""
    ranges: dict[str, Range]

    @property
    def method(self) -> str:
        name: str = self.settings["dapper_args"]["method"]
        return name

    @property
    def space(self) -> SearchSpace:
        method = METHODS.find(self.method)
        return SearchSpace(method, self.settings["dapper_args"]["params"].get(method.name, {}), self.ranges)

    @property
    def rounds(self) -> int:
        """Rounds of a trial, over all its seeds."""
        rounds: int = self.settings["train_args"]["comm_round"]
        return rounds * len(self.seeds)

    def overlay(self, params: Params) -> dict[str, Any]:
        """Return ``params``, with the method whose they are, as a section of an experiment file."""
        return {"dapper_args": {"method": self.method, "params": {METHODS.find(self.method).name: params}}}

    def run_settings(self, params: Params, seed: int) -> Settings:
        """Return the settings of one run of a trial."""
        values = merge(merge(self.settings, self.overlay(params)), {"common_args": {"random_seed": seed}})
        return check(Settings, values, where="search")


class SeedResult(Record):
    """Result of one run of a trial."""

    seed: int
    validation: tuple[float, ...]
    """Accuracy on validation samples, tested round by tested round."""
    chosen_round: int
    """The first round that is best on validation samples."""
    validation_accuracy: float
    test_accuracy: float
    """Test accuracy of the chosen round. The search never looks at it."""
    seconds: float


class Trial(Record):
    """One combination of the searched settings, and its results."""

    number: int
    """Number of the trial, from 1."""
    params: Params
    state: TrialState = "running"
    results: tuple[SeedResult, ...] = ()
    """Results by seed; a pruned trial lacks seeds that it did not reach, and rounds of the last."""
    message: str = ""
    """Why the experiment cannot be run with these settings, if it is refused."""

    @property
    def validation_accuracy(self) -> float:
        """What is maximised: mean over the seeds, percent; of a pruned trial, over the rounds that it reached."""
        return fmean(result.validation_accuracy for result in self.results)

    @property
    def curve(self) -> tuple[float, ...]:
        """Validation accuracy of every tested round, seed after seed."""
        return tuple(accuracy for result in self.results for accuracy in result.validation)

    @property
    def test_accuracy(self) -> float:
        """Mean over the seeds, percent."""
        return fmean(result.test_accuracy for result in self.results)


class SearchRecord(Record):
    """State of a search."""

    plan: SearchPlan
    trials: tuple[Trial, ...] = ()

    @property
    def measured(self) -> tuple[Trial, ...]:
        """Trials that have a validation accuracy, in order."""
        return tuple(trial for trial in self.trials if trial.state != "running" and trial.results)

    @property
    def ranking(self) -> list[Trial]:
        """Finished trials, the best first; of equally good ones the earlier is first."""
        finished = [trial for trial in self.trials if trial.state == "finished"]
        return sorted(finished, key=lambda trial: -trial.validation_accuracy)
