"""The pages' commands and Python, run as they stand in a fresh folder, on experiments of seconds.

All of a page is run, in its order, but for what ``NOT_RUN`` names with its reason. Of that, whatever ``fedml-dapper``
would read before it begins is read. A block that begins with ``# NAME`` is that file. A run's folder is ``runs/FOLDER``
or ``runs/<...>``.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt

import fedml_dapper
from fedml_dapper.benches.grid import load_bench
from fedml_dapper.cli import main
from fedml_dapper.config import experiment_file, load_settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.operations.audit_log import AuditLog

from .examples.pictures import draw, make_pictures
from .grids import sampled
from .test_prose import LISTS, PAGES, ROOT

pytestmark = pytest.mark.usefixtures("few_test_images")


NOT_RUN = {
    r"(PIP_\w+=\S+ )?bash (run/(setup|quickstart|test|docs)\.sh|\.ci/run)": "what runs the tests, or installs",
    r"bash benchmarks/peers/setup\.sh": "installs",
    r"source |export DAPPER_DATA": "of the reader's shell",
    r"pip install|sudo |journalctl |tar |scp |sbatch |ssh ": "of the reader's machines",
    r"docker |DAPPER_EXPERIMENT=.* docker ": "needs Docker; tests/packaging reads what it is given",
    r"fedml |python run/launch/|python3 -m ": "needs an account at FedML's platform",
    r"bash (run/(mpi|silo_grpc|silo_mqtt)\.sh|(silo-3|server)/start\.sh)": "tests/platform, tests/packaging",
    r"PYTHON=\S+ bash certs/kits/server/start\.sh": "a server that waits for devices; tests/device",
    r"python -m fedml_dapper .*--rank": "one of several processes; tests/platform and tests/examples",
    r"python -m fedml_dapper --cf config/quickstart.yaml": "tests/platform/test_quickstart_everywhere.py and others",
    r"(DAPPER_WHEELS=.* )?bash benchmarks/gpu_queue\.sh": "wants a GPU; tests/benchmarks/test_gpu_queue.py",
    r"python -m (benchmarks|tests)\.": "minutes to hours; tests/benchmarks and tests/platform run less of it",
    r"bash run/build_packages\.sh": "FedML builds; tests/platform",
    r"python my_program\.py": "tests/platform/test_user_program.py",
    r"fedml-dapper bench [a-z]": "hours; tests/benches",
    r"fedml-dapper (status|steer) ": "asks a running server; tests/operations",
    r"fedml-dapper silos enroll |dapper-device join ": "one waits for the other; tests/device/test_joining.py",
    r"bash run/build_device\.sh": "builds a wheel; tests/device/test_distribution.py",
    r"(device/bin/)?dapper-device (check|run|predict|export) ": "a device, mostly with a server; tests/device",
    r".*results/device/|.*AARCH64": "another processor, of a gigabyte; results/device has what came of it",
    r"cd federation|bash run/make_certs\.sh federation|PYTHONPATH=\. |cmp plain/": "for the other processor",
    r"fedml-dapper calibrate .*--rank": "asks a running server; tests/commands",
    r"fedml-dapper audit .*--holds|fedml-dapper silos revoke .* 9f2c11aa": "a hash that stands for another",
    r"fedml-dapper run -c prices.yaml": "tests/tasks/test_own_task.py",
    r"fedml-dapper run -c text_": "minutes; tests/benches/test_texts.py, tests/models/test_transformer.py",
    r"fedml-dapper run .*comm_round=30": "30 rounds; tests/federation/test_extending.py",
    r"fedml-dapper run .*threads=2": "would change the threads of the tests after it",
    r"fedml-dapper data pack ": "asks for the pictures of a published suite; tests/datasets",
    r"fedml-dapper search |fedml-dapper run .* runs/search/best": "40 trials; tests/search",
    r"fedml-dapper report (results|benches)": "reports of hundreds of runs; tests/benches",
    r"fedml-dapper doctor|python -m fedml_dapper\.doctor": "fails where ports are taken; tests/commands/test_doctor.py",
    r"for method in": "two methods of which each is run by tests/methods",
}
"""Beginning of a command -> why it is not run here."""


RECORD = ROOT / "results" / "README.md"


class Command(NamedTuple):
    page: Path
    line: int
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}: {self.text}"


def blocks(page: Path) -> Iterator[tuple[str, int, str]]:
    """Language, first line and text of what is fenced."""
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.type == "fence" and token.map is not None:
            yield token.info.partition(" ")[0], token.map[0] + 2, token.content


def files_of(page: Path) -> dict[str, str]:
    """Blocks that begin with ``# NAME``, but for excerpts; a later one of the same name is an addition to it."""
    files = dict[str, str]()
    for language, _, text in blocks(page):
        named = re.match(r"# ([\w.]+\.(?:yaml|py))\b", text)
        if language in ("yaml", "python") and named:
            files.setdefault(named[1], text)
    return {name: text for name, text in files.items() if "(excerpt" not in text.partition("\n")[0]}


