"""Targets and inputs in the forms that strangers' files have: they work, or one line says where and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedml_dapper.config import DataArgs, load_settings
from fedml_dapper.datasets import divide, load_suite
from fedml_dapper.datasets.class_numbers import MOST_CLASSES, count_classes
from fedml_dapper.datasets.items import Items
from fedml_dapper.datasets.own_data import own_suite
from fedml_dapper.errors import DapperError, DataError
from fedml_dapper.federation import build_experiment
from fedml_dapper.federation.experiment_data import passed_data

from ..brought import brought, load_of

AS_ITEMS = """
class Pairs(list): pass
def TensorDataset(x, y): return Pairs(zip(x, y))
"""
"""Items in a list, of whose targets nothing is known beforehand."""
GIVEN = "return {'a': (data, data)}"

MASKS = """
class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, num_classes, 1))
"""


@pytest.mark.parametrize("kind", ["", AS_ITEMS])
@pytest.mark.parametrize(
    ("targets", "found", "remedy"),
    [
        ("y[:, None]", "int64 of shape (B, 1)", "int(target) takes a class out of its column"),
        ("y.float()", "float32 of shape (B)", "int(target) makes one of 2.0"),
        ("y.double()[:, None]", "float32 of shape (B, 1)", "int(target) takes a class out of its column"),
        ("F.one_hot(y)", "int64 of shape (B, 4)", "int(target.argmax()) is the class of a one-hot target"),
        ("F.one_hot(y).float()", "float32 of shape (B, 4)", "int(target.argmax())"),
        ("y % 2 == 0", "bool of shape (B)", "int(target) makes the classes 0 and 1"),
        ("torch.complex(y.float(), y.float())", "complex64 of shape (B)", "a class is one whole number from 0 on"),
        ("y[:, None, None].expand(-1, 8, 8)", "int64 of shape (B, 8, 8)", "train_args.task: segmentation"),
    ],
)
def test_other_targets_are_refused_with_place_and_remedy(
    tmp_path: Path, kind: str, targets: str, found: str, remedy: str
) -> None:
    line = brought(tmp_path, kind + load_of(f"y = {targets}")).complaint()
    assert line.startswith("fedml-dapper: my_data, domain a, train: targets do not fit task `classification`: they are")
    assert found in line
    assert remedy in line


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("kind", ["", AS_ITEMS])
def test_whole_numbers_of_any_dtype_are_classes(tmp_path: Path, dtype: str, kind: str) -> None:
    suite = brought(tmp_path, kind + load_of(f"y = y.to(torch.{dtype})")).suite
    client = divide(suite, DataArgs(dataset="x"), 2, 8, seed=1).clients[0]
    assert next(client.batches(1, 1)).targets.dtype == torch.int64
    assert suite.num_classes == 4
    assert client.labels is not None
    assert client.labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ("[(a, ('cat', 'dog')[b % 2]) for a, b in zip(x, y)]", "(Tensor float32 (3, 8, 8), str); an item has to be"),
        ("[(a, ('cat', 'dog')[b % 2]) for a, b in zip(x, y)]", "words are no targets: give each class its number"),
        ("[(a, int(b)) if i != 3 else (a, 'cat') for i, (a, b) in enumerate(zip(x, y))]", "item 3 has the target cat"),
        ("[(a, int(b)) if i != 3 else (a, 0.5) for i, (a, b) in enumerate(zip(x, y))]", "item 3 has the target 0.5"),
        ("[(a, int(b)) if i != 3 else a for i, (a, b) in enumerate(zip(x, y))]", "item 3 is a Tensor; an item has"),
        ("[(a, int(b) - (i == 5)) for i, (a, b) in enumerate(zip(x, y // 4))]", "has the class -1 (item 5)"),
        (
            "[(a, None) for a in x]",
            "domain a, train: its items, (Tensor float32 (3, 8, 8), NoneType), make no batch",
        ),
        ("[(a, np.uint64(b)) for a, b in zip(x, y)]", "its items, (Tensor float32 (3, 8, 8), uint64), make no batch"),
        ("[(a.numpy().astype('>f4'), int(b)) for a, b in zip(x, y)]", "array has byte order different from the native"),
        ("[(a.numpy()[:, ::-1], int(b)) for a, b in zip(x, y)]", "making a copy of your array"),
        (
            "[(Image.new('RGB', (8, 8)), int(b)) for b in y]",
            "(Image, int), make no batch",
        ),
        (
            "[(Image.new('RGB', (8, 8)), int(b)) for b in y]",
            "; torchvision.transforms.ToTensor() makes a tensor of a picture",
        ),
        (
            "[({'image': a}, {'label': int(b)}) for a, b in zip(x, y)]",
            "; the target is one tensor, array or number, as in ({...}, label)",
        ),
        ("[([0.5, 1, 2.0], int(b)) for b in y]", "; torch.tensor(input) makes one tensor of a list of numbers"),
    ],
)
def test_an_item_unlike_the_others_is_named(tmp_path: Path, items: str, message: str) -> None:
    code = load_of(f"z = {items}; return {{'a': (z, z)}}")
    line = brought(tmp_path, f"from PIL import Image\n{code}").complaint()
    assert "my_data, domain a, train: " in line
    assert message in line


@pytest.mark.parametrize(
    ("odd", "look"),
    [("a[:, :6]", "float32 (3, 6, 8)"), ("(a * 255).byte()", "uint8 (3, 8, 8)")],
    ids=["shape", "dtype"],
)
def test_an_input_unlike_the_others_is_named_when_it_is_trained_on(tmp_path: Path, odd: str, look: str) -> None:
    mixed = f"z = [(a if i != 9 else {odd}, int(b)) for i, (a, b) in enumerate(zip(x, y))]; return {{'a': (z, z)}}"
    result = brought(tmp_path, load_of(mixed)).run()
    assert result.exit_code == 2
    [line] = [line for line in result.stderr.splitlines() if line.startswith("fedml-dapper: ")]
    assert "my_data, domain a, t" in line
    assert f"item 9 is (Tensor {look}, int)" in line or "is (Tensor float32 (3, 8, 8), int), and item 9" in line


RAISING = """
class Torn(Dataset):
    targets = [0, 1] * 8
    def __init__(self, at): self.at = at
    def __len__(self): return 16
    def __getitem__(self, i):
        if i == self.at: raise OSError("truncated file")
        return torch.zeros(3, 8, 8), i % 2
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_an_item_that_raises_is_named_with_its_line(tmp_path: Path, workers: int) -> None:
    stranger = brought(
        tmp_path, f"{RAISING}\ndef load(): return {{'a': (Torn(7), Torn(None)), 'b': (Torn(None),) * 2}}"
    )
    result = stranger.run(f"workers={workers}")
    assert result.exit_code == 2
    assert (
        "my_data, domain a, train: item 7 cannot be had: OSError: truncated file (my_data.py, line 13)" in result.stderr
    )


