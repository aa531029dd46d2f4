"""File of what a silo has signed in secure sums, so that it signs one list of survivors a round, even after a crash.

An entry is on the disk before the signature leaves the silo.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.files.regular_file import check_plain


class Promises:
    """Promises of the silo of this rank: one line each in a file in ``folder``, made with the first promise."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / f"silo-{rank}-signed.jsonl"

    def forget(self) -> None:
        """Delete all promises, for an operator who knows that no server can still open what was signed.

        Raises:
            ConfigError: The file cannot be deleted.
        """
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be deleted: {error.strerror}") from error

    def keep(self, round_key: bytes, statement: bytes, earlier_key: bytes | None = None) -> None:
        """Promise to sign this ``statement`` alone in the round that ``round_key`` stands for.

        Args:
            round_key: The round, as this version names it.
            statement: What is to be signed.
            earlier_key: The same round, as earlier versions named it in files that are still there.

        Raises:
            ProtocolError: Another statement was promised, or this one cannot be written.
        """
        rounds = [key.hex() for key in (round_key, earlier_key) if key is not None]
        digest = hashlib.sha256(statement).hexdigest()
        try:
            check_plain(self._path)
            promised = self._read()
            if any(promised.get(round_, digest) != digest for round_ in rounds):
                raise ProtocolError(
                    f"another list of survivors was signed in this round of this experiment before ({self._path}), and"
                    " a second sum could be set against the first; for a new run take another random_seed, or start"
                    " this silo with --restart"
                )
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                for round_ in rounds:  # an earlier version may be started next, and has to know it too
                    file.write(f"\n{json.dumps([round_, digest])}\n")  # the last line may be torn: begin a new one
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ProtocolError(f"what is signed cannot be written down in {self._path}: {error.strerror}") from error

    def _read(self) -> dict[str, str]:
        """Return digests by round; torn lines are skipped, as their signatures never left."""
        if not self._path.exists():
            return {}
        promised = dict[str, str]()
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                round_, digest = json.loads(line)
            except (ValueError, TypeError):
                continue
            promised[str(round_)] = str(digest)
        return promised