def commands(page: Path) -> Iterator[Command]:
    """Those of its shell blocks; one that goes on in the next line, or is a loop, is one."""
    for language, first, text in blocks(page):
        if language == "bash" and not re.match(r"# \S+\.\w+\n", text):
            for found in re.finditer(r"^for .*?^done$|^(?:[^#\n](?:\\\n|[^\n])*)", text, re.DOTALL | re.MULTILINE):
                yield Command(page, first + text.count("\n", 0, found.start()), found[0])


def why_not(command: Command) -> str:
    """Why it is not run; empty if it is."""
    return next((reason for begin, reason in NOT_RUN.items() if re.match(begin, command.text)), "")


ENTER = "\n" * 9
"""What `init` gets for an answer: what it proposes."""
SMALL = (
    "dataset=digits_offline", "client_num_in_total=4", "client_num_per_round=4", "client_share=0.03", "comm_round=1",
    "epochs=1", "batch_size=16", "width=4", "image_size=32", "workers=1",
)  # fmt: skip


def small_experiments(config: Path) -> None:
    """Makes the experiments in ``config`` ones of seconds. Files that are laid over others, and those whose clients are
    processes, stay as they are."""
    for file in config.glob("*.yaml"):
        text = file.read_text()
        if "\ntrain_args:" in text and "training_type: simulation" in text:
            file.write_text(load_settings(file, SMALL).as_yaml())


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages' readers have: a clone, runs, pictures, certificates that may call, and a server's log."""
    stage = tmp_path_factory.mktemp("stage")
    for folder in ("config", "run", "examples"):
        shutil.copytree(ROOT / folder, stage / folder)
    small_experiments(stage / "config")
    shutil.copy(stage / "config" / "quickstart.yaml", stage)
    (stage / ".venv").symlink_to(ROOT / ".venv")
    fedml_dapper.run(stage / "quickstart.yaml", output=stage / "runs" / "FOLDER", progress=False)
    shutil.copytree(stage / "runs" / "FOLDER", stage / "runs" / "ANOTHER")
    short = {"comm_round": 1, "epochs": 1, "client_share": 0.03}
    base = stage / "examples" / "adapters" / "base.yaml"
    fedml_dapper.run(base, short, output=stage / "runs" / "base", progress=False)
    few = {"data_args.arguments": {"domains": ["modules"], "samples": 40}, "comm_round": 1}
    fedml_dapper.run("text_base.yaml", few, output=stage / "runs" / "text_base", progress=False)
    make_pictures(stage / "pictures", per_class=4)
    shutil.copytree(stage / "pictures", stage / "examples" / "own_pictures" / "pictures")
    draw("circle", "ink", seed=1).save(stage / "picture.png")
    draw("bar", "paint", seed=1).save(stage / "another.jpg")
    AuditLog(stage / "audit.jsonl").record("started", "server")
    (stage / "members").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(stage)
        in_shell("bash run/make_certs.sh made_before 6")
        in_this_process("fedml-dapper silos add members/members.json made_before/silo-*.pem")
    return stage


@pytest.fixture
def folder(stage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh one for a page, and the working directory."""
    folder = tmp_path / "folder"
    shutil.copytree(stage, folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    (folder / "data").mkdir()
    monkeypatch.setenv("DAPPER_DATA", str(folder / "data"))
    return folder


def in_shell(text: str) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-ec", text], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def words(text: str) -> list[str]:
    """As the shell splits and expands them, without the command's name."""
    script = f'words() {{ printf "%s\\0" "$@"; }}; {text.replace("fedml-dapper", "words", 1)}'
    return subprocess.run(["bash", "-ec", script], capture_output=True, text=True, check=True).stdout.split("\0")[:-1]


def in_this_process(text: str) -> None:
    """``fedml-dapper``, without the seconds in which a process of its own would load torch."""
    result = CliRunner().invoke(main, words(text), prog_name="fedml-dapper", input=ENTER)
    assert result.exit_code == 0, f"{text}\n{result.output[-2000:]}"


def read(text: str) -> None:
    """What ``fedml-dapper`` reads of a command before it begins: options, a bench's name, an experiment's settings."""
    name, *rest = words(text)
    command = main.get_command(click.Context(main), name)
    assert command is not None, text
    context = command.make_context(name, rest)
    if name == "bench":
        load_bench(context.params["name"])
    for option in command.params:
        files = context.params[str(option.name)] if "--config" in option.opts else ()
        if files and all(experiment_file(file).exists() for file in files):  # not what an earlier command would write
            load_settings(files, context.params["overrides"])


def with_folders(text: str) -> str:
    """With the stage's runs in place of those that a page leaves open."""
    return re.sub(r"runs/<(\w+)[^>]*>", lambda found: f"runs/{'ANOTHER' if found[1] == 'another' else 'FOLDER'}", text)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    sampled(
        [
            *(str(page.relative_to(ROOT)) for page in (*PAGES, *LISTS, ROOT / "CONTRIBUTING.md") if page != RECORD),
            pytest.param(str(RECORD.relative_to(ROOT)), marks=pytest.mark.nightly),  # of hundreds of runs
        ],
        always=("README.md", "docs/operations.md", "docs/security.md", "docs/own_silos.md"),
    ),
)
def test_the_commands_of_a_page_run(name: str, folder: Path) -> None:
    page = ROOT / name
    if page.name == "operations.md":
        shutil.copy("config/cross_silo.yaml", "experiment.yaml")  # its operator's
    for file, text in files_of(page).items():
        (folder / file).write_text(text)
    done = set[str]()
    for command in commands(page):
        text = with_folders(command.text)
        print(command.place, flush=True)
        if text.partition(" #")[0].strip() in done:
            continue  # shown twice
        done.add(text.partition(" #")[0].strip())
        if not why_not(command):
            in_place = text.startswith("fedml-dapper ") and "|" not in text
            (in_this_process if in_place else in_shell)(text)
        elif text.startswith("fedml-dapper "):
            read(text)


