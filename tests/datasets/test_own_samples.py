"""FDSE's and FedCMD's partitions."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedml_dapper.datasets import Suite, dirichlet_draws
from fedml_dapper.datasets.dirichlet_draws import MIN_SAMPLES
from fedml_dapper.datasets.own_samples import OwnSamples, dirichlet, dirichlet_halves, one_per_domain
from fedml_dapper.errors import ConfigError, DataError

MakeSuite = Callable[..., Suite]


class Drawn:
    """A generator whose Dirichlet draws are written down, and whose permutations reverse."""

    def __init__(self, *draws: list[float]) -> None:
        self._draws = iter(draws)

    def dirichlet(self, alphas: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
        draw = np.array([next(self._draws) for _ in range(count)])
        assert draw.shape[1] == len(alphas)
        return draw

    def permutation(self, items: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return items[::-1]


@pytest.fixture(autouse=True)
def _draw_by_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirichlet_draws, "AT_ONCE", 1)


def labels_of(*sizes: int) -> np.ndarray[Any, Any]:
    return np.repeat(np.arange(len(sizes)), sizes)


def owned_by(parts: list[OwnSamples]) -> list[int]:
    return torch.cat([indices for own in parts for indices in (own.train, own.validation, own.test)]).tolist()


def test_shares_of_a_class_are_cut_at_the_floor_of_cumulative_proportions() -> None:
    rng = Drawn([0.333, 0.333, 0.334], [0.1, 0.45, 0.45])
    first, second, third = dirichlet(labels_of(100, 200), 3, 1.0, rng)  # type: ignore[arg-type]
    # class 0: cuts at floor(33.3), floor(66.6); class 1: at 20, 110; each class reversed
    assert first.tolist() == [*range(67, 100), *range(280, 300)]
    assert second.tolist() == [*range(34, 67), *range(190, 280)]
    assert third.tolist() == [*range(34), *range(100, 190)]


def test_clients_with_their_even_share_get_no_more() -> None:
    rng = Drawn([0.5, 0.25, 0.25], [0.8, 0.1, 0.1])
    first, second, third = dirichlet(labels_of(200, 200), 3, 1.0, rng)  # type: ignore[arg-type]
    assert [len(first), len(second), len(third)] == [100 + 160, 50 + 20, 50 + 20]  # 100 < 400 / 3
    rng = Drawn([0.75, 0.125, 0.125], [0.5, 0.375, 0.125])
    first, second, third = dirichlet(labels_of(200, 200), 3, 1.0, rng)  # type: ignore[arg-type]
    assert [len(first), len(second), len(third)] == [150, 25 + 150, 25 + 50]  # 150 is full; 3 : 1 among the others


def test_the_whole_draw_is_repeated_until_everyone_has_enough() -> None:
    poor = [[0.9, 0.1], [0.9, 0.1]]  # the first is full after class 0, so the second gets all of class 1: 10 + 30
    fair = [[0.5, 0.5], [0.5, 0.5]]
    rng = Drawn(*poor, *fair)
    first, second = dirichlet(labels_of(100, 29), 2, 0.1, rng)  # type: ignore[arg-type]
    assert [len(first), len(second)] == [50 + 14, 50 + 15]


@pytest.mark.parametrize("at_once", [1, 64])
@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_every_sample_goes_to_one_client_and_everyone_has_enough(
    alpha: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dirichlet_draws, "AT_ONCE", at_once)
    labels = np.random.default_rng(0).integers(10, size=12_000)
    held = dirichlet(labels, 20, alpha, np.random.default_rng(1))
    assert sorted(np.concatenate(held).tolist()) == list(range(12_000))
    assert min(len(indices) for indices in held) >= MIN_SAMPLES
    assert all((np.diff(indices) > 0).all() for indices in held)


def test_a_small_alpha_is_less_even_than_a_large_one() -> None:
    labels = np.random.default_rng(0).integers(10, size=12_000)

    def largest_class_share(alpha: float) -> float:
        held = dirichlet(labels, 20, alpha, np.random.default_rng(1))
        return float(np.mean([np.bincount(labels[indices]).max() / len(indices) for indices in held]))

    assert largest_class_share(0.1) > largest_class_share(1.0) + 0.15 > largest_class_share(100.0) + 0.3


def test_an_impossible_partition_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"399 samples are too few for 10 .*client_num_in_total to 9 or less"):
        dirichlet(labels_of(399), 10, 1.0, np.random.default_rng(0))
    monkeypatch.setattr(dirichlet_draws, "MAX_DRAWS", 20)
    monkeypatch.setattr(dirichlet_draws, "_PARTS_TO_JUDGE", 1)
    monkeypatch.setattr(dirichlet_draws, "_DRAWS_OF_A_PROPOSAL", 20)
    with pytest.raises(ConfigError, match=r"dirichlet_alpha: in each of 20 draws with 0.01 .* raise it to .* or lower"):
        dirichlet(labels_of(400, 410), 10, 0.01, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("sizes", "clients", "alpha"),
    [((350,) * 10, 50, 0.05), ((200,) * 10, 40, 0.001), ((4000,) * 2, 50, 0.1)],
)
def test_draws_without_hope_end_soon_with_an_alpha_that_works(
    sizes: tuple[int, ...], clients: int, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dirichlet_draws, "AT_ONCE", 64)
    with pytest.raises(ConfigError, match=rf"in each of 1,024 draws with {alpha:g} ") as caught:
        dirichlet(labels_of(*sizes), clients, alpha, np.random.default_rng(3))
    proposal = float(re.search(r"raise it to (\S+), which works", str(caught.value))[1])  # type: ignore[index]
    assert proposal > alpha
    held = dirichlet(labels_of(*sizes), clients, proposal, np.random.default_rng(3))
    assert min(map(len, held)) >= MIN_SAMPLES
    lower = float(f"{proposal * 0.7:.2g}")
    monkeypatch.setattr(dirichlet_draws, "MAX_DRAWS", 512)
    with pytest.raises(ConfigError, match=r"dirichlet_alpha: in each of"):
        dirichlet(labels_of(*sizes), clients, lower, np.random.default_rng(3))


def test_where_no_alpha_helps_fewer_clients_are_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirichlet_draws, "AT_ONCE", 64)
    monkeypatch.setattr(dirichlet_draws, "MAX_DRAWS", 128)
    monkeypatch.setattr(dirichlet_draws, "_DRAWS_OF_A_PROPOSAL", 128)
    with pytest.raises(ConfigError, match=r"no higher one works soon either; lower train_args.client_num_in_total"):
        dirichlet(labels_of(*[20] * 20), 10, 0.1, np.random.default_rng(0))  # 40 each, to the sample


def test_what_may_come_about_is_drawn_on_with_a_word_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dirichlet_draws, "AT_ONCE", 64)
    monkeypatch.setattr(dirichlet_draws, "_TOLD_EVERY", 100)
    held = dirichlet(labels_of(2000, 2000), 12, 0.1, np.random.default_rng(1))
    assert min(map(len, held)) >= MIN_SAMPLES
    told = [record.getMessage() for record in caplog.records]
    assert "drawn 128 times of at most 500,000 so far" in told[0]
    assert len(told) > 5


def test_chances_are_not_put_below_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or draws would be given up that succeed."""
    monkeypatch.setattr(dirichlet_draws, "AT_ONCE", 64)
    rng = np.random.default_rng(0)
    for sizes, clients, alpha in (([700] * 10, 15, 0.1), ([200] * 10, 20, 0.5), ([2000] * 2, 10, 0.1)):
        drawn = [dirichlet_draws._draw(np.array(sizes), clients, alpha, rng)[0] for _ in range(64)]
        short = (np.concatenate(drawn).sum(axis=1) < MIN_SAMPLES).sum(axis=1)
        assert 0 < (short == 0).mean() < 1.05 * dirichlet_draws._chance(short.mean(), clients) < 1


