"""Functions of the user's own that return data sets or deal them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedml_dapper.config import DataArgs, load_settings
from fedml_dapper.datasets import ClientData, Suite, divide, load_suite
from fedml_dapper.datasets.silo import silo_division
from fedml_dapper.errors import ConfigError, DapperError, DataError
from fedml_dapper.federation import build_experiment, simulate

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_data" / "experiment.yaml"
MY_DATA = EXAMPLE.parent / "my_data.py"


def suite_of(tmp_path: Path, body: str, **settings: Any) -> Suite:
    file = tmp_path / "my_data.py"
    file.write_text(f"import numpy as np, torch\nfrom torch.utils.data import *\n{body}\n")
    return load_suite(DataArgs(dataset=f"{file}:load", **settings))


def batches(client: ClientData, round_: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(batch.inputs, batch.targets) for batch in client.batches(round_, 1)]


@pytest.mark.long
def test_the_example_trains(tmp_path: Path) -> None:
    experiment = build_experiment(load_settings([EXAMPLE], [f"output_dir={tmp_path}"]))
    assert [(client.domain, client.num_samples) for client in experiment.clients] == [
        ("day", 120), ("night", 60), ("night", 60)
    ]  # fmt: skip
    record = experiment.record()
    assert record.classes == ("north", "east", "south", "west")
    assert record.sources["data_args.dataset"].startswith("my_data.py:load (source ")
    assert record.sources["data_args.partition"].startswith("my_data.py:deal (source ")
    _, rounds = simulate(experiment)
    assert rounds[-1].scores is not None
    assert rounds[-1].scores.best_global_accuracy > 40  # chance is 25


AUGMENTED = """
class Noisy(Dataset):
    def __init__(self, size): self.size = size
    def __len__(self): return self.size
    def __getitem__(self, i):
        return np.arange(3.0) + i + torch.rand(3).numpy() + np.random.rand() / 10, i % 2
def load(size=9): return {"a": (Noisy(size), Noisy(2)), "b": (Noisy(size), Noisy(2))}
"""


def test_batches_repeat_and_leave_the_global_generators_alone(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, AUGMENTED)
    first, second = (divide(suite, DataArgs(dataset="x"), 2, 4, seed=1).clients[0] for _ in range(2))
    torch.manual_seed(5)
    np.random.seed(5)
    expected = (torch.rand(1), np.random.rand())
    torch.manual_seed(5)
    np.random.seed(5)
    one = batches(first)
    assert (torch.rand(1), np.random.rand()) == expected
    two = batches(second)
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one[0][0], batches(first, round_=2)[0][0])
    assert [len(targets) for _, targets in one] == [4, 4]  # the ninth alone is dropped
    assert (one[0][0].dtype, one[0][1].dtype) == (torch.float32, torch.int64)
    assert (suite.classes, suite.example.shape) == (("0", "1"), (1, 3))


@pytest.mark.parametrize(("partition", "clients"), [("one_per_domain", 2), ("domain_shares", 3)])
def test_partitions_deal_items_out(tmp_path: Path, partition: str, clients: int) -> None:
    suite = suite_of(tmp_path, AUGMENTED, arguments={"size": 30})
    division = divide(suite, DataArgs(dataset="x", partition=partition), clients, 4, seed=1)
    assert len(division.clients) == clients
    for client, tests in zip(division.clients, division.client_tests, strict=True):
        assert client.labels is not None
        assert torch.equal(torch.cat([batch.targets for batch in client]), client.labels)
        assert sum(len(batch.targets) for batch in tests.test) == tests.test.num_samples


def test_dirichlet_deals_one_domains_items_out(tmp_path: Path) -> None:
    body = AUGMENTED.replace(', "b": (Noisy(size), Noisy(2))', "")
    suite = suite_of(tmp_path, body, arguments={"size": 200})
    division = divide(suite, DataArgs(dataset="x", partition="dirichlet", dirichlet_alpha=1.0), 3, 4, seed=1)
    held = sum(client.num_samples for client in division.clients) + division.domain_tests[0].num_samples
    assert held == 202


REGRESSION = """
def load():
    pair = TensorDataset(torch.randn(60, 4), torch.randn(60, 2)), TensorDataset(torch.randn(9, 4), torch.randn(9, 2))
    return {"a": pair}
