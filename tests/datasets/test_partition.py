from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedml_dapper.config import ClientArgs, DataArgs
from fedml_dapper.datasets import (
    ClientSamples,
    ImageSet,
    Partition,
    Suite,
    assign_domains,
    client_data,
    divide,
    partition,
    silo_division,
)
from fedml_dapper.errors import ConfigError, DataError

MakeSuite = Callable[..., Suite]


def held_in(division: Partition, domain: int) -> list[list[int]]:
    pairs = zip(division.domains, division.indices, strict=True)
    return [held.tolist() for of, held in pairs if of == domain]


@pytest.mark.parametrize("order", ["shuffled", "official"])
def test_every_domain_has_a_client(order: str) -> None:
    for seed in range(50):
        domains = assign_domains(4, 10, np.random.default_rng(seed), order, None)  # type: ignore[arg-type]
        assert len(domains) == 10
        assert set(domains) == {0, 1, 2, 3}


def test_official_order_ends_with_the_guaranteed_clients() -> None:
    ends = {tuple(assign_domains(4, 10, np.random.default_rng(seed), "official", None)[-4:]) for seed in range(50)}
    assert ends == {(0, 1, 2, 3)}


def test_shuffled_order_spreads_the_guaranteed_clients() -> None:
    ends = {tuple(assign_domains(4, 10, np.random.default_rng(seed), "shuffled", None)[-4:]) for seed in range(50)}
    assert len(ends) > 20


def test_free_draws_are_uniform_over_domains() -> None:
    rng = np.random.default_rng(0)
    counts = Counter(domain for _ in range(1000) for domain in assign_domains(4, 10, rng, "official", None)[:6])
    assert all(abs(counts[domain] - 1500) < 150 for domain in range(4))


def test_a_limit_holds_and_changes_nothing_while_it_does_not_bind() -> None:
    for seed in range(50):
        free, loose, tight, tightest = (
            assign_domains(4, 10, np.random.default_rng(seed), "shuffled", limit) for limit in (None, 7, 4, 3)
        )
        assert free == loose
        assert max(Counter(tight).values()) <= 4
        assert sorted(Counter(tightest).values()) in ([2, 2, 3, 3], [1, 3, 3, 3])


def test_too_few_clients_or_too_low_a_limit() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ConfigError, match=r"3 clients cannot cover 4 domains.*client_num_in_total to 4"):
        assign_domains(4, 3, rng, "shuffled", None)
    with pytest.raises(ConfigError, match=r"cannot hold 10 clients.*max_clients_per_domain to 3"):
        assign_domains(4, 10, rng, "shuffled", 2)


def test_clients_of_a_domain_are_disjoint_while_it_lasts(small_suite: MakeSuite) -> None:
    division = partition(small_suite([100, 40]), 6, 0.2, seed=3, max_per_domain=5)
    for domain, size in ((0, 20), (1, 8)):
        clients = held_in(division, domain)
        assert all(len(held) == size for held in clients)
        together = [index for held in clients for index in held]
        assert len(set(together)) == len(together)
    assert division.notes == ()


def test_what_is_exhausted_is_shared_and_noted(small_suite: MakeSuite) -> None:
    division = partition(small_suite([40]), 4, 0.4, seed=1)
    first, second, third, fourth = (set(held.tolist()) for held in division.indices)
    assert all(len(held) == 16 for held in (first, second, third, fourth))
    assert not first & second
    assert first | second | third == set(range(40))
    assert len(division.notes) == 2
    assert division.notes[0].startswith("client 2 (domain d0): 8 of 16 samples are also held by earlier clients")
    assert division.notes[1].startswith("client 3 (domain d0): 16 of 16 ")


def test_the_share_is_taken_as_written(small_suite: MakeSuite) -> None:
    for share, size in ((0.29, 29), (0.2, 20), (0.999, 99), (1.0, 100)):
        assert len(partition(small_suite([100]), 1, share, seed=1).indices[0]) == size


def test_no_share_means_the_suites_own(small_suite: MakeSuite) -> None:
    assert len(partition(small_suite([100], share=0.35), 1, None, seed=1).indices[0]) == 35


def test_the_same_seed_gives_the_same_partition(small_suite: MakeSuite) -> None:
    suite = small_suite([50, 60, 70], swap=True)
    first, again, other = (partition(suite, 9, 0.2, seed=seed) for seed in (1, 1, 2))
    assert first.domains == again.domains
    assert all(torch.equal(a, b) for a, b in zip(first.indices, again.indices, strict=True))
    assert [held.tolist() for held in first.indices] != [held.tolist() for held in other.indices]


