"""Decision on requests to join by a code: the part of ``fedml-dapper silos enroll`` that answers and writes down.

It is for a network of strangers. What they may try, and what comes of it:

- **Guess a secret.** It has 120 random bits and is compared in constant time. A host that guesses wrong is soon told to
  come back later, and no answer says whether a silo has a code. Other hosts are not held up by it, however many
  addresses it has.
- **Use a stolen code.** Before its device does, that works, once: the device is then told that its code is spent, which
  the audit log says too, with the host. After it, nothing happens. Of two at the same moment one wins, as each is
  answered while the file of codes is held, also across processes.
- **Use an old code.** It is refused once it has expired, or has been withdrawn by another for the same silo.
- **Ask for more.** The certificate has the code's name, no other, and is a silo's: whatever else a request asks for is
  not looked at. A request for another name is refused, and its code stays good.
- **Send anything else.** What is too long or no request is refused before any file is read.
- **Read the folder's file of codes.** It has digests of secrets alone. Whoever reads ``ca.key`` needs no code.

A kill at any moment costs nothing. A certificate is in its file, and with its code in the file of codes, before anybody
is told. A device whose answer was lost asks again with the same key, and gets the same certificate.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509

from fedml_dapper.errors import ConfigError, DapperError, ProtocolError
from fedml_dapper.files.atomic import written_whole
from fedml_dapper.operations.audit_log import AuditLog
from fedml_dapper.operations.authority import Authority, CertificateRequest, public_bytes
from fedml_dapper.operations.certificate import certificate_of
from fedml_dapper.operations.guess_limits import GuessLimits
from fedml_dapper.operations.invitations import Invitation, InvitationFile
from fedml_dapper.operations.join_request import JoinLaterError, JoinRefusedError, JoinRequest, read_join_request
from fedml_dapper.operations.membership import add_members, read_membership
from fedml_dapper.operations.rate_limiter import RateLimiter

LOGGER = logging.getLogger(__name__)
REFUSALS_AT_ONCE = 20.0
REFUSALS_PER_SECOND = 1.0
"""Refusals that get a line in the log, at once and per second."""
STRANGER = "stranger"
"""Name in the audit log of callers without a right code: one for all, as they could invent any number of names."""


class Registrar:
    """Answers requests to join. Safe to use from any thread, and beside others for the same folder.

    Args:
        authority: Makes the certificates; they and the codes are in its folder.
        members_file: List that new certificates are added to; None where all of the authority's may call.
        audit: Log of what came of each request.
        clock: Seconds, for the limit of guesses.

    Raises:
        ConfigError: The file of codes or the list of members is unusable.
    """

    def __init__(
        self,
        authority: Authority,
        members_file: Path | None,
        audit: AuditLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._authority = authority
        self._members_file = members_file
        self._file = InvitationFile(authority.certificates)
        self._audit = audit
        self._deciding = threading.Lock()
        self._guesses = GuessLimits(clock)
        self._refusals_logged = RateLimiter(REFUSALS_AT_ONCE, REFUSALS_PER_SECOND, clock)
        self._file.read()
        if members_file is not None and members_file.exists():
            read_membership(members_file)
        elif members_file is not None and not members_file.parent.is_dir():
            raise ConfigError(f"{members_file}: no folder {members_file.parent}")

    @property
    def authority(self) -> bytes:
        """Content of ca.pem."""
        return self._authority.pem

    def answer(self, content: bytes, peer: str) -> bytes:
        """Return the certificate (PEM) for a :class:`JoinRequest` that came from ``peer``, written ``ipv4:HOST:PORT``.

        Raises:
            JoinRefusedError: It would be refused again.
            JoinLaterError: It is not looked at now.
            DapperError: It could not be written down; the same request may be answered later.
        """
        who = STRANGER
        try:
            request = read_join_request(content)
            with self._shown_code(request, peer) as code:
                who = f"silo-{code.rank}"
                certificate, is_new = self._certificate_for(code, request)
        except (ProtocolError, JoinRefusedError, JoinLaterError) as refusal:
            self._note_refusal(who, peer, str(refusal))
            if isinstance(refusal, ProtocolError):
                raise JoinRefusedError(str(refusal)) from refusal
            raise
        except DapperError as error:
            LOGGER.critical("%s at %s has got no certificate: %s", who, peer, error)
            self._audit.record("join_failed", who, peer=peer, reason=str(error))
            raise
        fingerprint = certificate_of(certificate).fingerprint
        self._audit.record("joined" if is_new else "joined_again", who, peer=peer, fingerprint=fingerprint)
        LOGGER.info("%s has joined from %s, with the certificate %s", who, peer, fingerprint[:16])
        return certificate

    @contextmanager
    def _shown_code(self, request: JoinRequest, peer: str) -> Iterator[Invitation]:
        """Provide the code that a request shows, and hold the file that it is in during the block."""
        with self._deciding:
            guesses = self._guesses.of(peer)
            if not guesses.take():
                raise JoinLaterError("too many codes that are not known came from this host; try again in a minute")
            with self._file.held():
                code = self._file.read().find(request.rank, request.secret)
                if code is None:
                    raise JoinRefusedError("this code is not known here; was another handed out in its place?")
                guesses.give_back()
                yield code

    def _certificate_for(self, code: Invitation, request: JoinRequest) -> tuple[bytes, bool]:
        """Return the certificate that the code was or is now spent for, and whether it is new."""
        asked = CertificateRequest.read(request.request.encode())
        name = f"silo-{code.rank}"
        if code.certificate is not None:
            certificate = code.certificate.encode()
            if _key_of(certificate) != asked.key_bytes:
                raise JoinRefusedError(
                    f"the code of {name} is spent, by another key; if that was not you, tell the administrator, who"
                    f" revokes {name} and hands out another code"
                )
            self._let_call(certificate)
            return certificate, False
        if code.is_expired:
            raise JoinRefusedError(f"the code of {name} has expired on {code.expires:%Y-%m-%d %H:%M} UTC")
        if asked.name != name:
            raise JoinRefusedError(f"the code is for {name}, and a certificate of another name is asked for")
        certificate = self._authority.certify(name, asked.key)
        with written_whole(self._authority.certificates / f"{name}.pem") as scratch:
            scratch.write_bytes(certificate)
        self._file.spend(code, certificate)
        self._let_call(certificate)
        return certificate, True

    def _let_call(self, pem: bytes) -> None:
        """Add a certificate to the list of members if it is not there yet."""
        if self._members_file is None:
            return
        certificate = certificate_of(pem)
        listed = read_membership(self._members_file) if self._members_file.exists() else None
        known = None if listed is None else listed.find(certificate.fingerprint)
        if known is None:
            add_members(self._members_file, [certificate])
        elif known.revoked is not None:
            raise JoinRefusedError(f"the certificate of {known.name} was revoked on {known.revoked:%Y-%m-%d}")

    def _note_refusal(self, who: str, peer: str, reason: str) -> None:
        self._audit.record("join_refused", who, peer=peer, reason=reason)
        if self._refusals_logged.take():
            LOGGER.warning("refused %s at %s: %s", who, peer, reason)


def _key_of(certificate: bytes) -> bytes:
    return public_bytes(x509.load_pem_x509_certificate(certificate).public_key())