"""


def test_targets_that_are_no_classes_give_no_labels(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, REGRESSION)
    assert suite.classes == ()
    client = divide(suite, DataArgs(dataset="x"), 1, 8, seed=1).clients[0]
    assert client.labels is None
    assert next(client.batches(1, 1)).targets.shape == (8, 2)
    with pytest.raises(ConfigError, match=r"dirichlet deals classes out"):
        divide(suite, DataArgs(dataset="x", partition="dirichlet", dirichlet_alpha=1.0), 1, 8, seed=1)


@pytest.mark.parametrize("method", ["fpl", "fedsr", "heterofl"])
def test_methods_that_need_classes_refuse_other_targets(tmp_path: Path, method: str) -> None:
    file = tmp_path / "my_data.py"
    file.write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\nfrom fedml_dapper.tasks import Classification\n"
        "class Scored(Classification):\n    name = 'scored'\n"
        "    def misfit_of_targets(self, targets, num_classes): return ''\n"
        "def load():\n    part = TensorDataset(torch.randn(40, 3, 16, 16), torch.rand(40))\n"
        "    return {'a': (part, part), 'b': (part, part)}\n"
    )
    dataset = [f"dataset={file}:load", "data_args.arguments={}", "classes=2"]
    overrides = [*dataset, "partition=domain_shares", f"method={method}", f"task={file}:Scored"]
    with pytest.raises(ConfigError, match=rf"`{method}` needs one class for every sample") as caught:
        build_experiment(load_settings([EXAMPLE], overrides))
    assert "\n" not in str(caught.value)


GOOD = "TensorDataset(torch.randn(8, 3), torch.arange(8) % 2)"
STATED = (
    "class Stated(Dataset):\n    def __init__(self, classes): self.classes = classes\n"
    "    def __len__(self): return 8\n    def __getitem__(self, i): return torch.zeros(3), i % 2\n"
)
BARE = "class Bare(Dataset):\n    def __getitem__(self, i): return torch.zeros(3), 0\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def load(): return [1]", "my_data returns a list; return {domain"),
        ("def load(): return {}", "my_data returns a dict; return {domain"),
        (f"def load(): return {{'a': {GOOD}}}", "gives a TensorDataset for domain a; give"),
        (f"{BARE}def load(): return {{'a': (Bare(), {GOOD})}}", "domain a, train: a Bare has no length"),
        (f"def load(): return {{'a': ([], {GOOD})}}", "domain a, train: has no samples"),
        ("def load(): raise KeyError('colour')", "load fails: KeyError: 'colour'"),
        (f"def load(): return {{'a': ([1, 2], {GOOD})}}", r"its items are int; an item has to be \(input, target\)"),
        (
            f"def load(): return {{'a': ([(torch.zeros(1 + i), 0) for i in range(3)], {GOOD})}}",
            r"domain a, train: item 1 is \(Tensor float32 \(2,\), int\), and item 0 is \(Tensor float32 \(1,\), int\)",
        ),
        (
            "def load(): return {'a': ([(torch.zeros(3, dtype=[torch.half, torch.int][i]), 0) for i in (0, 1)],) * 2}",
            r"domain a, train: item 1 is \(Tensor int32 \(3,\), int\), and item 0 is \(Tensor float16 \(3,\), int\)",
        ),
        (
            "def load(): return {'a': ([({'x' if i else 'y': torch.zeros(3)}, 0) for i in range(3)],) * 2}",
            r"domain a, train: item 1 is \({x: Tensor .*}, int\), and item 0 is \({y: Tensor .*}, int\)",
        ),
        (
            f"def load(): return {{'a': ([(torch.zeros(1), 0) for i in range(3)], {GOOD})}}",
            r"my_data, domain a, test: inputs are float32 \(3,\), and those of my_data, domain a, train float32 \(1,\)",
        ),
        (f"def load(): return {{'a': ({GOOD}, {GOOD.replace('% 2', '- 1')})}}", "test: has the class -1"),
        (f"def load(): return {{0: ({GOOD},) * 2, '0': ({GOOD},) * 2}}", "my_data calls two domains `0`; give each"),
        (f"def load(): return {{' ': ({GOOD},) * 2}}", "my_data calls a domain ' '; a name has 1 to 100 letters"),
        (f"def load(): return {{'a\\x1b[31m': ({GOOD},) * 2}}", r"calls a domain 'a\\x1b\[31m'; a name has 1 to 100"),
        (f"def load(): return {{'a' * 101: ({GOOD},) * 2}}", "calls a domain 'aaa.*that can be printed"),
        (f"def load(): return {{b'a': ({GOOD},) * 2}}", r"calls a domain b'a' \(bytes\); a name is a text or a number"),
        (f"def load(): return {{('a', 1): ({GOOD},) * 2}}", r"calls a domain \('a', 1\) \(tuple\); a name is a text"),
        (f"def load(): return {{None: ({GOOD},) * 2}}", r"calls a domain None \(NoneType\); a name is a text"),
        (
            "def load(): raise ValueError('very ' * 9999)",
            r"load fails: ValueError: very .*very?.*\.\.\. \(my_data",
        ),
        (
            f"def load(): return {{'a': ([([[0.0] * 9999] * 3, 0)] * 8, {GOOD})}}",
            r"its items are \(\(\(float, .*\.\.\.; an",
        ),
        (
            "x = []\nx.append(x)\ndef load(): return {'a': ([(x, 0)] * 8,) * 2}",
            r"its items, \(\(\(list\)\), int\), make",
        ),
        (
            f"{STATED}def load(): return {{'a': (Stated(['cat'] * 2),) * 2}}",
            "train: its `classes` name the class 'cat' twice",
        ),
        (
            f"{STATED}def load(): return {{'a': (Stated(['cat', 'd\\x1bg']),) * 2}}",
            r"name a class 'd\\x1bg', which no table can show; mend them, or set data_args.classes",
        ),
        (
            f"{STATED}def load(): return {{'a': tuple(Stated([f'{{k}}{{i}}' for i in range(9999)]) for k in 'xy')}}",
            r"classes differ: x0, x1, .*\.\.\. in my_data, domain a, train, y0, y1, ",
        ),
        ("def load(): raise SystemExit", "load fails: SystemExit"),
        (
            "def load(): return {'a': ((torch.zeros(8, 3), torch.arange(8)),) * 2}",
            r"domain a, train: a tuple of inputs and targets is no data set; TensorDataset\(inputs, targets\)",
        ),
        (
            "def load(): return {'a': (np.zeros(8), [np.zeros((8, 3)), np.arange(8)])}",
            r"domain a, train: its items are float64; an item has to be \(input, target\)",
        ),
        (
            "class Vast(Dataset):\n    def __len__(self): return 10**12\n"
            "    def __getitem__(self, i): return torch.zeros(3), 0\n"
            "def load(): return {'a': (Vast(),) * 2}",
            "train: says that it has 1,000,000,000,000 items, more than can be numbered; mend its __len__",
        ),
        (
            f"def load(): return {{'a': ({GOOD}, {GOOD.replace('torch.arange(8) % 2', 'torch.rand(8)')})}}",
            r"domain a, test: targets are float32 \(\), and those of my_data, domain a, train classes; make",
        ),
    ],
)
def test_what_a_function_may_not_return(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(DapperError, match=message) as caught:
        suite_of(tmp_path, body)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_names_that_are_bytes_are_not_read_as_text(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, f"{STATED}def load(): return {{'a': (Stated([b'cat', b'dog']),) * 2}}")
    assert suite.classes == ("0", "1")
    assert "its `classes`, a list, name no classes; a list has the name of class 0 first" in suite.notes[0]


META, SPARSE = "is on the device meta, which keeps no values; make it on", r"is sparse; make it dense by"


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("TensorDataset(torch.zeros(8, 3, device='meta'), torch.arange(8))", f"item 0 has a tensor that {META}"),
        ("TensorDataset(torch.randn(8, 3), torch.arange(8, device='meta'))", f"item 0 has a tensor that {META}"),
        ("[((torch.zeros(3), torch.zeros(3, device='meta')), 0)] * 8", f"item 0 has a tensor that {META}"),
        ("[*[(torch.zeros(3), 0)] * 4, (torch.zeros(3, device='meta'), 0)]", f"item 4 has a tensor that {META}"),
        ("[*[(torch.zeros(3), 0)] * 4, (torch.zeros(3), torch.tensor(1, device='meta'))]", f"item 4 .* {META}"),
        ("TensorDataset(torch.randn(8, 3).to_sparse(), torch.arange(8))", f"item 0 has a tensor that {SPARSE}"),
        ("[(torch.nested.nested_tensor([torch.ones(2)]), 0)] * 8", ".* that is nested; pad its"),
        (
            "TensorDataset(torch.quantize_per_tensor(torch.ones(8, 3), 0.1, 0, torch.qint8), torch.arange(8))",
            "item 0 has a tensor that is quantised; take `.dequantize",
        ),
        (f"Subset({GOOD}, [{{}}])", "item 0 cannot be had: "),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls nested tensors a prototype
def test_tensors_without_values_to_read_are_refused_by_item(tmp_path: Path, train: str, message: str) -> None:
    def read() -> None:
        suite = suite_of(tmp_path, f"def load(): return {{'a': ({train}, {GOOD})}}")
        batches(divide(suite, DataArgs(dataset="x"), 1, 8, seed=1).clients[0])

    with pytest.raises(DataError, match=f"my_data, domain a, train: {message}") as caught:
        read()
    assert "\n" not in str(caught.value)


def test_labels_that_are_stated_without_values_are_those_of_the_items(tmp_path: Path) -> None:
    body = (
        "class Stated(Dataset):\n    targets = torch.zeros(8, dtype=torch.int64, device='meta')\n"
        "    def __len__(self): return 8\n    def __getitem__(self, i): return torch.zeros(3), i % 2\n"
        "def load(): return {'a': (Stated(), Stated())}"
    )
    assert suite_of(tmp_path, body).domains[0].merged_labels().tolist() == [0, 1] * 8


def test_arguments_have_to_fit_the_function(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data_args.arguments: load\(size=9\): got an unexpected keyword .*'sise'"):
        suite_of(tmp_path, AUGMENTED, arguments={"sise": 3})
    with pytest.raises(ConfigError, match=r"data_args.image_size: means nothing to dataset my_data"):
        suite_of(tmp_path, AUGMENTED, image_size=32)
    with pytest.raises(DapperError, match=r"has the class 4 .*item 4.*, and there are 3 classes"):
        suite_of(tmp_path, f"def load(): return {{'a': ({GOOD.replace('% 2', '% 5')}, {GOOD})}}", classes=3)
    with pytest.raises(ConfigError, match=r"unknown suite `foldr`; did you mean `folder`"):
        load_suite(DataArgs(dataset="foldr"))


def test_a_cache_dir_goes_to_a_function_that_takes_it(tmp_path: Path) -> None:
    body = f"def load(data_cache_dir): assert data_cache_dir.name == 'here'; return {{'a': ({GOOD}, {GOOD})}}"
    assert suite_of(tmp_path, body, data_cache_dir=tmp_path / "here").domains[0].name == "a"


SPLIT = """
def load():
    whole = TensorDataset(torch.arange(100.0)[:, None], torch.arange(100) % 2)
    return {"a": random_split(whole, [80, 20])}