def test_where_two_parts_are_one_set_the_raising_item_keeps_its_part(tmp_path: Path) -> None:
    stranger = brought(tmp_path, f"{RAISING}\ndef load(): return {{'a': (Torn(None), Torn(7))}}")
    suite = stranger.suite
    division = divide(suite, DataArgs(dataset="x", partition="one_per_domain"), 1, 8, seed=1)
    with pytest.raises(DataError, match="domain a, test: item 7 cannot be had"):
        [list(samples) for samples in (division.clients[0], *division.domain_tests, *division.domain_validations)]


@pytest.mark.parametrize(
    ("dtype", "remedy"),
    [("uint8", "x.float() / 255"), ("float16", "x.float()"), ("bfloat16", "x.float()"), ("int32", "")],
)
def test_built_in_networks_say_which_inputs_they_take(tmp_path: Path, dtype: str, remedy: str) -> None:
    line = brought(tmp_path, load_of(f"x = x.to(torch.{dtype})")).complaint("model=lenet5")
    assert f"`lenet5` takes float32 inputs, and those of all domains are {dtype}; let the data set give" in line
    assert remedy in line


@pytest.mark.parametrize(
    ("dtype", "remedy"),
    [("uint8", "x.float() / 255,"), *((each, "x.float(),") for each in ("float16", "bfloat16", "int64", "bool"))],
)
def test_networks_of_ones_own_take_what_they_can(tmp_path: Path, dtype: str, remedy: str) -> None:
    data = load_of(f"x = (10 * x + 100).clamp(0, 255).to(torch.{dtype})")
    line = brought(tmp_path, data).complaint()
    assert f"cannot be trained on inputs of shape (B, 3, 8, 8) {dtype}" in line
    assert line.endswith(f"; let the data set give {remedy} or begin forward with that")
    scaling = """
class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Linear(192, num_classes)
    def forward(self, x): return self.head(x.float().flatten(1) / 255)
"""
    assert build_experiment(brought(tmp_path, data, scaling).settings).method.problem.example.dtype == getattr(
        torch, dtype
    )