def test_indices_are_sorted_and_unique(small_suite: MakeSuite) -> None:
    for swap in (False, True):
        for held in partition(small_suite([37, 21], swap=swap), 12, 0.3, seed=4).indices:
            assert (held.diff() > 0).all()


def test_missing_classes_are_swapped_in_without_sharing_while_possible(small_suite: MakeSuite) -> None:
    lacking = 0
    for seed in range(20):
        suite = small_suite([100], swap=True)
        plain = partition(small_suite([100]), 10, 0.05, seed=seed)
        labels = suite.domains[0].train.labels
        lacking += sum(len(labels[held].unique()) < 4 for held in plain.indices)
        division = partition(suite, 10, 0.05, seed=seed)
        assert all(len(labels[held].unique()) == 4 and len(held) == 5 for held in division.indices)
        together = torch.cat(division.indices).tolist()
        assert len(set(together)) == len(together)
        assert division.notes == ()
    assert lacking > 20


def test_a_traded_sample_returns_to_the_pool(small_suite: MakeSuite) -> None:
    suite = small_suite([100], swap=True)
    labels = suite.domains[0].train.labels
    for seed in range(20):  # 25 samples a class: one of each for each of 25 clients, if none is lost
        division = partition(suite, 25, 0.04, seed=seed)
        assert all(len(labels[held].unique()) == 4 for held in division.indices)
        assert sorted(torch.cat(division.indices).tolist()) == list(range(100))
        assert division.notes == ()


def test_a_class_that_others_hold_is_swapped_in_with_a_note(small_suite: MakeSuite) -> None:
    suite = small_suite([4], swap=True)
    suite.domains[0].train.labels.copy_(torch.tensor([0, 0, 0, 1]))
    first, second = partition(suite, 2, 0.5, seed=1).indices
    assert 3 in first
    assert 3 in second
    [note] = partition(suite, 2, 0.5, seed=1).notes
    assert note.startswith("client 1 (domain d0): 1 of 2 ")


def test_a_draw_too_small_for_all_classes_keeps_its_size(small_suite: MakeSuite) -> None:
    suite = small_suite([100], swap=True)
    held = partition(suite, 1, 0.03, seed=2).indices[0]
    assert len(held) == 3
    assert len(suite.domains[0].train.labels[held].unique()) == 3


def test_clients_get_the_samples_of_their_indices(small_suite: MakeSuite) -> None:
    suite = small_suite([100, 40])
    division = partition(suite, 4, 0.2, seed=1)
    for client, data in enumerate(client_data(suite, division, batch_size=4, seed=1)):
        domain = suite.domains[division.domains[client]]
        assert (data.client_id, data.domain) == (client, domain.name)
        assert torch.equal(data.samples.images, domain.train.images[division.indices[client]])
        assert torch.equal(data.samples.labels, domain.train.labels[division.indices[client]])


def test_a_share_of_less_than_two_samples_is_an_error(small_suite: MakeSuite) -> None:
    suite = small_suite([100, 10])
    with pytest.raises(
        DataError, match=r"domain d1\) gets one training sample.*raise data_args.client_share, 0.1 of 10, to 2/10"
    ):
        client_data(suite, partition(suite, 2, 0.1, seed=1), batch_size=4, seed=1)


def test_validation_samples_are_nobodys(small_suite: MakeSuite) -> None:
    plain = partition(small_suite([100, 40]), 6, 0.2, seed=3)
    division = partition(small_suite([100, 40]), 6, 0.2, seed=3, validation_share=0.25)
    assert [len(held_out) for held_out in division.validation] == [25, 10]
    assert [len(held_out) for held_out in plain.validation] == [0, 0]
    assert division.domains == plain.domains
    for client, domain in enumerate(division.domains):
        assert len(division.indices[client]) == len(plain.indices[client])  # as many as without
        assert not set(division.indices[client].tolist()) & set(division.validation[domain].tolist())