"""


def test_what_a_function_draws_is_the_same_in_every_process(tmp_path: Path) -> None:
    tests = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        [domain] = suite_of(tmp_path, SPLIT).domains
        tests.append(next(iter(domain.test.batches(20))).inputs.flatten().tolist())
        assert torch.initial_seed() == seed
    assert tests[0] == tests[1] != sorted(tests[0])


def test_transforms_that_held_out_items_keep_are_said(tmp_path: Path) -> None:
    body = """
class Shots(TensorDataset): transform = None
class Flipped(Shots): transform = "flips"
def load(kind=Flipped): return {"a": tuple(each(torch.rand(20, 3), torch.arange(20) % 2) for each in (kind, Shots))}
def plain(): return load(Shots)
"""
    for asked, is_said in (
        ({"partition": "dirichlet", "dirichlet_alpha": 1.0}, True), ({"validation_share": 0.1}, True), ({}, False),
    ):  # fmt: skip
        notes = suite_of(tmp_path, body, **asked).notes
        assert any("domain a: its training items have a transform" in note for note in notes) == is_said
    plain = load_suite(DataArgs(dataset=f"{tmp_path / 'my_data.py'}:plain", validation_share=0.1))
    assert not any("have a transform" in note for note in plain.notes)


@pytest.mark.parametrize(
    ("asked", "message"),
    [(("circle", "square", "triangle"), "data_args.classes circle, square, triangle"), (3, "circle, square, triangle")],
)
def test_a_domain_that_lacks_a_class_and_numbers_the_others_is_refused(
    tmp_path: Path, asked: Any, message: str
) -> None:
    body = """
