from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from fedml_dapper.errors import ConfigError
from fedml_dapper.methods import METHODS
from fedml_dapper.search.space import DEFAULT_RANGES, Range, search_space

DAPPERFL, NEFL, FEDDROP = METHODS["dapperfl"], METHODS["nefl"], METHODS["feddrop"]


def test_default_ranges_suit_their_methods() -> None:
    for method, ranges in DEFAULT_RANGES.items():
        assert search_space(METHODS[method], {}, list(ranges), []).ranges == dict(sorted(ranges.items()))


def test_ranges_replace_and_add_to_the_defaults() -> None:
    space = search_space(DAPPERFL, {}, ["eps", "gamma"], ["eps=0.1:0.2", "alpha_0=0.5:0.9"])
    assert space.ranges == {
        "alpha_0": Range(low=0.5, high=0.9),
        "eps": Range(low=0.1, high=0.2),
        "gamma": DEFAULT_RANGES["dapperfl"]["gamma"],
    }
    assert search_space(NEFL, {}, [], ["dynamic_range=0:3"]).ranges["dynamic_range"].integer
    assert not search_space(FEDDROP, {}, [], ["uniform_rho=0.1:0.6"]).ranges["uniform_rho"].integer  # or "max_level"


@pytest.mark.parametrize(
    ("method", "names", "ranges", "message"),
    [
        (DAPPERFL, ["epsi"], [], "--params: `epsi` is no numeric setting of dapperfl; did you mean `eps`?"),
        (DAPPERFL, [], ["gama=0:1"], "--range gama=0:1: `gama` is no numeric setting of dapperfl; did you mean"),
        (DAPPERFL, ["fusion"], [], "`fusion` is no numeric setting of dapperfl; known: alpha_0, alpha_min, eps, gamma"),
        (DAPPERFL, [], [], "nothing to search; name settings by --params; numeric ones of dapperfl: alpha_0"),
        (METHODS["fedavg"], [], [], "numeric ones of fedavg: none"),
        (METHODS["fedheal"], ["tau"], [], "--params tau: no range is known for it; give one, --range tau=LOW:HIGH"),
        (DAPPERFL, [], ["eps"], "--range eps: expected NAME=LOW:HIGH or NAME=LOW:HIGH:log with two numbers"),
        (DAPPERFL, [], ["eps=0.1"], "--range eps=0.1: expected"),
        (DAPPERFL, [], ["eps=low:high"], "--range eps=low:high: expected"),
        (NEFL, [], ["dynamic_range=0:1.5"], "with two whole numbers"),
        (DAPPERFL, [], ["eps=0.3:0.1"], "--range eps=0.3:0.1: the first number must be smaller than the second"),
        (DAPPERFL, [], ["gamma=0:nan"], "--range gamma=0:nan: both ends are finite numbers"),
        (DAPPERFL, [], ["gamma=nan:1"], "--range gamma=nan:1: both ends are finite numbers"),
        (DAPPERFL, [], ["gamma=0:1" + "0" * 400], "both ends are finite numbers"),
        (DAPPERFL, [], ["gamma=0:1", "gamma=0:0.5"], "--range: `gamma` is there twice; give it once"),
        (DAPPERFL, ["eps", "gamma", "eps"], [], "--params: `eps` is there twice; give it once"),
        (DAPPERFL, [], ["gamma=0:1:log"], "--range gamma=0:1:log: a logarithmic range starts above 0"),
        (DAPPERFL, [], ["gamma=0:1:ln"], "--range gamma=0:1:ln: `ln` is no scale; write log, or leave it out"),
        (DAPPERFL, [], ["eps=0.5:1.5"], "--range eps=0.5:1.5: `eps` in dapper_args.params.dapperfl is 1.5: input"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(method, names: list[str], ranges: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=r".*") as caught:
        search_space(method, {}, names, ranges)
    assert message in str(caught.value)


def test_values_stay_in_their_range_and_whole_numbers_are_equally_likely() -> None:
    shares = [(place + 0.5) / 4096 for place in range(4096)]
    steps = Range(low=2, high=5, integer=True)
    assert Counter(steps.at(share) for share in shares) == dict.fromkeys((2, 3, 4, 5), 1024)
    assert all(isinstance(steps.at(share), int) for share in shares)
    decades = Range(low=1e-4, high=1.0, log=True)
    assert Counter(decades.at(share) < 1e-2 for share in shares) == {True: 2048, False: 2048}
    assert (decades.at(0), decades.at(1)) == pytest.approx((1e-4, 1.0))
    for range_ in (steps, decades):
        assert all(range_.distribution()._contains(range_.at(share)) for share in (0, 0.3, 1))


def test_start_points_spread_evenly_and_depend_on_the_seed() -> None:
    space = search_space(DAPPERFL, {}, ["eps", "gamma"], ["eps=0:0.8"])
    points = list(islice(space.points(seed=3), 8))
    assert sorted(int(point["eps"] / 0.1) for point in points) == list(range(8))  # one in each eighth
    assert points == list(islice(space.points(seed=3), 8))
    assert points != list(islice(space.points(seed=4), 8))


@pytest.mark.parametrize(
    ("names", "fixed"),
    [(["alpha_0", "alpha_min"], {}), (["alpha_0"], {"alpha_min": 0.4}), (["alpha_min"], {"alpha_0": 0.2})],
)
def test_the_fusion_weight_does_not_start_below_its_floor(names: list[str], fixed: dict[str, float]) -> None:
    space = search_space(DAPPERFL, fixed, names, [])
    for point in islice(space.points(seed=0), 200):
        values = fixed | point
        assert values["alpha_min"] <= values["alpha_0"]
    assert not space.accepts({"alpha_0": 0.2, "alpha_min": 0.3})
    assert not space.accepts({"alpha_0": 1.2, "alpha_min": 0.1})  # the method's own bound