def test_every_reason_is_of_a_command_that_some_page_has() -> None:
    pages = [*PAGES, *LISTS, ROOT / "CONTRIBUTING.md"]
    texts = [command.text for page in pages for command in commands(page)]
    assert [begin for begin in NOT_RUN if not any(re.match(begin, text) for text in texts)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_shell_and_python_understand_every_block(page: Path) -> None:
    for language, line, text in blocks(page):
        if language == "bash":
            checked = subprocess.run(
                ["bash", "-n"], input=with_folders(text), capture_output=True, text=True, check=False
            )
            assert checked.returncode == 0, f"{page.name}:{line}: {checked.stderr}"
        elif language == "python" and page.name != "architecture.md":  # a contract in short, no program
            ast.parse(text)


@pytest.mark.long
def test_what_does_not_run_is_seen(folder: Path) -> None:
    in_this_process("fedml-dapper settings comm_round")
    for wrong in (
        "settings comm_rounds",
        "run -c config/quickstart.yaml --set comm_rounds=1",
        "footprint --modle resnet10",
    ):
        with pytest.raises(AssertionError):
            in_this_process(f"fedml-dapper {wrong}")
    with pytest.raises(AssertionError):
        in_shell("bash run/no_such_script.sh")
    with pytest.raises(ConfigError):
        read("fedml-dapper search -c config/quickstart.yaml --set comm_rounds=1 --output found")
    with pytest.raises(click.NoSuchOption):
        read("fedml-dapper bench table2 --proflie small")