@pytest.mark.parametrize("kept", ["TensorDataset(a, b)", "list(zip(a, b))"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float64"])
def test_floats_that_torch_does_not_train_on_become_float32(tmp_path: Path, dtype: str, kept: str) -> None:
    pair = kept.replace("a, b", f"x.to(torch.{dtype}), y")
    experiment = brought(tmp_path, load_of(f'return {{"a": ({pair}, {pair})}}'))
    assert build_experiment(experiment.settings).method.problem.example.dtype == torch.float32


@pytest.mark.parametrize(
    ("masks", "found"),
    [
        ("torch.zeros(24, 1, 8, 8)", "float32 of shape (B, 1, 8, 8), and a mask is int64 of shape (B, H, W)"),
        ("torch.zeros(24, 8, 8, dtype=torch.uint8)", "mask.long() makes one"),
        ("torch.full((24, 8, 8), 7)", "masks with the class 7, and there are 3 classes"),
        ("torch.full((24, 8, 8), -1)", "masks with the class -1"),
        ("y", "int64 of shape (B), and a mask is int64"),
    ],
)
def test_masks_are_asked_for_as_they_have_to_be(tmp_path: Path, masks: str, found: str) -> None:
    stranger = brought(tmp_path, load_of(f"y = {masks}"), MASKS)
    line = stranger.complaint("task=segmentation", "data_args.classes=[a, b, c]" if masks != "y" else "classes=4")
    assert "my_data, domain a, train: targets do not fit task `segmentation`" in line
    assert found in line


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (
            "y * 333_333_333",
            "the highest class number is 999,999,999, and 4 classes occur; numbers that leave",
        ),
        ("torch.arange(24) * 30_000", "the highest class number is 690,000, and 24 classes occur"),
        ("y - 2", "has the class -2 (item 0)"),
    ],
)
def test_ids_are_no_class_numbers(tmp_path: Path, ids: str, message: str) -> None:
    assert message in brought(tmp_path, load_of(f"y = {ids}")).complaint()


def test_a_label_beyond_the_stated_classes_is_named(tmp_path: Path) -> None:
    line = brought(tmp_path, load_of("y[5] = 6")).complaint("classes=4")
    assert "my_data has the class 6 (my_data, domain a, train, item 5), and there are 4 classes" in line


def test_how_many_classes_numbers_stand_for() -> None:
    assert count_classes("x", []) == 0
    assert count_classes("x", [torch.tensor([3]), torch.tensor([9_998])]) == 9_999
    assert count_classes("x", [torch.arange(0, 20_000, 3)]) == 19_999
    with pytest.raises(DataError, match="1,000,001 classes are more than the 1,000,000"):
        count_classes("x", [torch.arange(MOST_CLASSES + 1)])


@pytest.mark.parametrize(
    ("targets", "classes", "message"),
    [
        (torch.zeros(4, 1), 2, r"the program's data, client 0, train: targets do not fit .* float32 of shape \(B, 1\)"),
        (torch.zeros(4, dtype=torch.int64), 10**9, "its eighth part: 1,000,000,000 classes are more than"),
        (torch.arange(4), 3, "client 0 has the classes 0 to 3, and the program's dataset says that there are 3 "),
        (torch.tensor([1, -1, 0, 1]), 2, "client 0 has the classes -1 to 1, and the program's"),
    ],
)
def test_a_programs_tuple_is_held_to_the_same(
    tmp_path: Path, targets: torch.Tensor, classes: int, message: str
) -> None:
    stranger = brought(tmp_path, load_of())
    stranger.experiment.write_text(
        stranger.experiment.read_text().replace('data_args: {dataset: "my_data.py:load"}', "").replace("2,", "1,")
    )
    loader = [(torch.zeros(4, 3, 8, 8), targets)]
    passed = (4, 4, loader, loader, {0: 4}, {0: loader}, {0: loader}, classes)
    with pytest.raises(DapperError, match=message):
        build_experiment(stranger.settings, data=passed_data(stranger.settings, passed))


