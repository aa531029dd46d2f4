from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from PIL import Image

from fedml_dapper.config import Settings
from fedml_dapper.search.record import SearchRecord
from fedml_dapper.search.search_figures import history, importance_bars, parameter_panels, save_figures
from fedml_dapper.search.trials import START_POINTS, importances

from .made_up_search import RANGES, made_up_plan, made_up_search, near_three_tenths

SettingsFactory = Callable[..., Settings]


@pytest.fixture
def record(tiny_settings: SettingsFactory) -> SearchRecord:
    plan = made_up_plan(tiny_settings(), suite="digits (subset)", seeds=(1, 2), sampler="tpe")
    return made_up_search(plan, 20, near_three_tenths)


def _texts(figure: Figure) -> str:
    return " ".join(artist.get_text() for artist in figure.findobj(lambda artist: hasattr(artist, "get_text")))


def test_every_figure_says_what_it_shows(record: SearchRecord) -> None:
    for figure in (history(record), parameter_panels(record), importance_bars(record, importances(record))):
        for axes in figure.axes[: len(RANGES)]:
            assert axes.get_xlabel()
        assert figure.axes[0].get_ylabel()
        assert "dapperfl on digits (subset), 2 seeds (1, 2), 20 trials" in _texts(figure)
    assert pyplot.get_fignums() == []


def test_history_shows_each_trial_and_the_best_so_far(record: SearchRecord) -> None:
    axes = history(record).axes[0]
    points = [tuple(point) for collection in axes.collections for point in collection.get_offsets()]
    assert sorted(points) == [(trial.number, trial.validation_accuracy) for trial in record.trials]
    assert [len(collection.get_offsets()) for collection in axes.collections] == [START_POINTS, 12]
    (line,) = axes.get_lines()
    values = [trial.validation_accuracy for trial in record.trials]
    assert list(line.get_ydata())[:-1] == [max(values[: place + 1]) for place in range(len(values))]


def test_stopped_trials_are_marked_and_do_not_count(record: SearchRecord) -> None:
    best = record.ranking[0]
    trials = [t.model_copy(update={"state": "pruned"}) if t == best else t for t in record.trials]
    stopped = record.model_copy(update={"trials": tuple(trials)})
    axes = history(stopped).axes[0]
    assert [len(collection.get_offsets()) for collection in axes.collections][-1] == 1
    assert max(axes.get_lines()[0].get_ydata()) == stopped.ranking[0].validation_accuracy < best.validation_accuracy


def test_panels_show_values_on_their_scale_with_the_best_starred(record: SearchRecord) -> None:
    eps, gamma = parameter_panels(record).axes[:2]
    assert (eps.get_xscale(), gamma.get_xscale()) == ("linear", "log")
    assert (eps.get_xlabel(), gamma.get_xlabel()) == ("eps", "gamma (log scale)")
    points, star = eps.collections
    assert [tuple(point) for point in points.get_offsets()] == [
        (trial.params["eps"], trial.validation_accuracy) for trial in record.trials
    ]
    best = record.ranking[0]
    assert tuple(star.get_offsets()[0]) == (best.params["eps"], best.validation_accuracy)


def test_importances_find_what_matters(record: SearchRecord) -> None:
    shares = importances(record)
    assert next(iter(shares)) == "eps"  # accuracy does not depend on gamma at all
    assert sum(shares.values()) == pytest.approx(1)
    few = record.model_copy(update={"trials": record.trials[:19]})
    assert importances(few) == {}


@pytest.mark.nightly
def test_figures_are_saved_as_pictures_and_for_print(record: SearchRecord, tmp_path: Path) -> None:
    files = save_figures(record, tmp_path)
    assert {file.name for file in files} == {
        f"{name}.{kind}" for name in ("history", "parameters", "importances") for kind in ("png", "pdf")
    }
    for file in files:
        if file.suffix == ".png":
            assert Image.open(file).size > (1000, 300)
        else:
            assert file.read_bytes().startswith(b"%PDF")
    nothing = record.model_copy(update={"trials": ()})
    assert save_figures(nothing, tmp_path) == []
