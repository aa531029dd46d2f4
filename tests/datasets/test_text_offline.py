"""The suite ``text_offline``: what is in it, that parts share nothing, and what is said where texts are missing."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import DataArgs
from fedml_dapper.datasets import Suite, find_domains, load_suite
from fedml_dapper.datasets.text_offline import DOMAINS, documents, load
from fedml_dapper.datasets.text_offline.documents import KINDS, Document, Kind
from fedml_dapper.datasets.text_offline.passages import passages
from fedml_dapper.errors import ConfigError, DataError

SMALL = {"samples": 40}


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite(DataArgs(dataset="text_offline", arguments=SMALL))


def tokens(suite: Suite, domain: int, part: int) -> Tensor:
    [source] = suite.domains[domain].parts[part].sources  # type: ignore[attr-defined]
    return source.dataset.tensors[0]


def kind(*texts: str) -> Kind:
    found = [Document(str(number), text.__str__) for number, text in enumerate(texts)]
    return Kind(lambda: found, lambda: "made up")


def words(rows: Sequence[Tensor]) -> list[str]:
    return ["".join(map(chr, row.tolist())) for row in rows]


def test_four_domains_of_equal_size(suite: Suite) -> None:
    assert [domain.name for domain in suite.domains] == list(DOMAINS)
    assert [[len(part) for part in domain.parts] for domain in suite.domains] == [[40, 8, 4]] * 4
    assert (suite.num_classes, suite.example.shape) == (128, (1, 64))  # type: ignore[union-attr]


def test_it_is_real_text(suite: Suite) -> None:
    for domain, word in enumerate(("the", "array", "copyright", "letter")):
        assert word in " ".join(words(tokens(suite, domain, 0))).lower()


def test_texts_of_other_versions_have_another_label_and_source(suite: Suite) -> None:
    fewer = load_suite(DataArgs(dataset="text_offline", arguments={"samples": 30}))
    assert re.fullmatch(r"text_offline \(content [0-9a-f]{8}\)", suite.label)
    assert fewer.label != suite.label
    assert all(" (content " in domain.source for domain in suite.domains)
    assert suite.domains[1].source.startswith("scikit-learn 1.")
    assert len({domain.source[-9:] for domain in suite.domains}) == 4


def test_it_is_the_same_at_every_call(suite: Suite) -> None:
    again = passages("names", KINDS["names"], 64, (40, 8, 4))
    assert torch.equal(again[0].tensors[0], tokens(suite, 3, 0))


def test_no_passage_is_in_two_parts() -> None:
    found = load(samples=100)
    for parts in found.values():
        seen = [set(words(part.tensors[0])) for part in parts]
        assert not seen[0] & seen[1]
        assert not seen[0] & seen[2]
        assert not seen[1] & seen[2]


def test_the_base_sees_no_test_passage_of_a_domain() -> None:
    base = " ".join(words(load(domains=["modules"], samples=400)["modules"][0].tensors[0]))
    for parts in load(samples=100).values():
        assert not any(passage in base for passage in words(parts[1].tensors[0]))


def test_a_paragraph_that_was_said_is_left_out_of_later_documents() -> None:
    shared = "this paragraph is in every one of these documents"
    texts = [f"{shared}\n\n{letter * 60}" for letter in "abcdef"]
    parts = passages("made up", kind(*texts), 16, (4, 1, 1))
    said = " ".join(word for part in parts for word in words(part.tensors[0]))
    assert said.count("this paragraph") == 1


def test_the_end_of_a_text_is_padded_and_counts_nowhere() -> None:
    parts = passages("made up", kind(*(letter * 24 for letter in "abcd")), 20, (1, 1, 1))
    inputs, targets = parts[0][0]
    assert inputs.shape == targets.shape == (20,)
    parts = passages("made up", kind(*(letter * 18 for letter in "abcd")), 20, (1, 1, 1))
    inputs, targets = parts[0][0]
    assert inputs[18:].tolist() == [0, 0]
    assert targets[17:].tolist() == [-100, -100, -100]
    assert torch.equal(targets[:17], inputs[1:18])


def test_what_ascii_cannot_print_is_a_space() -> None:
    [part, *_] = passages("made up", kind("caf\u00e9 and\ttea for everybody", "b" * 30, "c" * 30), 22, (1, 1, 1))
    known = {"caf  and tea for everyb", "b" * 22, "c" * 22}
    assert {word[:22] for word in words(part.tensors[0])} <= {word[:22] for word in known}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 10**6, "domains": ["licences"]}, "domain licences has .* passages of 64 letters for train"),
        ({"domains": ["licenses"]}, "no texts `licenses`; did you mean `licences`"),
        ({"length": 2}, r"data_args.arguments.length: 2 is too small"),
        ({"size": 2}, r"data_args.arguments: load\(domains"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: dict[str, object], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message) as error:
        load_suite(DataArgs(dataset="text_offline", arguments=arguments))
    assert "\n" not in str(error.value)


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_LICENSED", ("no-such-package",))
    with pytest.raises(DataError, match="made of texts of no-such-package, which is not installed; pip install"):
        KINDS["licences"].documents()


def test_settings_of_pictures_mean_nothing_to_it() -> None:
    with pytest.raises(ConfigError, match=r"data_args\.image_size: means nothing to dataset text_offline"):
        load_suite(DataArgs(dataset="text_offline", image_size=16))


def test_data_check_finds_it() -> None:
    rows = find_domains(DataArgs(dataset="text_offline", arguments=SMALL))
    assert [(row.domain, row.num_train, row.num_test, row.classes) for row in rows] == [
        (name, 40, 8, ()) for name in DOMAINS
    ]