LISTED = """
class Listed(Dataset):
    def __init__(self, x, y): self.x, self.y = x, y.tolist(){more}
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return self.x[i], self.y[i]
TensorDataset = Listed
"""


def test_a_class_beyond_64_bits_is_named(tmp_path: Path) -> None:
    beyond = LISTED.format(more="; self.y[5] = 2**70")
    line = brought(tmp_path, beyond + load_of()).complaint()
    assert line.startswith(
        "fedml-dapper: my_data, domain a, train: item 5 has the target 1180591620717411303424, which"
    )


def test_stated_targets_beyond_64_bits_are_left_for_those_of_the_items(tmp_path: Path) -> None:
    beyond = LISTED.format(more="; self.targets = [2**70] * len(y)")
    assert brought(tmp_path, beyond + load_of()).suite.num_classes == 4


SUBSET = """
from torch.utils.data import Subset
def load():
    x, y = torch.randn(24, 3, 8, 8), torch.arange(24) % 4
    whole = TensorDataset(x, y)
    part = Subset(whole, {indices})
    return {{"a": (part, whole)}}
"""


def test_a_subset_that_leads_beyond_its_data_set_names_the_item(tmp_path: Path) -> None:
    line = brought(tmp_path, SUBSET.format(indices="range(20, 30)")).complaint()
    assert line.startswith("fedml-dapper: my_data, domain a, train: item 4 cannot be had: IndexError: ")


@pytest.mark.parametrize(
    ("indices", "labels"),
    [("range(-2, 0)", [2, 3]), ("np.array([3, 5])", [3, 1]), ("np.array([False, True, False])", [0, 1, 0])],
)
def test_labels_of_a_subset_are_those_of_its_items(tmp_path: Path, indices: str, labels: list[int]) -> None:
    found = brought(tmp_path, SUBSET.format(indices=indices)).suite.domains[0].train.labels
    assert found is not None
    assert found.tolist() == labels


SAYING = """
from torch.utils.data import Dataset
class Mine(Dataset):
    def __init__(self, inner): self.inner = inner
    def __len__(self): return len(self.inner)
    def __getitem__(self, index): return self.inner[index]
    {raising}
"""


@pytest.mark.parametrize(
    ("raising", "message"),
    [
        ("def __len__(self): raise OSError('gone')", "a Mine has no length: OSError: gone (my_data.py, line "),
        ("def __len__(self): return -1", "a Mine has no length: ValueError: "),
        (
            "targets = property(lambda self: self.download())\n    def download(self): raise RuntimeError",
            "its `targets` cannot be had: RuntimeError (my_data.py, line ",
        ),
        ("classes = property(lambda self: 1 // 0)", "its `classes` cannot be had: ZeroDivisionError: integer division"),
    ],
)
def test_what_a_data_set_says_of_itself_may_raise(tmp_path: Path, raising: str, message: str) -> None:
    code = load_of().replace("TensorDataset(", "Mine(TensorDataset(").replace("])", "]))")
    line = brought(tmp_path, SAYING.format(raising=raising) + code).complaint()
    assert "my_data, domain a, train: " in line
    assert message in line


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        ("y = y + 1", "the class 0, so nothing trains the network's output for it; classes count from 0: where yours"),
        ("y = torch.where(y == 2, 3, y)", "no training item of any domain has the class 2, so nothing trains"),
        ("y = y * 20", "the class 1, 2, 3, 4, 5 and 52 more, so"),
    ],
)
def test_classes_that_nobody_has_are_said(tmp_path: Path, lines: str, note: str) -> None:
    stranger = brought(tmp_path, load_of(lines))
    [said] = stranger.suite.notes
    assert note in said
    assert said in " ".join(stranger.run().output.split())


