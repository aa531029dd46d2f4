from pathlib import Path

import numpy as np
import pytest

from fedml_dapper.config import DataArgs
from fedml_dapper.datasets import DomainStatus, find_domains, missing_domains
from fedml_dapper.errors import ConfigError


def _write(file: Path, count: int) -> None:
    np.savez(file, x=np.zeros((count, 2, 2), dtype=np.uint8), y=np.zeros(count, dtype=np.int64))


def test_found_stand_in_damaged_and_missing(tmp_path: Path) -> None:
    _write(tmp_path / "digits_mnist.npz", 20)
    _write(tmp_path / "digits_mnistm_subset.npz", 10)
    (tmp_path / "digits_usps.npz").write_bytes(b"broken")
    mnist, usps, svhn, syn = find_domains(DataArgs(dataset="digits", data_cache_dir=tmp_path))
    places = ("digits_mnist.npz", "digits/mnist/", "torchvision/ (MNIST)")
    assert mnist == DomainStatus("digits", "mnist", "digits_mnist.npz", 16, 4, True, places)
    assert usps.source is None
    assert "digits_usps.npz: not a readable" in (usps.problem or "")
    assert (svhn.source, svhn.problem, svhn.num_train) == (None, None, 0)
    assert "digits_svhn_small.npz" in svhn.looked_in
    assert (syn.domain, syn.source, syn.num_train, syn.is_subset) == ("mnistm", "digits_mnistm_subset.npz", 8, True)
    assert syn.looked_in == ("digits_syn.npz", "digits/syn/", "digits_mnistm_subset.npz")


def test_a_quick_look_says_what_is_missing_without_reading(tmp_path: Path) -> None:
    assert missing_domains("digits_offline", tmp_path) == []
    assert missing_domains("digits", tmp_path) == ["mnist", "usps", "svhn", "syn"]
    (tmp_path / "digits_usps.npz").write_bytes(b"broken")
    (tmp_path / "digits_mnistm_subset.npz").write_bytes(b"stands in for syn")
    (tmp_path / "digits" / "mnist").mkdir(parents=True)
    for name in ("train", "test"):
        (tmp_path / "torchvision").mkdir(exist_ok=True)
        (tmp_path / "torchvision" / f"{name}_32x32.mat").touch()
    assert missing_domains("digits", tmp_path) == []
    (tmp_path / "torchvision" / "test_32x32.mat").unlink()
    assert missing_domains("digits", tmp_path) == ["svhn"]


def test_the_embedded_suite_is_always_there(tmp_path: Path) -> None:
    rows = find_domains(DataArgs(dataset="digits_offline", data_cache_dir=tmp_path))
    assert [(row.domain, row.num_train, row.num_test, row.is_subset) for row in rows] == [
        (name, 670, 200, False) for name in ("scans", "blended", "fonts", "segments")
    ]


def test_an_unknown_suite(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean `digits`"):
        find_domains(DataArgs(dataset="digit", data_cache_dir=tmp_path))