class Shapes(TensorDataset): classes = ["circle", "square", "triangle"]
class Fewer(TensorDataset): classes = ["circle", "triangle"]
def load():
    parts = lambda kind, classes: kind(torch.rand(12, 3), torch.arange(12) % classes)
    return {"a": (parts(Shapes, 3), parts(Shapes, 3)), "b": (parts(Fewer, 2), parts(Fewer, 2))}
"""
    with pytest.raises(DataError, match=rf"states the classes circle, triangle and .*{message}, so a number means"):
        suite_of(tmp_path, body, classes=asked)
    counted_alike = body.replace('["circle", "triangle"]', '["circle", "square"]')
    assert len(suite_of(tmp_path, counted_alike, classes=asked).classes) == 3


@pytest.mark.parametrize(
    ("dealt", "message"),
    [
        ("None", "gives no list of"),
        ("[('a', [0, 1])]", "gives 1 clients their samples, train_args.client_num_in_total is 2"),
        ("[('a', [0, 1]), ('c', [0, 1])]", "gives client 1 domain `c`; known: a, b"),
        ("[('a', [0, 1]), ('b', [0, 30])]", "gives client 1 indices from 0 to 30; the training set of b has 30"),
        ("[('a', [0, 1]), ('b', [4, 4])]", "gives client 1 a sample of b twice"),
        ("[('a', [0, 1]), ('b', [0.5])]", "gives client 1 torch.float32"),
        ("[('a', [0, 1]), ('b', [])]", r"client 1 \(domain b\) gets no training sample, .*; let deal deal it more"),
        ("[('a', [0, 1]), (suite.domains[1], [0, 1])]", "client 1 a Domain as its domain; give the domain's name"),
        (
            "[('a', [0, 1]), (['b'], [0, 1])]",
            "gives client 1 a list as its domain; give the domain's name, one of a, b",
        ),
        ("exit(3)", r"deal\(suite, 2, 1\) gives no list of .*: SystemExit: 3"),
    ],
)
def test_what_a_partition_may_not_deal(tmp_path: Path, dealt: str, message: str) -> None:
    suite = suite_of(tmp_path, AUGMENTED, arguments={"size": 30})
    (tmp_path / "my_split.py").write_text(f"def deal(suite, num_clients, seed): return {dealt}\n")
    args = DataArgs(dataset="x", partition=f"{tmp_path / 'my_split.py'}:deal")
    with pytest.raises(DapperError, match=message) as caught:
        divide(suite, args, 2, 4, seed=1)
    assert "\n" not in str(caught.value)


def test_a_partition_of_ones_own_leaves_no_room_for_other_settings(small_suite: Any) -> None:
    args = DataArgs(dataset="x", partition=f"{MY_DATA}:deal", client_share=0.5)
    with pytest.raises(
        ConfigError, match=r"client_share .0.5. needs data_args.partition domain_shares, .*it is .*deal"
    ):
        divide(small_suite([20, 20]), args, 3, 4, seed=1)
    dealt = divide(small_suite([20, 20]), args.model_copy(update={"client_share": None}), 3, 4, seed=1)
    assert [client.num_samples for client in dealt.clients] == [20, 10, 10]


def test_the_page_s_partition(tmp_path: Path, tiny_settings: Any) -> None:
    page = (Path(__file__).parents[2] / "docs" / "own_data.md").read_text()
    code, settings = page.split("# my_split.py\n")[1].split("```yaml\n")
    (tmp_path / "my_split.py").write_text(code.split("```")[0])
    (tmp_path / "split.yaml").write_text(settings.split("```")[0])
    few = ("client_num_in_total=4", "client_num_per_round=4", "client_share=null", "comm_round=1", "epochs=1")
    (tmp_path / "plain.yaml").write_text(tiny_settings(*few).as_yaml())
    experiment = build_experiment(load_settings([tmp_path / "plain.yaml", tmp_path / "split.yaml"]))
    assert {client.domain for client in experiment.clients} == {"scans"}
    sizes = [client.num_samples for client in experiment.clients]
    assert max(sizes) - min(sizes) <= 1
    assert len(simulate(experiment)[1]) == 1


DRAWN = """
class Drawn(Dataset):
    def __len__(self): return 40
    def __getitem__(self, i): return torch.randn(3), int(np.random.randint(4))

def load():
    return {"a": (Drawn(), Drawn())}
"""


def test_labels_that_items_draw_are_the_same_in_every_process(tmp_path: Path) -> None:
    found = []
    for seed in (1, 2):
        np.random.seed(seed)
        [domain] = suite_of(tmp_path, DRAWN).domains
        found.append(domain.train.labels)
    assert found[0].equal(found[1])


def test_validation_samples_of_a_silo_are_said_to_be_unused(tmp_path: Path) -> None:
    part = "TensorDataset(torch.randn(40, 3), torch.arange(40) % 2)"
    suite = suite_of(tmp_path, f"def load(): return {{'a': ({part},) * 3}}")
    [note] = silo_division(suite, 0, 8, seed=1).notes
    assert "domain a: 40 validation samples stay unused" in note