def test_validation_samples_do_not_depend_on_the_clients(small_suite: MakeSuite) -> None:
    few, many, other = (
        partition(small_suite([50, 60]), clients, 0.1, seed=seed, validation_share=0.3)
        for clients, seed in ((2, 1), (9, 1), (9, 2))
    )
    assert all(torch.equal(a, b) for a, b in zip(few.validation, many.validation, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(few.validation, other.validation, strict=True))


def test_too_little_left_beside_validation(small_suite: MakeSuite) -> None:
    with pytest.raises(ConfigError, match=r"validation_share: 0.6 and client_share 0.5 together.*100 training.*d0"):
        partition(small_suite([100]), 1, 0.5, seed=1, validation_share=0.6)


def test_stated_clients_get_their_domains_and_shares(small_suite: MakeSuite) -> None:
    suite = small_suite([100, 40, 20])
    stated = [ClientArgs(domain="d1"), ClientArgs(domain="d0", share=0.5), ClientArgs(domain="d1")]
    division = partition(suite, 3, 0.2, seed=1, stated=stated)
    assert division.domains == (1, 0, 1)
    assert [len(held) for held in division.indices] == [8, 50, 8]
    assert not set(division.indices[0].tolist()) & set(division.indices[2].tolist())
    assert division.notes == ("no client holds images of domain d2; the global model is tested on it",)


def test_a_stated_domain_has_to_exist(small_suite: MakeSuite) -> None:
    with pytest.raises(ConfigError, match=r"data_args.clients: no domain `d7`; known: d0, d1"):
        partition(small_suite([40, 40]), 1, None, seed=1, stated=[ClientArgs(domain="d7")])


def test_clients_that_hold_more_than_there_is_look_at_one_copy(small_suite: MakeSuite) -> None:
    suite = small_suite([40, 40])
    for share, num_clients, copies in ((0.2, 6, True), (0.4, 12, False)):
        division = partition(suite, num_clients, share, seed=1)
        clients = client_data(suite, division, 4, seed=1)
        assert {isinstance(client.samples, ImageSet) for client in clients if isinstance(client, ClientSamples)} == {
            copies
        }
        for client, held, domain in zip(clients, division.indices, division.domains, strict=True):
            train = suite.domains[domain].train
            alone = ClientSamples(client.client_id, client.domain, train.take(held), 4, seed=1)
            for one, other in zip(client.batches(2, 1), alone.batches(2, 1), strict=True):
                assert torch.equal(one.inputs, other.inputs)
                assert torch.equal(one.targets, other.targets)


def test_many_clients_that_share_have_one_note(small_suite: MakeSuite) -> None:
    division = partition(small_suite([40]), 400, 0.1, seed=1)
    assert division.notes == (
        "390 of 400 clients hold samples that others hold as well; a smaller client_share or fewer clients avoid this",
    )


@pytest.mark.parametrize(
    ("settings", "clients", "message"),
    [
        ({"validation_share": 0.99}, 2, r"lower data_args.validation_share, which puts 59 of 60 aside"),
        ({"client_share": 0.02}, 2, r"raise data_args.client_share, 0.02 of 60, to 2/60 or more"),
        ({}, 50, r"client_num_in_total: 50 clients divide 60 samples"),
        (
            {"clients": [{"domain": "d0", "share": 0.02}]},
            1,
            r"raise its share in data_args.clients, 0.02 of 60, to 2/60",
        ),
        (
            {"partition": "one_per_domain", "client_share": 0.01},
            1,
            r"raise data_args.client_share, 0.01 of 52, to 2/52",
        ),
        (
            {"partition": "dirichlet", "dirichlet_alpha": 1.0, "client_share": 0.01},
            1,
            r"client_share, 0.01 of 32, to 2/32",
        ),
    ],
)
def test_what_to_do_about_too_few_samples_fits_the_cause(
    small_suite: MakeSuite, settings: dict[str, Any], clients: int, message: str
) -> None:
    with pytest.raises(
        DataError, match=rf"(domain d0\) gets (one|no) training sample, and training needs 2.*){message}"
    ):
        divide(replace(small_suite([60]), client_share=None), DataArgs(dataset="x", **settings), clients, 4, seed=1)


def test_a_domain_of_one_sample_needs_more(small_suite: MakeSuite) -> None:
    with pytest.raises(DataError, match=r"client 0 \(domain d0\) gets no training sample.*give domain d0 more"):
        divide(small_suite([1]), DataArgs(dataset="x"), 1, 4, seed=1)
    with pytest.raises(DataError, match=r"client 3 \(domain d0\) gets one training sample.*give the silo more"):
        silo_division(small_suite([1]), 3, 4, seed=1)