def test_proportions_that_all_fall_on_full_clients_are_a_failed_draw() -> None:
    stuck, fair = [[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]
    first, second = dirichlet(labels_of(100, 60), 2, 0.1, Drawn(*stuck, *fair))  # type: ignore[arg-type]
    assert [len(first), len(second)] == [80, 80]


def test_each_client_halves_what_it_holds(small_suite: MakeSuite) -> None:
    suite = small_suite([801])  # and 4 test images, which are dealt out too
    parts = dirichlet_halves(suite, 5, 1.0, seed=1)
    assert sorted(owned_by(parts)) == list(range(805))
    for own in parts:
        held = len(own.train) + len(own.test)
        assert (own.domain, len(own.train), len(own.validation)) == (0, held // 2, 0)
        assert (own.train.diff() > 0).all()
        assert own.test.min() < own.train.max()  # mixed, not cut in the middle


def test_dirichlet_wants_a_single_data_set(small_suite: MakeSuite) -> None:
    with pytest.raises(ConfigError, match=r"small has 2 domains; choose a data set such as mnist"):
        dirichlet_halves(small_suite([400, 400]), 2, 1.0, seed=1)


def test_a_domain_each_in_eight_one_one(small_suite: MakeSuite) -> None:
    suite = small_suite([1119, 954, 153, 291])  # 4 test images each: the sizes of Office-Caltech10
    parts = one_per_domain(suite, 4, seed=1)
    assert [own.domain for own in parts] == [0, 1, 2, 3]
    sizes = [(len(own.train), len(own.validation), len(own.test)) for own in parts]
    assert sizes == [(899, 112, 112), (767, 96, 95), (126, 16, 15), (236, 30, 29)]
    for own, total in zip(parts, (1123, 958, 157, 295), strict=True):
        assert sorted(owned_by([own])) == list(range(total))
        assert own.test.max() - own.test.min() > total / 2  # drawn, not cut off the end


def test_a_domain_too_small_to_be_tested_on_is_named(small_suite: MakeSuite) -> None:
    with pytest.raises(DataError, match=r"a tenth of a domain, and d1 has 9 samples; give it 10 or more, leave it out"):
        one_per_domain(small_suite([40, 5]), 2, seed=1)
    assert [len(own.test) for own in one_per_domain(small_suite([40, 6]), 2, seed=1)] == [4, 1]


def test_too_few_samples_for_a_single_client_name_another_remedy() -> None:
    with pytest.raises(ConfigError, match=r"24 samples are too few for 2 clients of 40 or more; choose another part"):
        dirichlet(labels_of(12, 12), 2, 0.5, Drawn())  # type: ignore[arg-type]


def test_one_per_domain_wants_as_many_clients_as_domains(small_suite: MakeSuite) -> None:
    with pytest.raises(ConfigError, match=r"2 domains of small, not 10; set train_args.client_num_in_total to 2"):
        one_per_domain(small_suite([40, 40]), 10, seed=1)


@pytest.mark.parametrize("draw", [lambda suite, seed, share: one_per_domain(suite, 1, seed, share),
                                  lambda suite, seed, share: dirichlet_halves(suite, 3, 0.5, seed, share)])  # fmt: skip
def test_the_seed_alone_decides_and_a_share_only_thins_training(
    small_suite: MakeSuite, draw: Callable[..., list[OwnSamples]]
) -> None:
    suite = small_suite([400])
    whole, again, other, thin = draw(suite, 1, None), draw(suite, 1, None), draw(suite, 2, None), draw(suite, 1, 0.25)
    assert owned_by(whole) == owned_by(again) != owned_by(other)
    for own, thinner in zip(whole, thin, strict=True):
        assert torch.equal(own.test, thinner.test)
        assert torch.equal(own.validation, thinner.validation)
        assert set(thinner.train.tolist()) <= set(own.train.tolist())
        assert len(thinner.train) == len(own.train) // 4
