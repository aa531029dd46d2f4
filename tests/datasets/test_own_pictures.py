"""Folders of one's own: layouts, modes, splits, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedml_dapper.benches.results import MANIFEST_NAME
from fedml_dapper.config import DataArgs, SiloArgs
from fedml_dapper.datasets import ImageSet, Samples, Suite, divide, load_server, load_silo, load_suite, pack
from fedml_dapper.datasets.own_pictures import stratified
from fedml_dapper.errors import ConfigError, DapperError, DataError
from fedml_dapper.federation import LEDGER_NAME, SETTINGS_NAME
from fedml_dapper.search.journal import JOURNAL_NAME


def fill(folder: Path, count: int = 5, start: int = 0) -> None:
    folder.mkdir(parents=True)
    for number in range(start, start + count):
        Image.new("RGB", (10, 12), (number * 7 % 256, 50, 99)).save(folder / f"{number}.png")


def load(root: Path, **settings: Any) -> Suite:
    return load_suite(DataArgs(dataset="folder", data_cache_dir=root, **settings))


def counts(samples: Samples | None, num_classes: int) -> list[int]:
    assert samples is not None
    assert samples.labels is not None
    return torch.bincount(samples.labels, minlength=num_classes).tolist()


def images(samples: Samples) -> ImageSet:
    assert isinstance(samples, ImageSet)
    return samples


def test_domains_with_classes_are_split_by_class(tmp_path: Path) -> None:
    for domain, names in (("sea", ("cod", "eel")), ("air", ("bat", "cod"))):
        for name in names:
            fill(tmp_path / "zoo" / domain / name, 10)
    (tmp_path / "zoo" / "sea" / "cod" / "notes.txt").write_text("no picture")
    suite = load(tmp_path / "zoo", test_share=0.3)
    assert (suite.name, suite.classes) == ("zoo", ("bat", "cod", "eel"))
    air, sea = suite.domains
    assert (air.name, sea.name, sea.source) == ("air", "sea", "zoo/sea/")
    assert [counts(part, 3) for part in (air.train, air.test)] == [[7, 7, 0], [3, 3, 0]]
    assert [counts(part, 3) for part in (sea.train, sea.test)] == [[0, 7, 7], [0, 3, 3]]
    assert images(sea.train).images.shape == (14, 3, 32, 32)
    assert suite.example.shape == (1, 3, 32, 32)
    assert "32x32; data_args.image_size" in suite.notes[0]
    assert load(tmp_path / "zoo", image_size=8).notes == ()


def test_a_split_is_the_same_whatever_else_is_there(tmp_path: Path) -> None:
    for name in ("cod", "eel"):
        fill(tmp_path / "sea" / name, 20)
        fill(tmp_path / "air" / name, 20)
    before = load(tmp_path).domains[1]
    fill(tmp_path / "bog" / "asp")
    fill(tmp_path / "sea" / "asp")
    after = load(tmp_path).domains[2]
    old = images(before.test)
    new = images(after.test).take(torch.nonzero(images(after.test).labels > 0).flatten())
    assert torch.equal(old.images, new.images)
    assert torch.equal(old.labels + 1, new.labels)


def test_a_single_data_set_is_one_domain_named_after_its_folder(tmp_path: Path) -> None:
    for name in ("cod", "eel"):
        fill(tmp_path / "fish" / name)
    [domain] = load(tmp_path / "fish").domains
    assert (domain.name, domain.source, len(domain.train), len(domain.test)) == ("fish", "fish/", 8, 2)


@pytest.mark.parametrize("layout", ["{domain}/{part}", "{part}/{domain}", "{part}"])
def test_splits_stand_above_or_below_domains(tmp_path: Path, layout: str) -> None:
    for domain in ("sea", "air") if "domain" in layout else ("",):
        for number, part in enumerate(("train", "val", "test")):
            for name in ("cod", "eel"):
                fill(tmp_path / "zoo" / layout.format(domain=domain, part=part) / name, 4 - number)
    suite = load(tmp_path / "zoo")
    assert [domain.name for domain in suite.domains] == (["air", "sea"] if "domain" in layout else ["zoo"])
    for domain in suite.domains:
        parts = (domain.train, domain.validation, domain.test)
        assert [counts(part, 2) for part in parts] == [[4, 4], [3, 3], [2, 2]]
    division = divide(suite, DataArgs(dataset="folder"), len(suite.domains), 2, seed=1)
    assert [data.num_samples for data in division.domain_validations] == [6] * len(suite.domains)
    assert [client.num_samples for client in division.clients] == [8] * len(suite.domains)
    with pytest.raises(ConfigError, match=r"validation_share: zoo has validation samples of its own"):
        divide(suite, DataArgs(dataset="folder", validation_share=0.5), len(suite.domains), 2, seed=1)


def test_val_alone_is_for_testing_and_said_so(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for name in ("cod", "eel"):
            fill(tmp_path / "zoo" / part / name)
    suite = load(tmp_path / "zoo", image_size=8)
    assert (len(suite.domains[0].test), suite.domains[0].validation) == (10, None)
    assert suite.notes == ("domain zoo is tested on val/, having no test/",)


def test_clients_share_a_domain_evenly_unless_told_otherwise(tmp_path: Path) -> None:
    for domain in ("sea", "air"):
        for name in ("cod", "eel"):
            fill(tmp_path / domain / name, 25)
    suite = load(tmp_path)
    args = DataArgs(dataset="folder", clients=({"domain": "sea", "share": 0.5}, "sea", "sea", "air"))  # type: ignore[arg-type]
    assert [client.num_samples for client in divide(suite, args, 4, 2, seed=1).clients] == [20, 10, 10, 40]


def test_pictures_of_any_mode_are_rgb(tmp_path: Path) -> None:
    grey = np.full((8, 8), 128, dtype=np.uint8)
    transparent = np.zeros((8, 8, 4), dtype=np.uint8)
    pictures = {
        "a.png": Image.fromarray(grey),
        "b.png": Image.fromarray(grey).convert("P"),
        "c.png": Image.fromarray(transparent, "RGBA"),
        "d.jpg": Image.new("CMYK", (8, 8), (0, 0, 0, 127)),
        "e.png": Image.fromarray(np.full((8, 8), 128 * 257, dtype=np.uint16)),
        "f.tif": Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)),
        "g.png": Image.new("1", (8, 8), 1),
        "h.tif": Image.fromarray(np.full((8, 8), 128 * 257, dtype=np.int32)),
        "i.tif": Image.fromarray(np.full((8, 8), 0.5, dtype=np.float32)),
    }
    (tmp_path / "cod").mkdir()
    for name, picture in pictures.items():
        picture.save(tmp_path / "cod" / name)
    fill(tmp_path / "eel")
    domain = load(tmp_path, image_size=8, test_share=0.01).domains[0]
    both = images(domain.merged())
    means = sorted(round(float(image.float().mean())) for image in both.images[both.labels == 0])
    assert means == pytest.approx([0, 127, 128, 128, 128, 128, 128, 255, 255], abs=2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            np.array([[0, 65536]], dtype=np.int32),
            "its values go from 0 to 65536, and whole numbers have to be of 16 bits",
        ),
        (np.array([[-1, 9]], dtype=np.int32), "its values go from -1 to 9, and"),
        (np.array([[0.5, np.nan]], dtype=np.float32), r"it has values that are not finite"),
        (np.array([[0.5, np.inf]], dtype=np.float32), r"it has values that are not finite"),
        (np.array([[-np.inf, np.inf]], dtype=np.float32), r"it has values that are not finite"),
    ],
)
def test_values_that_have_no_place_between_black_and_white_are_no_picture(
    tmp_path: Path, values: np.ndarray, message: str
) -> None:
    for name in ("cod", "eel"):
        fill(tmp_path / name)
    Image.fromarray(values).save(tmp_path / "cod" / "odd.tif")
    with pytest.raises(DataError, match=rf"odd.tif: not a readable picture \({message}"):
        load(tmp_path)


def test_a_damaged_picture_is_named_or_counted(tmp_path: Path) -> None:
    for name in ("cod", "eel"):
        fill(tmp_path / "sea" / name, 10)
    (tmp_path / "sea" / "eel" / "3.png").write_bytes(b"broken")
    with pytest.raises(
        DataError, match=r"eel/3.png: not a readable picture .*, or set data_args.skip_damaged"
    ) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    suite = load(tmp_path, skip_damaged=True)
    assert sum(len(part) for part in suite.domains[0].parts) == 19
    assert suite.notes[1].endswith("sea/: 1 damaged pictures are left out (3.png)")


@pytest.mark.parametrize(
    "layout", ["{domain}/{name}", "{domain}/{part}/{name}", "{part}/{domain}/{name}", "{part}/{name}", "{name}"]
)
def test_what_was_packed_runs_as_it_is(tmp_path: Path, layout: str) -> None:
    domains = {"sea": ("cod", "eel"), "air": ("bat", "cod")} if "{domain}" in layout else {"": ("cod", "eel")}
    parts = ("train", "valid", "val", "test") if "{part}" in layout else ("",)
    for domain, names in domains.items():
        for turn, part in enumerate(parts):
            for number, name in enumerate(names):
                place = layout.format(domain=domain, part=part, name=name)
                fill(tmp_path / "zoo" / place, 6, start=10 * number + 20 * turn)
    pack(tmp_path, "zoo", tmp_path / "packed", size=16)
    known = {name for names in domains.values() for name in names}
    stated = tuple(sorted(known, reverse=True)) if "{part}" in layout else None
    plain, packed = (load(tmp_path / place, image_size=16, classes=stated) for place in ("zoo", "packed"))
    assert packed.classes == plain.classes == (stated or tuple(sorted(known)))
    for first, second in zip(plain.domains, packed.domains, strict=True):
        assert first.name == second.name
        assert len(first.parts) == len(second.parts) == (3 if "{part}" in layout else 2)
        for ours, theirs in zip(first.parts, second.parts, strict=True):
            assert torch.equal(images(ours).images, images(theirs).images)
            assert torch.equal(images(ours).labels, images(theirs).labels)


def test_packing_takes_the_pictures_that_training_would(tmp_path: Path) -> None:
    _two(tmp_path / "zoo")
    folder = tmp_path / "zoo" / "sea" / "cod"
    for name in ("scan.tif", "drawing.gif"):
        Image.new("RGB", (8, 8), (9, 9, 9)).save(folder / name)
    (folder / "._0.png").write_bytes(b"what a desktop notes of 0.png")
    os.mkfifo(folder / "pipe.png")
    pack(tmp_path, "zoo", tmp_path / "packed", size=16)
    plain, packed = (load(tmp_path / place, image_size=16) for place in ("zoo", "packed"))
    for first, second in zip(plain.domains, packed.domains, strict=True):
        assert [counts(part, 2) for part in first.parts] == [counts(part, 2) for part in second.parts]


@pytest.mark.parametrize("folder", [".thumbnails", "__MACOSX", "more/.thumbnails"])
def test_copies_in_folders_that_are_no_data_are_no_pictures(tmp_path: Path, folder: str) -> None:
    root = tmp_path / ".kept" / "zoo"  # a hidden place of the user's own is no reason to find nothing
    _two(root)
    fill(root / "sea" / "cod" / "more", 2)
    before = load(root)
    fill(root / "sea" / "cod" / folder)
    pack(root.parent, "zoo", tmp_path / "packed", size=16)
    for after in (load(root), load(tmp_path / "packed")):
        for first, second in zip(before.domains, after.domains, strict=True):
            assert [counts(part, 2) for part in first.parts] == [counts(part, 2) for part in second.parts]


def test_normalisation_is_imagenets_or_measured_on_training_pictures_or_none(tmp_path: Path) -> None:
    for part, shade in (("train", 51), ("test", 255)):
        for name in ("cod", "eel"):
            (tmp_path / part / name).mkdir(parents=True)
            for number, colour in enumerate((0, 2 * shade if part == "train" else shade)):
                Image.new("L", (8, 8), colour).save(tmp_path / part / name / f"{number}.png")

    def of(**settings: Any) -> tuple[float, float]:
        preprocessing = images(load(tmp_path, **settings).domains[0].train).preprocessing
        return preprocessing.mean[0], preprocessing.std[0]

    assert of() == of(normalisation="imagenet") == (0.485, 0.229)
    assert of(normalisation="measured") == pytest.approx((0.2, 0.2))
    assert of(normalisation="none") == (0, 1)


def test_parts_may_have_capitals(tmp_path: Path) -> None:
    for name in ("cod", "eel"):
        fill(tmp_path / "sea" / "Train" / name, 6)
        fill(tmp_path / "sea" / "Test" / name, 3)
    [domain] = load(tmp_path / "sea").domains
    assert (domain.name, len(domain.train), len(domain.test)) == ("sea", 12, 6)


def test_folders_without_pictures_may_lie_beside_parts(tmp_path: Path) -> None:
    _two(tmp_path / "zoo")
    before = load(tmp_path / "zoo")
    (tmp_path / "zoo" / "air" / "notes").mkdir()
    (tmp_path / "zoo" / "air" / "notes" / "sources.txt").touch()
    fill(tmp_path / "zoo" / "air" / ".thumbnails")
    assert [len(domain.train) for domain in load(tmp_path / "zoo").domains] == [
        len(domain.train) for domain in before.domains
    ]


def test_stratified_takes_one_of_two_and_none_of_one() -> None:
    train, test = stratified(torch.tensor([0, 1, 1, 2, 2, 2, 2, 2]), "abc", "d", 0.2)
    assert len(test) == 2
    assert sorted(torch.cat([train, test]).tolist()) == list(range(8))
    assert 0 in train.tolist()


def _two(root: Path) -> None:
    for name in ("cod", "eel"):
        fill(root / "sea" / name)
        fill(root / "air" / "train" / name)
        fill(root / "air" / "test" / name)


def _rename(old: str, new: str) -> Callable[[Path], None]:
    return lambda root: (root / old).rename(root / new) and None


def _put(folder: str) -> Callable[[Path], None]:
    return lambda root: fill(root / folder)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: (root / "sea" / "asp").mkdir(), "sea/asp: a class folder without pictures"),
        (_rename("air/test", "air/.test"), "air has no test pictures; add test/"),
        (_rename("air/train", "air/.train"), "air has test/ but no train/"),
        (_rename("air/train", "air/training"), "air/training: is none of train/, .* and beside test/ nothing else"),
        (_put("air/validation/cod"), r"air/validation: is none of train/, .* val/ \(for validation\) .*; call it one"),
        (_put("air/TRAIN/cod"), "air/(train|TRAIN): is none of train/, .* and beside (train|TRAIN)/ nothing else"),
        (_put("train/cod"), "zoo/air: is none of train/, .* and beside train/ nothing else is read"),
        (
            _put("sea/train"),
            "sea/train: .* as cod/ beside it, but `train` is reserved .*; rename the folder if it is a",
        ),
        (_put("sea/Test"), "sea/Test: .* as cod/ beside it, but `Test` is reserved"),
        (_rename("sea", "Testing"), "Testing: is that a domain or a class, or a part of the pictures"),
        (_put("sea/training/cod"), "sea/training: is that a domain or a class, or a part of the pictures"),
        (_put("air/test/asp"), "class asp has no training pictures in any domain"),
        (_put("sea"), "sea/ holds pictures and air/ holds folders"),
        (lambda root: (root / "bog").mkdir(), "bog: an empty folder"),
        (_put("air/val/cod"), r"domain sea has no val/ and others have"),
        (_rename("sea/cod", "sea/c\x1bod"), r"sea: a folder is called 'c\\x1bod', which no table can show; rename it"),
        (_rename("sea", "se\na"), r"zoo: a folder is called 'se\\na'"),
    ],
)
def test_what_is_unclear_is_one_line(tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    _two(tmp_path / "zoo")
    if "sea/ holds" in message:
        Image.new("RGB", (8, 8)).save(tmp_path / "zoo" / "sea" / "loose.png")
    else:
        spoil(tmp_path / "zoo")
    with pytest.raises(DapperError, match=message) as caught:
        load(tmp_path / "zoo")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("layout", ["domains", "classes"])
def test_results_and_leftovers_beside_pictures_are_no_domains(tmp_path: Path, layout: str) -> None:
    root = tmp_path / "zoo"
    for name in ("cod", "eel"):
        fill(root / ("sea" if layout == "domains" else "") / name)
    (root / "net.py").touch()
    before = load(root)
    (root / "__pycache__").mkdir()
    for file in (
        f"runs/first/{LEDGER_NAME}",
        f"runs/killed/{SETTINGS_NAME}",
        f"benches/small/cells/1/{LEDGER_NAME}.xz",
        "runs/silo-1/memory.safetensors",
    ):
        (root / file).parent.mkdir(parents=True)
        (root / file).touch()
    for name in (f"benches/small/one/{MANIFEST_NAME}", f"runs/search/{JOURNAL_NAME}"):
        fill((root / name).parent / "figures")
        (root / name).touch()
    after = load(root)
    assert after.classes == before.classes
    assert [domain.name for domain in after.domains] == [domain.name for domain in before.domains]


def test_pictures_are_never_taken_for_results(tmp_path: Path) -> None:
    for domain in ("sea", "air"):
        for name in ("cod", "eel"):
            fill(tmp_path / domain / name)
    (tmp_path / "sea" / SETTINGS_NAME).touch()
    (tmp_path / "sea" / "eel" / JOURNAL_NAME).touch()
    found = load(tmp_path)
    assert [domain.name for domain in found.domains] == ["air", "sea"]
    assert found.classes == ("cod", "eel")


def test_nothing_or_little_to_learn_from(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data_cache_dir: no folder .*nowhere"):
        load(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"data_cache_dir: dataset folder needs it"):
        load_suite(DataArgs(dataset="folder"))
    (tmp_path / "empty" / "sea").mkdir(parents=True)
    with pytest.raises(DataError, match=r"no pictures in <domain>/<class>/ or <class>/"):
        load(tmp_path / "empty")
    fill(tmp_path / "one" / "cod")
    with pytest.raises(DataError, match=r"has one class only"):
        load(tmp_path / "one")
    for name in ("cod", "eel"):
        fill(tmp_path / "few" / name, 1)
    with pytest.raises(DataError, match=r"each of its classes has one picture only"):
        load(tmp_path / "few")


def test_stated_classes_give_the_labels_and_are_held_to(tmp_path: Path) -> None:
    for name in ("cod", "eel"):
        fill(tmp_path / name)
    assert load(tmp_path, classes=("eel", "asp", "cod")).classes == ("eel", "asp", "cod")
    with pytest.raises(DataError, match=r"class eel is not in data_args.classes; did you mean `eels`"):
        load(tmp_path, classes=("cod", "eels"))
    with pytest.raises(DataError, match=r"has 2 classes .*, data_args.classes says 3"):
        load(tmp_path, classes=3)


def test_settings_of_other_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data_args.test_share: means nothing to dataset digits_offline"):
        load_suite(DataArgs(dataset="digits_offline", test_share=0.3))
    with pytest.raises(ConfigError, match=r"data_args.arguments: means nothing to dataset folder"):
        load(tmp_path, arguments={"a": 1})


def test_silos_with_folders_of_their_own_agree_on_stated_classes(tmp_path: Path) -> None:
    for name in ("cod", "eel"):
        fill(tmp_path / "mine" / name)
    shared = DataArgs(dataset="folder", partition="own", classes=("asp", "cod", "eel"), image_size=8)
    place = SiloArgs(data_cache_dir=tmp_path / "mine", domain="north")
    silo, server = load_silo(shared, place), load_server(shared)
    assert [domain.name for domain in silo.domains] == ["north"]
    assert (server.domains, server.classes, server.example.shape) == ((), silo.classes, silo.example.shape)
    for unsaid in (None, 3):
        with pytest.raises(ConfigError, match=r"data_args.classes: silos .* need it"):
            load_silo(shared.model_copy(update={"classes": unsaid}), place)
    measured = shared.model_copy(update={"normalisation": "measured"})
    for refused in (lambda: load_silo(measured, place), lambda: load_server(measured)):
        with pytest.raises(ConfigError, match=r"data_args.normalisation: silos .* measure other pictures"):
            refused()
    fill(tmp_path / "mine" / "yak")
    with pytest.raises(DataError, match=r"class yak is not in data_args.classes"):
        load_silo(shared, place)


@pytest.mark.parametrize("domain", [None, "north"])
def test_a_silo_without_a_folder_is_told_which_setting_names_it(domain: str | None) -> None:
    shared = DataArgs(dataset="folder", partition="own", classes=("cod", "eel"), image_size=8)
    with pytest.raises(ConfigError, match=r"silo_args.data_cache_dir: say in which folder"):
        load_silo(shared, SiloArgs(domain=domain))


def test_a_link_that_leads_nowhere_is_a_damaged_picture(tmp_path: Path) -> None:
    for name in ("cod", "eel"):
        fill(tmp_path / "sea" / name)
    (tmp_path / "sea" / "cod" / "gone.png").symlink_to(tmp_path / "unmounted.png")
    (tmp_path / "sea" / "eel" / "round.png").symlink_to("round.png")
    with pytest.raises(DataError, match=r"(gone|round).png: not a readable picture .*or set data_args.skip_damaged"):
        load(tmp_path / "sea")
    assert "2 damaged pictures are left out (gone.png, round.png)" in " ".join(
        load(tmp_path / "sea", skip_damaged=True).notes
    )