@pytest.mark.parametrize(("partition", "notes"), [("domain_shares", 1), ("one_per_domain", 0)])
def test_a_class_that_tests_alone_have_is_said_unless_clients_train_on_all_parts(
    tmp_path: Path, partition: str, notes: int
) -> None:
    stranger = brought(tmp_path, load_of("y[:16] %= 3"))
    suite = load_suite(stranger.settings.data_args.model_copy(update={"partition": partition}))
    assert suite.num_classes == 4
    assert ["no training item of any domain has the class 3, so" in note for note in suite.notes] == [True] * notes


@pytest.mark.parametrize(
    "classes",
    [
        "['ant', 'bee', 'cat', 'dog']",
        "np.array(['ant', 'bee', 'cat', 'dog'])",
        "{'bee': 1, 'ant': 0, 'dog': 3, 'cat': 2}",
        "{0: 'ant', 1: 'bee', 3: 'dog', 2: 'cat'}",
    ],
)
def test_names_of_classes_come_in_any_usual_form(tmp_path: Path, classes: str) -> None:
    suite = brought(tmp_path, load_of("data = TensorDataset(x, y)", f"data.classes = {classes}", GIVEN)).suite
    assert suite.classes == ("ant", "bee", "cat", "dog")
    assert suite.notes == ()


def test_names_in_another_order_than_the_data_set_s_are_said(tmp_path: Path) -> None:
    lines = ("data = TensorDataset(x, y)", "data.classes = ['ant', 'bee', 'cat', 'dog']", GIVEN)
    stranger = brought(tmp_path, load_of(*lines))
    for asked, is_said in (("[dog, cat, bee, ant]", True), ("[ant, bee, cat, dog]", False), ("[a, b, c, d]", False)):
        suite = load_suite(load_settings([stranger.experiment], [f"data_args.classes={asked}"]).data_args)
        assert suite.classes == tuple(asked[1:-1].split(", "))
        assert ["in another order, dog, cat, bee, ant; targets" in note for note in suite.notes] == [True] * is_said


@pytest.mark.parametrize("classes", ["4", "'abcd'", "{'ant', 'bee'}", "{'ant': 1, 'bee': 2}", "[]"])
def test_names_in_other_forms_are_not_taken_and_that_is_said(tmp_path: Path, classes: str) -> None:
    suite = brought(tmp_path, load_of("data = TensorDataset(x, y)", f"data.classes = {classes}", GIVEN)).suite
    assert suite.classes == ("0", "1", "2", "3")
    [note] = suite.notes
    assert "domain a, train: its `classes`, a" in note
    assert "name no classes; a list has the name of class 0 first" in note


def test_a_loader_is_no_data_set(tmp_path: Path) -> None:
    lines = ("loader = torch.utils.data.DataLoader(TensorDataset(x, y))", "return {'a': (loader, loader)}")
    line = brought(tmp_path, load_of(*lines)).complaint()
    assert line.endswith("domain a, train: a DataLoader, and clients make batches of their own; give its data set,"
                         " `loader.dataset`")  # fmt: skip


class Stating:
    """Its items, from some on, have other labels than it states."""

    def __init__(self, right: int) -> None:
        self.targets = [index % 2 for index in range(40)]
        self.right = right

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(3, 8, 8), (index + (index >= self.right)) % 2


@pytest.mark.parametrize(
    ("right", "said"), [(10, "item 10 has the target 1, and what the data set states of it is 0"), (40, "")]
)
def test_stated_targets_that_the_items_contradict_give_way(
    caplog: pytest.LogCaptureFixture, right: int, said: str
) -> None:
    data = Stating(right)
    suite = own_suite(lambda: {"a": (data, data)}, "stating", DataArgs(dataset="stating"))
    train = suite.domains[0].train
    assert isinstance(train, Items)
    assert train.labels is not None
    assert train.labels.tolist() == [data[index][1] for index in range(40)]
    assert bool(caplog.text) == bool(said)
    assert said in caplog.text
