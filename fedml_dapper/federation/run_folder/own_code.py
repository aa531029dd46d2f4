"""Code that a file may bring to run: what this user has run on this machine before, or consents to.

A model's file or a run's folder may come from anybody, and name any function that can be imported, with arguments of
its choice. Neither a path nor a digest in it shows that the code is the reader's own, since both can be known or
guessed. So runs and exports note outside of their folders, in the user's own state folder, which code they ran or
wrote, and only such code runs again without being asked about.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedml_dapper.config import ENTRY_POINTS, LIBRARIES, Reference, Settings, installed
from fedml_dapper.config.references import references
from fedml_dapper.errors import ConfigError
from fedml_dapper.files.regular_file import check_plain

LOGGER = logging.getLogger(__name__)

NOTES_NAME = "own_code.jsonl"
_FETCHING = ("weights", "weights_backbone", "checkpoint_path", "cache_dir")
"""Arguments by which networks of libraries read or download files, beside those that begin with ``pretrained``."""
_CONSENT = (
    "if you trust who gave you the file, consent by trust_code=True in Python, or --trust-code on the command line"
)
_ASKED = "commands that load what it makes will ask for --trust-code"
_noted_here: set[tuple[str, str]] = set()
"""What this process noted, since its user's state folder may not be writable."""


@dataclass(frozen=True)
class _Code:
    """Code that a setting names."""

    key: str
    """The setting."""
    named: str
    """As the setting names it, for errors."""
    identity: tuple[str, str] | None
    """Where it is and what, and a digest of its source; None where there is no source to tell by."""


def note_code(settings: Settings) -> None:
    """Note that this user runs the code that ``settings`` name, so that files of the run may name it too."""
    _note(code.identity for code in _named(settings, ENTRY_POINTS))


def note_program(path: Path) -> None:
    """Note that this user made the program in the file at ``path``, such as an exported TorchScript file."""
    _note([_program(path)])


def check_consent(settings: Settings, keys: Collection[str], path: Path, trust_code: bool) -> None:
    """Check that the code that ``settings`` of the file at ``path`` name under ``keys`` may run.

    Nothing is imported for that.

    Raises:
        ConfigError: It is neither this package's nor code that this user ran here, and ``trust_code`` is not given.
    """
    if trust_code:
        return
    noted = _notes()
    for code in _named(settings, keys):
        if code.identity is None or code.identity not in noted:
            raise ConfigError(
                f"{code.key}: {path} wants to run {code.named}, which no run of yours on this machine has run as it is"
                f" now; {_CONSENT}"
            )


def check_program(path: Path, trust_code: bool) -> None:
    """Check that the program in the file at ``path`` may run.

    Raises:
        ConfigError: No export of this user's has written it, and ``trust_code`` is not given.
    """
    if not trust_code and path.is_file() and _program(path) not in _notes():
        raise ConfigError(
            f"{path} is a program, and no export of yours on this machine has written it as it is now; {_CONSENT}"
        )


def _named(settings: Settings, keys: Collection[str]) -> Iterator[_Code]:
    """Yield the code from outside of this package that ``settings`` name under ``keys``."""
    for key, value in references(settings):
        reference = Reference.parse(value) or installed(ENTRY_POINTS[key]).get(value)
        if key in keys and reference is not None:
            yield _Code(key, f"`{value}`", _identity(reference))
    model = settings.model_args.model
    fetching = sorted(
        name for name in settings.model_args.arguments if name.startswith("pretrained") or name in _FETCHING
    )
    if "model_args.model" in keys and model is not None and model.partition(":")[0] in LIBRARIES and fetching:
        told = {name: settings.model_args.arguments[name] for name in fetching}
        digest = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()
        yield _Code("model_args.arguments", f"`{model}` with {', '.join(fetching)}", (model, digest))


def _identity(reference: Reference) -> tuple[str, str] | None:
    source = reference.source
    if source is None:
        return None
    place, digest = _identity_of(source)
    return f"{place if reference.file is not None else reference.place}:{reference.name}", digest


def _program(file: Path) -> tuple[str, str]:
    return "program", _identity_of(file)[1]  # wherever it lies, as it imports nothing from beside it


def _identity_of(file: Path) -> tuple[str, str]:
    return str(file.resolve()), hashlib.sha256(file.read_bytes()).hexdigest()


def _notes_file() -> Path | None:
    """Return the file of notes, outside of all that is handed on; None for a user without a home."""
    chosen = os.environ.get("XDG_STATE_HOME", "")
    try:
        state = Path(chosen) if os.path.isabs(chosen) else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return state / "fedml_dapper" / NOTES_NAME


def _note(identities: Iterable[tuple[str, str] | None]) -> None:
    known = {identity for identity in identities if identity is not None}
    new = known - _notes() if known else known
    if not new:
        return
    _noted_here.update(new)
    file = _notes_file()
    if file is None:
        LOGGER.warning("there is no home folder in which to note that this code is your own; %s", _ASKED)
        return
    try:
        check_plain(file)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with file.open("a", encoding="utf-8") as notes:
            notes.write("".join(f"\n{json.dumps(identity)}\n" for identity in sorted(new)))  # a line may be torn
    except OSError as error:
        LOGGER.warning("cannot note in %s that this code is your own (%s); %s", file, error.strerror, _ASKED)


def _notes() -> set[tuple[str, str]]:
    """Return what was noted; torn lines are skipped, and a file that cannot be read notes nothing."""
    noted = set(_noted_here)
    file = _notes_file()
    try:
        if file is None or not file.exists():
            return noted
        check_plain(file)
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        LOGGER.warning("%s cannot be read (%s); code that it notes as your own is asked about", file, error.strerror)
        return noted
    for line in lines:
        try:
            place, digest = json.loads(line)
        except (ValueError, TypeError):
            continue
        noted.add((str(place), str(digest)))
    return noted
