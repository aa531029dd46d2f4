"""The catalogue finds each method in the file of its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedml_dapper.methods import METHODS, FedAvg, catalogue


def test_every_file_is_listed_and_holds_the_method_of_its_name() -> None:
    assert set(METHODS) == {file.stem for file in Path(catalogue.__path__[0]).glob("[!_]*.py")}
    assert [METHODS[name].name for name in METHODS] == list(METHODS)
    assert METHODS["fedavg"] is FedAvg is METHODS.find("fedavg")
    assert len(METHODS) == len(list(METHODS))


def test_what_is_not_there_is_missing_as_in_any_mapping() -> None:
    assert "contract" not in METHODS
    assert METHODS.get("contract") is None
    with pytest.raises(KeyError, match="daperfl"):
        METHODS["daperfl"]
