"""What users name in their settings: found, refused with a remedy, and told apart by source."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import fedml_dapper
from fedml_dapper.config import Reference, load_settings, sources
from fedml_dapper.config.references import short_name
from fedml_dapper.errors import ConfigError
from fedml_dapper.registry import Registry

CONFIG = Path(__file__).parents[1] / "config"


def no_class(found: object) -> str:
    return "" if isinstance(found, type) else "no class; name a class"


ANIMALS: Registry[type] = Registry("dapper_args.method", "animal", {"cat": int, "dog": float}, no_class)


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    (tmp_path / "cages.py").write_text("SIZE = 3\n")
    file = tmp_path / "zoo.py"
    file.write_text("from cages import SIZE\nclass Zebra:\n    size = SIZE\ncolours = 2\n")
    return file


def test_built_in_and_own_are_found_alike(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ANIMALS.find("cat") is int
    zebra = ANIMALS.find(f"{zoo}:Zebra")
    assert (zebra.__name__, zebra.size) == ("Zebra", 3)  # type: ignore[attr-defined]
    assert ANIMALS.find(f"{zoo}:Zebra") is zebra  # loaded once
    assert str(zoo.parent) not in sys.path
    monkeypatch.syspath_prepend(zoo.parent)
    assert ANIMALS.find("zoo:Zebra").__module__ == "zoo"
    assert list(ANIMALS) == ["cat", "dog"]


def install(folder: Path, entry_point: str) -> None:
    """Put into ``folder`` what pip notes of a package that offers a method."""
    package = folder / "striped-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: striped\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[fedml_dapper.methods]\n{entry_point}\n")


def test_entry_points_of_installed_packages(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(zoo.parent)
    install(zoo.parent, "zebra = zoo:Zebra")
    assert ANIMALS.find("zebra").__name__ == "Zebra"
    with pytest.raises(ConfigError, match="unknown animal `zebar`; did you mean `zebra`"):
        ANIMALS.find("zebar")
    assert EntryPoint("zebra", "zoo:Zebra", "fedml_dapper.methods").load().__name__ == "Zebra"


def test_a_package_that_takes_a_built_in_name_is_told_so(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(zoo.parent)
    install(zoo.parent, "cat = zoo:Zebra")
    with pytest.raises(ConfigError, match="`cat` is built in, and an installed package calls its `zoo:Zebra` so, too"):
        ANIMALS.find("cat")
    assert ANIMALS.find("dog") is not None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cta", r"dapper_args.method: unknown animal `cta`; did you mean `cat`\? \(your own: path/to/file.py:Name"),
        ("{folder}/none.py:Zebra", "dapper_args.method: no file .*none.py"),
        ("{folder}/zoo.py:Zebar", "zoo.py has no `Zebar`; did you mean `Zebra`"),
        ("{folder}/zoo.py:colours", "zoo.py:colours` is no class; name a class"),
        ("no_such_package.module:Zebra", "no_such_package.module cannot be loaded: ModuleNotFoundError"),
        ("{folder}/broken.py:Zebra", r"broken.py cannot be loaded: ZeroDivisionError: division by zero \(line 2\)"),
        (
            "{folder}/script.py:Zebra",
            r"script.py cannot be loaded: SystemExit: 0 \(line 3\); put what it does as a script",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line(zoo: Path, name: str, message: str) -> None:
    (zoo.parent / "broken.py").write_text("class Zebra: ...\n1 / 0\n")
    (zoo.parent / "script.py").write_text("import sys\nclass Zebra: ...\nsys.exit(0)\n")
    with pytest.raises(ConfigError, match=message) as caught:
        ANIMALS.find(name.format(folder=zoo.parent))
    assert "\n" not in str(caught.value)


def test_a_source_is_a_name_and_a_digest_without_folders(zoo: Path, tmp_path: Path) -> None:
    reference = Reference.parse(f"{zoo}:Zebra")
    assert reference is not None
    before = reference.with_digest
    assert before.startswith("zoo.py:Zebra (source ")
    elsewhere = tmp_path / "elsewhere" / "zoo.py"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(zoo.read_bytes())
    assert Reference(str(elsewhere), "Zebra").with_digest == before
    zoo.write_text(zoo.read_text() + "# other\n")
    assert reference.with_digest != before
    assert Reference("no.such.module", "Zebra").with_digest == "no.such.module:Zebra (source not found)"


def test_files_are_found_beside_the_experiment(zoo: Path) -> None:
    experiment = zoo.parent / "experiment.yaml"
    experiment.write_text((CONFIG / "digits_offline.yaml").read_text())
    settings = load_settings([experiment], ["method=zoo.py:Zebra"])
    assert settings.dapper_args.method == f"{zoo}:Zebra"
    assert sources(settings).keys() == {"dapper_args.method"}
    with pytest.raises(ConfigError, match=r"dapper_args.method: no file zo.py; looked in"):
        load_settings([experiment], ["method=zo.py:Zebra"])
    assert sources(load_settings([experiment])) == {}


def test_what_a_folder_of_a_run_is_called() -> None:
    names = {"my_shapes.py:load": "my_shapes", "/data/my.shapes.py:load": "my.shapes", "lab.data.shapes:load": "shapes"}
    names |= {"my_nets.py:Net": "Net", "office_caltech10": "office_caltech10"}
    assert {name: short_name(name) for name in names} == names
    assert short_name(None) == "program"


@pytest.mark.parametrize("place", ["around", "around.inner", "around.inner.most", "spread", "spread.inner.most"])
def test_the_source_of_a_module_is_found_without_importing_a_package_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    for package in ("around", "around/inner", "spread/inner"):  # the latter are folders without an __init__.py
        (tmp_path / package).mkdir(parents=True)
        if package.startswith("around"):
            (tmp_path / package / "__init__.py").write_text("raise SystemExit('imported')")
        (tmp_path / package / "most.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / place.replace(".", "/")
    expected = {"around": file / "__init__.py", "around.inner": file / "__init__.py", "spread": None}
    assert Reference(place, "Net").source == expected.get(place, file.with_suffix(".py"))
    for name in (f"{place}.missing", f"{place}.", f".{place}", f"{place}..most", ".", ""):
        assert Reference(name, "Net").source is None
    assert not {"around", "spread"} & sys.modules.keys()


def test_the_source_of_a_module_that_was_imported_is_found() -> None:
    file = Path(fedml_dapper.__file__).parent / "models" / "lenet.py"
    assert Reference("fedml_dapper.models.lenet", "lenet5").source == file
