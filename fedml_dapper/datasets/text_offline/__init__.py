"""The suite ``text_offline``: four domains of real text that Python and the dependencies ship, letter by letter.

``documentation`` is the pages of Python's ``help()``, ``docstrings`` those of scikit-learn, ``licences`` what packages
are licensed under, ``names`` the names of Unicode's characters. ``modules``, the docstrings of Python's own modules, is
a fifth one for whoever asks for it: a base is trained on it (config/text_base.yaml).

A sample is a passage of 64 letters and, as its target, the letter that follows each. Texts are those of the installed
versions, which each domain's source names; the suite's label has a digest of them, so that results on other texts are
told apart. The suite needs no download and stands for no published benchmark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import cast

from torch.utils.data import TensorDataset

from fedml_dapper.config import DataArgs, did_you_mean
from fedml_dapper.datasets.domain import Domain, Suite
from fedml_dapper.datasets.items import Items
from fedml_dapper.datasets.own_data import own_suite
from fedml_dapper.datasets.text_offline.documents import KINDS
from fedml_dapper.datasets.text_offline.passages import VOCABULARY, passages
from fedml_dapper.errors import ConfigError

TEXT_OFFLINE = "text_offline"
"""Name of the suite."""
DOMAINS = ("documentation", "docstrings", "licences", "names")
_CLIENT_SHARE = 0.25
_FEWEST = 10
"""Fewest passages for training, and fewest letters of one."""
_DIGITS = 8


def load(
    domains: Sequence[str] = DOMAINS, samples: int = 800, length: int = 64
) -> Mapping[str, tuple[TensorDataset, ...]]:
    """Return passages for training, testing and validation by domain.

    Args:
        domains: Names of domains.
        samples: Passages for training; a fifth as many are for testing, and a tenth for validation.
        length: Letters of a passage.

    Raises:
        ConfigError: There is no such domain, or a number is too small.
        DataError: Texts are missing, or too short.
    """
    for name in domains:
        if name not in KINDS:
            raise ConfigError(f"data_args.arguments.domains: no texts `{name}`{did_you_mean(name, KINDS)}")
    for key, value in (("samples", samples), ("length", length)):
        if value < _FEWEST:
            raise ConfigError(f"data_args.arguments.{key}: {value} is too small; give {_FEWEST} or more")
    return {name: _passages(name, samples, length) for name in domains}


@cache  # for the process, as nobody changes passages
def _passages(name: str, samples: int, length: int) -> tuple[TensorDataset, ...]:
    return tuple(passages(name, KINDS[name], length, (samples, samples // 5, samples // 10)))


def load_texts(args: DataArgs) -> Suite:
    """Return the suite, as ``data_args.arguments`` ask for it.

    Raises:
        ConfigError: The arguments do not fit.
        DataError: Texts are missing, or too short.
    """
    suite = own_suite(load, TEXT_OFFLINE, args.model_copy(update={"classes": VOCABULARY}))
    domains = tuple(
        replace(domain, source=f"{KINDS[domain.name].origin()} ({_content(domain)})") for domain in suite.domains
    )
    return replace(suite, domains=domains, client_share=_CLIENT_SHARE, remarks=(_content(*domains),))


def _content(*domains: Domain) -> str:
    """Return words by which texts of other versions are told apart: a digest of all passages."""
    digest = hashlib.sha256()
    for part in (part for domain in domains for part in domain.parts):
        [source] = cast(Items, part).sources
        digest.update(cast(TensorDataset, source.dataset).tensors[0].numpy().tobytes())
    return f"content {digest.hexdigest()[:_DIGITS]}"
