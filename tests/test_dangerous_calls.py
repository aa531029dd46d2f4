"""Nothing in the package runs what a file or a message says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "fedml_dapper"

ALLOWED = {
    ("platform/transports.py", "pickle.loads"): "FedML's own gRPC sends pickled messages; it says so in its docstring,"
    " and is for trusted networks only",
    ("federation/workers/messages.py", "pickle.Unpickler"): "between this process and forks of it, on pipes that nobody"
    " else has",
    (
        "deployment/formats/torchscript.py",
        "torch.jit.load",
    ): "a file that was just written is read again, and `predict` runs"
    " the file that its user names, which is a program, if this user wrote it or consents: docs/export.md says so",
    ("deployment/formats/torch_export.py", "torch.export.load"): "the same",
}
"""(file, call) -> why it is there all the same."""

_FORBIDDEN = {
    "pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.load", "cloudpickle.loads", "dill.load",
    "dill.loads", "joblib.load", "marshal.load", "marshal.loads", "shelve.open", "yaml.load", "yaml.load_all",
    "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen", "torch.jit.load", "torch.export.load",
    "torch.hub.load", "eval", "exec", "compile", "__import__",
}  # fmt: skip
_PICKLING_MODULES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def dangerous(source: str) -> Iterator[str]:
    """Names of calls, and of imports and classes that would hide one, in ``source``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in _PICKLING_MODULES:
            yield f"from {node.module} import"
        if isinstance(node, ast.Import):
            yield from (f"import {a.name} as" for a in node.names if a.asname and a.name in _PICKLING_MODULES)
        if isinstance(node, ast.ClassDef):
            yield from (base for base in map(ast.unparse, node.bases) if base in _FORBIDDEN)
        if not isinstance(node, ast.Call):
            continue
        name, keywords = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
        if (
            name in _FORBIDDEN
            or (name == "torch.load" and keywords.get("weights_only") != "True")
            or (name.endswith(("np.load", "numpy.load")) and keywords.get("allow_pickle", "False") != "False")
            or keywords.get("shell") == "True"
        ):
            yield name


def test_no_dangerous_call_but_the_known_one() -> None:
    found = {
        (file.relative_to(PACKAGE).as_posix(), call)
        for file in sorted(PACKAGE.rglob("*.py"))
        for call in dangerous(file.read_text(encoding="utf-8"))
    }
    assert found == ALLOWED.keys()


@pytest.mark.parametrize(
    "line",
    [
        "pickle.load(file)", "pickle.loads(data)", "torch.load(path)", "torch.load(path, weights_only=False)",
        "eval(text)", "exec(text)", "yaml.load(text, Loader=yaml.Loader)", "from pickle import loads",
        "import pickle as p", "class Mine(pickle.Unpickler): ...",
        "np.load(path, allow_pickle=True)", "subprocess.run(text, shell=True)",
    ],
)  # fmt: skip
def test_it_would_be_found(line: str) -> None:
    assert list(dangerous(line))


@pytest.mark.parametrize(
    "line", ["torch.load(path, weights_only=True)", "yaml.safe_load(text)", "model.eval()", "re.compile(text)"]
)
def test_what_is_harmless_is_not(line: str) -> None:
    assert not list(dangerous(line))
