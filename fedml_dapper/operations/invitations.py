"""The file of one-time codes, ``join_codes.json`` beside ca.pem: for each a digest of its secret, and what came of it.

    {"codes": [
      {"rank": 7, "digest": "9f2c...", "made": "2026-11-24T10:00:00Z", "expires": "2026-11-25T10:00:00Z",
       "certificate": "-----BEGIN CERTIFICATE-----..."}
    ]}

Whoever reads it learns no code. A spent code stays in the list with its certificate, so that the device that spent it
can be told the answer again if it got lost.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from fedml_dapper.errors import ConfigError
from fedml_dapper.files.atomic import FOR_ITS_OWNER, written_whole
from fedml_dapper.files.locks import locked
from fedml_dapper.files.regular_file import read_regular
from fedml_dapper.operations.authority import read_authority
from fedml_dapper.operations.join_code import MAX_RANK, JoinCode, digest_of

FILE_NAME = "join_codes.json"
LOCK_NAME = ".join_codes.lock"
MAX_CODES = 10_000
MAX_BYTES = 1 << 25
"""Largest file, in bytes: more than ``MAX_CODES`` spent codes."""
KEPT = timedelta(days=30)
"""How long after its expiry a code is remembered."""
_PATIENCE_SECONDS = 10.0
_CERTIFIED = re.compile(r"(silo|edge)-([1-9][0-9]{0,6})\.(pem|key)")


class Invitation(BaseModel):
    """What is kept of a code."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int = Field(ge=1, le=MAX_RANK)
    """Rank of the silo that it is for."""
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of its secret."""
    made: AwareDatetime
    expires: AwareDatetime
    certificate: str | None = Field(default=None, max_length=1 << 14)
    """Certificate (PEM) that it was spent for; None where it was not spent."""

    @property
    def is_expired(self) -> bool:
        """Whether it comes too late to be spent."""
        return datetime.now(timezone.utc) >= self.expires


class Invitations(BaseModel):
    """All codes of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    codes: tuple[Invitation, ...] = Field(default=(), max_length=MAX_CODES)

    def find(self, rank: int, secret: str) -> Invitation | None:
        """Return the code of this rank and secret, or None. The time that it takes says nothing about secrets."""
        digest = digest_of(secret)
        found = None
        for one in self.codes:
            if one.rank == rank and hmac.compare_digest(one.digest, digest):
                found = one
        return found


class InvitationFile:
    """The file in the folder ``certificates``; whoever changes it holds it meanwhile."""

    def __init__(self, certificates: Path) -> None:
        self._file = certificates / FILE_NAME

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep all others, also in other processes, from changing the file during the block.

        Raises:
            DataError: Another holds it for long, or nothing can be written beside it.
        """
        with locked(self._file.with_name(LOCK_NAME), _PATIENCE_SECONDS):
            yield

    def read(self) -> Invitations:
        """Read the file; no code where there is none.

        Raises:
            ConfigError: It cannot be read, or is no such file.
        """
        try:
            content = read_regular(self._file, MAX_BYTES)
        except FileNotFoundError:
            return Invitations()
        except OSError as error:
            raise ConfigError(f"{self._file}: cannot be read ({error.strerror})") from error
        try:
            return Invitations.model_validate_json(content)
        except ValidationError as error:
            raise ConfigError(
                f"{self._file}: not the file of join codes that `fedml-dapper silos invite` writes; move it away, and"
                " hand out new codes"
            ) from error

    def write(self, codes: Sequence[Invitation]) -> None:
        """Replace the file; raise :class:`DataError` where the disk does not take it, and the former one stays."""
        lines = ",\n  ".join(code.model_dump_json(exclude_defaults=True) for code in codes)
        with written_whole(self._file, FOR_ITS_OWNER) as scratch:
            scratch.write_text(f'{{"codes": [\n  {lines}\n]}}\n', encoding="utf-8")

    def spend(self, code: Invitation, certificate: bytes) -> None:
        """Write down that ``code`` was spent for ``certificate``; the file has to be held since it was read."""
        spent = Invitation.model_validate(code.model_dump() | {"certificate": certificate.decode()})
        self.write([spent if one == code else one for one in self.read().codes])


def invite(certificates: Path, count: int, lifetime: timedelta, first_rank: int | None = None) -> list[JoinCode]:
    """Make ``count`` codes that can be spent for ``lifetime``, and write their digests down.

    Args:
        certificates: Folder of the authority's ca.pem.
        count: One code for each silo.
        lifetime: From now on.
        first_rank: Rank of the first silo; those of the others follow. Codes of these silos that were not spent are
            withdrawn. By default the lowest ranks that neither a certificate nor a code has.

    Raises:
        ConfigError: There is no authority, a silo's key was made here, or there are too many codes.
        DataError: The file cannot be written.
    """
    authority = read_authority(certificates)
    file = InvitationFile(certificates)
    with file.held():
        now = datetime.now(timezone.utc).replace(microsecond=0)
        codes = [one for one in file.read().codes if now < one.expires + KEPT]
        ranks = _free_ranks(certificates, codes, count) if first_rank is None else range(first_rank, first_rank + count)
        _check_ranks(certificates, ranks)
        kept = [one for one in codes if one.rank not in ranks or one.certificate is not None]
        if len(kept) + count > MAX_CODES:
            raise ConfigError(f"{certificates / FILE_NAME}: takes {MAX_CODES} codes, and holds {len(kept)}")
        made = [JoinCode.new(rank, authority) for rank in ranks]
        new = [
            Invitation(rank=code.rank, digest=digest_of(code.secret), made=now, expires=now + lifetime) for code in made
        ]
        file.write([*kept, *new])
    return made


def _free_ranks(certificates: Path, codes: Sequence[Invitation], count: int) -> list[int]:
    """Return the lowest ranks of which there is neither a certificate nor a code that was, or can be, spent."""
    taken = {one.rank for one in codes if one.certificate is not None or not one.is_expired}
    taken |= {int(found[2]) for path in certificates.iterdir() if (found := _CERTIFIED.fullmatch(path.name))}
    return [rank for rank in range(1, count + len(taken) + 1) if rank not in taken][:count]


def _check_ranks(certificates: Path, ranks: Sequence[int]) -> None:
    if ranks[-1] > MAX_RANK:
        raise ConfigError(f"silo-{ranks[-1]}: ranks end at {MAX_RANK}")
    for rank in ranks:
        key = certificates / f"silo-{rank}.key"
        if key.exists():
            raise ConfigError(
                f"{key}: the key of silo-{rank} was made here, and a device that joins makes its own; move this file"
                f" and silo-{rank}.pem away first"
            )
