"""A device joins by a one-time code, and what attackers try on the way; all of it over gRPC on loopback."""

from __future__ import annotations

import hmac
import json
import shutil
import signal
import stat
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier, Event

import grpc
import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from fedml_dapper.cli import main as fedml_dapper
from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.device.commands import main as dapper_device
from fedml_dapper.device.joining import join
from fedml_dapper.errors import ConfigError, DapperError
from fedml_dapper.operations import AuditLog, read_certificate, read_membership, revoke_members
from fedml_dapper.operations.audit_log import entries_of
from fedml_dapper.operations.authority import Authority
from fedml_dapper.operations.credentials import read_credentials
from fedml_dapper.operations.guess_limits import GUESSES_AT_ONCE, GUESSES_PER_SECOND, MAX_HOSTS
from fedml_dapper.operations.invitations import FILE_NAME, InvitationFile, invite
from fedml_dapper.operations.join_code import JoinCode, digest_of
from fedml_dapper.operations.join_request import (
    AUTHORITY,
    JOIN,
    MAX_REQUEST_BYTES,
    SERVICE,
    JoinLaterError,
    JoinRefusedError,
    JoinRequest,
    ask_for_certificate,
)
from fedml_dapper.operations.peers import host_of
from fedml_dapper.operations.registrar import Registrar
from fedml_dapper.secure_grpc.enrolment import RECEIVED_BYTES, EnrolmentService

from ..connect_proxy import ConnectProxy
from ..platform.processes import ROOT, Silos, free_port, needs_ipv6
from ..waiting import wait_until
from .conftest import NUM_DEVICES, Devices
from .lightly import __file__ as lightly

DAY = timedelta(days=1)


def make_certificates(folder: Path, num_silos: int, *options: str) -> Path:
    command = ["bash", ROOT / "run" / "make_certs.sh", folder, str(num_silos), *options]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a federation's authority whose silos all join by codes."""
    return make_certificates(tmp_path_factory.mktemp("trusted") / "certs", 0, "localhost")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("foreign") / "certs", 1, "localhost")


@pytest.fixture
def certs(made: Path, tmp_path: Path) -> Path:
    """The administrator's folder."""
    return shutil.copytree(made, tmp_path / "administrator" / "certs")


class Enrolment:
    """A service of ``silos enroll`` in this process, and what it was asked."""

    def __init__(
        self, certs: Path, members: Path | None, clock: Callable[[], float], host: str = "localhost"
    ) -> None:  # fmt: skip
        self.certs = certs
        self.audit_file = certs / f"joins-{free_port()}.jsonl"
        self._audit = AuditLog(self.audit_file)
        self.registrar = Registrar(Authority(certs), members, self._audit, clock)
        self.address = f"{host}:{free_port()}"
        self._service = EnrolmentService(certs, self.address, self.registrar)

    def code(self, rank: int | None = None, lifetime: timedelta = DAY) -> JoinCode:
        [code] = invite(self.certs, 1, lifetime, rank)
        return code

    def events(self) -> list[tuple[str, str]]:
        """The audit log's events, and who caused each."""
        return [(entry.event, entry.who) for entry in entries_of(self.audit_file)]

    def reasons(self) -> list[str]:
        return [str(entry.detail["reason"]) for entry in entries_of(self.audit_file) if "reason" in entry.detail]

    def ask(self, code: JoinCode, request: str) -> bytes:
        asked = JoinRequest(rank=code.rank, secret=code.secret, request=request)
        return ask_for_certificate(self.address, (self.certs / "ca.pem").read_bytes(), asked)

    def call(self, content: bytes) -> bytes:
        """What a call of any content is answered with."""
        tls = grpc.ssl_channel_credentials((self.certs / "ca.pem").read_bytes())
        with grpc.secure_channel(self.address, tls) as channel:
            answer: bytes = channel.unary_unary(f"/{SERVICE}/{JOIN}")(content, timeout=60)
        return answer

    def is_spent(self, code: JoinCode) -> bool:
        found = InvitationFile(self.certs).read().find(code.rank, code.secret)
        assert found is not None
        return found.certificate is not None

    def stop(self) -> None:
        self._service.stop()
        self._audit.close()


class Clock:
    """Seconds, as a test has them."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


Opener = Callable[..., Enrolment]


@pytest.fixture
def enroll(certs: Path, clock: Clock) -> Iterator[Opener]:
    """``enroll()``: a service of the federation, ``enroll(members)`` with its list of members."""
    opened: list[Enrolment] = []

    def begin(members: Path | None = None, folder: Path = certs, host: str = "localhost") -> Enrolment:
        opened.append(Enrolment(folder, members, clock, host))
        return opened[-1]

    yield begin
    for one in opened:
        one.stop()


@pytest.fixture
def enrolment(enroll: Opener) -> Enrolment:
    return enroll()


def device(address: str, code: object, folder: Path) -> Result:
    return CliRunner().invoke(dapper_device, ["join", address, str(code), "--certificates", str(folder)])


def refused(result: Result, folder: Path) -> str:
    """The one line by which a device that got nothing ends; nothing of it is left."""
    assert result.exit_code == 2, result.output
    [line] = result.stderr.splitlines()
    assert line.startswith("dapper-device: ")
    assert not folder.exists()
    assert list(folder.parent.glob(f".{folder.name}*")) == []
    return line


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def request_of(
    names: Sequence[str],
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None,
    extensions: Sequence[x509.ExtensionType] = (),
) -> str:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(key or new_key(), SHA256()).public_bytes(Encoding.PEM).decode()


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


# What is meant to happen


def test_a_device_joins_with_a_key_that_nobody_else_has(
    enrolment: Enrolment, certs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedml_dapper")
    command = ["silos", "invite", "--certificates", str(certs), "--count", "3", "--expires", "24h"]
    invited = CliRunner().invoke(fedml_dapper, [*command, "-o", str(tmp_path / "codes.txt")])
    assert invited.exit_code == 0, invited.output
    codes = (tmp_path / "codes.txt").read_text().split()
    assert [code.split(".")[0] for code in codes] == ["silo-1", "silo-2", "silo-3"]
    assert mode(tmp_path / "codes.txt") == mode(certs / FILE_NAME) == 0o600
    assert [code for code in codes if JoinCode.read(code).secret in (certs / FILE_NAME).read_text()] == []

    folder = tmp_path / "device" / "certs"
    joined = device(enrolment.address, codes[1], folder)
    assert joined.exit_code == 0, joined.output
    first, then = joined.stdout.splitlines()
    assert first.startswith("This device is silo-2, until 20")
    assert then == "To take part: dapper-device run shared.yaml device.yaml"
    assert sorted(file.name for file in folder.iterdir()) == ["ca.pem", "silo-2.key", "silo-2.pem"]
    assert list(folder.parent.iterdir()) == [folder]
    assert mode(folder / "silo-2.key") == 0o600
    config = SecureGrpcConfig(server_address="localhost:8890", certificates=folder)
    assert read_credentials(config, rank=2).certificate == (certs / "silo-2.pem").read_bytes()
    private = (folder / "silo-2.key").read_bytes()
    assert [file for file in certs.rglob("*") if file.is_file() and private in file.read_bytes()] == []
    assert enrolment.events() == [("joined", "silo-2")]
    [line] = [record.getMessage() for record in caplog.records if "has joined" in record.getMessage()]
    assert line.endswith(f"with the certificate {read_certificate(folder / 'silo-2.pem').fingerprint[:16]}")


def test_its_certificate_is_like_those_of_make_certs(enrolment: Enrolment, certs: Path, tmp_path: Path) -> None:
    folder = join_as(enrolment, 2, tmp_path / "certs")
    subprocess.run(
        ["bash", ROOT / "run" / "make_certs.sh", certs, "--renew", "silo-1"], check=True, capture_output=True
    )
    ours, theirs = (
        x509.load_pem_x509_certificate(file.read_bytes()) for file in (folder / "silo-2.pem", certs / "silo-1.pem")
    )
    own = x509.SubjectKeyIdentifier
    assert {(each.oid, each.critical) for each in ours.extensions} == {
        (each.oid, each.critical) for each in theirs.extensions
    }
    assert [each.value for each in ours.extensions if not isinstance(each.value, own)] == [
        each.value for each in theirs.extensions if not isinstance(each.value, own)
    ]
    assert ours.issuer == theirs.issuer
    assert ours.version == theirs.version
    assert ours.signature_algorithm_oid == theirs.signature_algorithm_oid
    assert abs(ours.not_valid_after_utc - theirs.not_valid_after_utc) < timedelta(minutes=10)
    assert timedelta(0) <= theirs.not_valid_before_utc - ours.not_valid_before_utc < timedelta(minutes=10)


def join_as(enrolment: Enrolment, rank: int, folder: Path) -> Path:
    join(enrolment.address, enrolment.code(rank), folder)
    return folder


def test_a_code_can_be_retyped_and_is_long_enough() -> None:
    code = JoinCode.new(7, b"authority")
    assert JoinCode.read(f" {str(code).upper()}\n") == code
    assert code.secret not in repr(code)
    assert 5 * len(code.secret) >= 80  # bits
    assert len({JoinCode.new(7, b"authority").secret for _ in range(100)}) == 100
    for wrong in ("", "silo-7", str(code)[:-1], str(code).replace("silo-7", "silo-0"), f"{code}.x", "server.a.b"):
        with pytest.raises(ConfigError, match="no code to join by") as caught:
            JoinCode.read(wrong)
        assert code.secret not in str(caught.value)


def test_codes_are_for_the_lowest_free_ranks(certs: Path) -> None:
    for name in ("silo-1.pem", "edge-4.pem"):
        (certs / name).touch()
    assert [code.rank for code in invite(certs, 2, DAY)] == [2, 3]
    assert [code.rank for code in invite(certs, 2, DAY)] == [5, 6]
    assert [code.rank for code in invite(certs, 2, -DAY)] == [7, 8]
    assert [code.rank for code in invite(certs, 1, DAY)] == [7]  # those have expired


def test_a_new_code_for_a_silo_takes_the_place_of_one_that_was_not_used(enrolment: Enrolment, tmp_path: Path) -> None:
    lost = enrolment.code(3)
    other = enrolment.code(4)
    found = enrolment.code(3)
    assert "this code is not known here" in refused(device(enrolment.address, lost, tmp_path / "a"), tmp_path / "a")
    for code in (found, other):
        join(enrolment.address, code, tmp_path / code.name)


def test_a_silo_gets_a_new_certificate_by_another_code(enrolment: Enrolment, certs: Path, tmp_path: Path) -> None:
    first = join_as(enrolment, 3, tmp_path / "first")
    second = join_as(enrolment, 3, tmp_path / "second")
    assert (first / "silo-3.key").read_bytes() != (second / "silo-3.key").read_bytes()
    assert (second / "silo-3.pem").read_bytes() == (certs / "silo-3.pem").read_bytes()


def test_without_a_file_the_codes_are_all_that_is_printed(certs: Path) -> None:
    printed = CliRunner().invoke(fedml_dapper, ["silos", "invite", "--certificates", str(certs), "--count", "2"])
    assert [JoinCode.read(line).rank for line in printed.stdout.splitlines()] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--certificates", "nowhere"], "nowhere/ca.pem: cannot be read"),
        (["-o", "certs/ca.pem"], "certs/ca.pem: is there already"),
        (["--first-rank", "1", "--count", "2"], "certs/silo-2.key: the key of silo-2 was made here"),
        (["--first-rank", "9999999", "--count", "2"], "silo-10000000: ranks end at 9999999"),
        (["--count", "10001"], "certs/join_codes.json: takes 10000 codes, and holds 0"),
        (["--expires", "91d"], "expected minutes, hours or days such as 30m, 24h or 7d, up to 90d"),
        (["--expires", "soon"], "expected minutes, hours or days"),
    ],
)
def test_what_invite_refuses_is_one_line(
    certs: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(certs.parent)
    (certs / "silo-2.key").touch()
    told = CliRunner().invoke(fedml_dapper, ["silos", "invite", *arguments])
    assert told.exit_code == 2
    assert said in told.stderr.splitlines()[-1]
    assert not (certs / FILE_NAME).exists()


def test_what_enroll_refuses_is_one_line(
    certs: Path, foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enrolment: Enrolment
) -> None:
    monkeypatch.chdir(tmp_path)
    without = shutil.copytree(certs, tmp_path / "without")
    (without / "ca.key").unlink()
    (mixed := shutil.copytree(certs, tmp_path / "mixed")).joinpath("ca.key").write_bytes(
        (foreign / "ca.key").read_bytes()
    )
    (damaged := shutil.copytree(certs, tmp_path / "damaged")).joinpath(FILE_NAME).write_text("{")
    for folder, more, said in (
        (without, [], "without: holds no ca.key, by which certificates could be made"),
        (mixed, [], "mixed/ca.key: not the key of an authority in"),
        (damaged, [], f"damaged/{FILE_NAME}: not the file of join codes"),
        (certs, ["--members", "no/members.json"], "no/members.json: no folder no"),
        (certs, ["--listen", enrolment.address], f"--listen {enrolment.address}: cannot listen there"),
        (certs, ["--listen", "8890"], "expected HOST:PORT"),
    ):
        listen = [] if "--listen" in more else ["--listen", "127.0.0.1:0"]
        listen = [part.replace(":0", f":{free_port()}") for part in listen]
        told = CliRunner().invoke(fedml_dapper, ["silos", "enroll", "--certificates", str(folder), *listen, *more])
        assert told.exit_code == 2, told.output
        [line] = [line for line in told.stderr.splitlines() if line.startswith("fedml-dapper: ")]
        assert said in line


def test_with_a_list_of_members_it_is_on_it_and_can_be_revoked(enroll: Opener, tmp_path: Path) -> None:
    members = tmp_path / "members.json"
    enrolment = enroll(members)
    code = enrolment.code(3)
    request = request_of(["silo-3"])
    (tmp_path / "silo-3.pem").write_bytes(enrolment.ask(code, request))
    shown = read_certificate(tmp_path / "silo-3.pem")
    assert read_membership(members).refusal(shown) is None
    revoke_members(members, "silo-3")
    with pytest.raises(JoinRefusedError, match="of silo-3 was revoked on"):
        enrolment.ask(code, request)
    assert "was revoked on" in (read_membership(members).refusal(shown) or "")
    join_as(enrolment, 3, tmp_path / "again")  # by another code and key
    assert read_membership(members).refusal(read_certificate(tmp_path / "again" / "silo-3.pem")) is None


# Codes in other hands


def test_a_spent_code_opens_nothing_a_second_time(
    enrolment: Enrolment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = enrolment.code()
    join(enrolment.address, code, tmp_path / "thief")
    caplog.clear()
    line = refused(device(enrolment.address, code, tmp_path / "victim"), tmp_path / "victim")
    assert "the code of silo-1 is spent, by another key; if that was not you, tell the administrator" in line
    assert enrolment.events() == [("joined", "silo-1"), ("join_refused", "silo-1")]
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("refused silo-1 at ipv")


def test_of_devices_that_race_for_a_code_exactly_one_wins(enroll: Opener, certs: Path) -> None:
    services = [enroll(), enroll()]  # as two processes for one folder would
    racers = [service for service in services for _ in range(3)]
    with ThreadPoolExecutor(len(racers)) as pool:
        for _ in range(5):
            code = services[0].code()
            start = Barrier(len(racers))

            def race(service: Enrolment, code: JoinCode = code, start: Barrier = start) -> bytes | str:
                request = request_of([code.name])
                start.wait()
                try:
                    return service.ask(code, request)
                except JoinRefusedError as refusal:
                    return str(refusal)

            came = list(pool.map(race, racers))
            [won] = [answer for answer in came if isinstance(answer, bytes)]
            assert won == (certs / f"{code.name}.pem").read_bytes()
            lost = [answer for answer in came if isinstance(answer, str)]
            assert len(lost) == len(racers) - 1
            assert all("is spent, by another key" in answer for answer in lost)


def test_an_expired_code_opens_nothing(enrolment: Enrolment, certs: Path, tmp_path: Path) -> None:
    code = enrolment.code(2, lifetime=-timedelta(seconds=1))
    line = refused(device(enrolment.address, code, tmp_path / "certs"), tmp_path / "certs")
    assert "the code of silo-2 has expired on 20" in line
    assert enrolment.events() == [("join_refused", "silo-2")]
    assert not (certs / "silo-2.pem").exists()


# Guesses


def guess(code: JoinCode) -> JoinCode:
    """A code of the same silo and authority, with another secret."""
    return JoinCode(code.rank, JoinCode.new(code.rank, b"").secret, code.fingerprint)


def test_a_wrong_secret_is_refused_and_says_nothing_about_the_silo(
    enrolment: Enrolment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = enrolment.code()
    compared = []
    compare = hmac.compare_digest

    def remember(one: str, other: str) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", remember)
    wrong = guess(code)
    nobody_s = JoinCode(99, code.secret, code.fingerprint)
    lines = {
        refused(device(enrolment.address, tried, tmp_path / "certs"), tmp_path / "certs") for tried in (wrong, nobody_s)
    }
    assert lines == {f"dapper-device: {enrolment.address} refuses: this code is not known here; was another handed out"
                     " in its place?"}  # fmt: skip
    assert compared == [(digest_of(code.secret), digest_of(wrong.secret))]  # by what takes the same time for all
    assert enrolment.events() == [("join_refused", "stranger")] * 2
    assert not enrolment.is_spent(code)


def test_guesses_are_limited_by_host_and_those_who_know_are_not_held_up(enrolment: Enrolment, clock: Clock) -> None:
    code = enrolment.code()

    def tried(code: JoinCode, host: str = "ipv4:192.0.2.7") -> str:
        asked = JoinRequest(rank=code.rank, secret=code.secret, request=request)
        try:
            enrolment.registrar.answer(asked.model_dump_json().encode(), f"{host}:5000")
        except JoinRefusedError:
            return "refused"
        except JoinLaterError:
            return "later"
        return "joined"

    request = request_of([code.name])
    assert {tried(code) for _ in range(3 * int(GUESSES_AT_ONCE))} == {"joined"}
    assert [tried(guess(code)) for _ in range(int(GUESSES_AT_ONCE) + 2)] == [
        *["refused"] * int(GUESSES_AT_ONCE), "later", "later"
    ]  # fmt: skip
    assert tried(code) == "later"  # or the next guess would be answered, too
    assert tried(code, "ipv4:192.0.2.8") == "joined"
    clock.now += 1 / GUESSES_PER_SECOND
    assert tried(code) == "joined"
    assert ("join_refused", "stranger") in enrolment.events()


def test_no_number_of_addresses_keeps_a_device_with_a_right_code_out(enrolment: Enrolment, clock: Clock) -> None:
    code = enrolment.code()
    wrong = guess(code)

    def tried(code: JoinCode, host: str) -> str:
        asked = JoinRequest(rank=code.rank, secret=code.secret, request=request)
        try:
            enrolment.registrar.answer(asked.model_dump_json().encode(), f"{host}:5000")
        except DapperError as error:
            return type(error).__name__
        return "joined"

    request = request_of([code.name])
    one_network = [tried(wrong, f"ipv6:%5B2001:db8::{number:x}%5D") for number in range(2 * int(GUESSES_AT_ONCE))]
    assert one_network == ["JoinRefusedError"] * int(GUESSES_AT_ONCE) + ["JoinLaterError"] * int(GUESSES_AT_ONCE)
    assert tried(wrong, "ipv6:%5B2001:db8:0:1::1%5D") == "JoinRefusedError"  # another network
    for number in range(MAX_HOSTS + 2 * int(GUESSES_AT_ONCE)):  # more than are told apart
        tried(wrong, f"ipv6:%5B2001:db8:1:{number:x}::1%5D")
    assert tried(code, "ipv4:198.51.100.7") == "joined"
    clock.now += GUESSES_AT_ONCE / GUESSES_PER_SECOND
    assert {tried(wrong, "ipv4:203.0.113.5") for _ in range(2 * int(GUESSES_AT_ONCE))} == {
        "JoinRefusedError", "JoinLaterError"
    }  # fmt: skip  # those that have stopped guessing make room


def test_a_host_is_the_network_that_its_caller_has() -> None:
    hosts = {
        "ipv4:192.0.2.7:5000": "192.0.2.7",
        "ipv6:%5B2001:db8::1%5D:5000": "2001:db8::/64",
        "ipv6:[2001:db8::ffff:1]:5000": "2001:db8::/64",
        "ipv6:%5Bfe80::1%25eth0%5D:5000": "fe80::/64",
        "ipv6:%5B::ffff:192.0.2.7%5D:5000": "192.0.2.7",
        "unix:/run/socket:0": "unix:/run/socket",
    }
    assert {peer: host_of(peer) for peer in hosts} == hosts


def test_a_device_that_is_to_come_later_keeps_its_key(enrolment: Enrolment, clock: Clock, tmp_path: Path) -> None:
    code = enrolment.code()
    request = request_of([code.name])
    for _ in range(int(GUESSES_AT_ONCE)):
        with pytest.raises(JoinRefusedError):
            enrolment.ask(guess(code), request)
    with pytest.raises(JoinLaterError, match="refuses for now: too many codes that are not known came from this host"):
        join(enrolment.address, code, tmp_path / "certs")
    [key] = tmp_path.glob(".certs.joining-silo-1/silo-1.key")
    kept = key.read_bytes()
    clock.now += 1 / GUESSES_PER_SECOND
    join(enrolment.address, code, tmp_path / "certs")
    assert (tmp_path / "certs" / "silo-1.key").read_bytes() == kept


# Others in the service's place


class Poser:
    """Whoever has a certificate and key, in a service's place: shows an authority, and keeps what is sent to it."""

    def __init__(self, folder: Path, name: str, authority: bytes) -> None:
        self.asked: list[bytes] = []
        self.heard: list[bytes] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        handlers = {
            AUTHORITY: grpc.unary_unary_rpc_method_handler(lambda asked, _: self.asked.append(asked) or authority),
            JOIN: grpc.unary_unary_rpc_method_handler(lambda heard, _: self.heard.append(heard) or b"thank you"),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        pair = ((folder / f"{name}.key").read_bytes(), (folder / f"{name}.pem").read_bytes())
        self.port = self._server.add_secure_port("localhost:0", grpc.ssl_server_credentials([pair]))
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()


PoserOf = Callable[[Path, str, bytes], Poser]


@pytest.fixture
def pose() -> Iterator[PoserOf]:
    posing: list[Poser] = []

    def begin(folder: Path, name: str, authority: bytes) -> Poser:
        posing.append(Poser(folder, name, authority))
        return posing[-1]

    yield begin
    for one in posing:
        one.stop()


def test_a_poser_hears_what_is_sent_to_it(certs: Path, pose: PoserOf, tmp_path: Path) -> None:
    """Or the tests below would prove nothing."""
    poser = pose(certs, "server", (certs / "ca.pem").read_bytes())
    [code] = invite(certs, 1, DAY)
    with pytest.raises(ConfigError, match=r"\.certs\.joining-silo-1/silo-1\.pem: not a certificate that goes with"):
        join(f"localhost:{poser.port}", code, tmp_path / "certs")
    assert not (tmp_path / "certs").exists()
    assert poser.asked == [b""]
    [heard] = poser.heard
    assert JoinRequest.model_validate_json(heard).secret == code.secret
    assert b"PRIVATE" not in heard


def test_a_code_of_another_federation_is_not_sent(certs: Path, foreign: Path, pose: PoserOf, tmp_path: Path) -> None:
    poser = pose(foreign, "server", (foreign / "ca.pem").read_bytes())
    [code] = invite(certs, 1, DAY)
    line = refused(device(f"localhost:{poser.port}", code, tmp_path / "certs"), tmp_path / "certs")
    assert "shows another authority (" in line
    assert line.endswith("it is another federation, or somebody in between; nothing was sent")
    assert poser.asked == [b""]
    assert poser.heard == []


def test_who_adds_an_authority_of_their_own_to_the_right_one_learns_nothing(
    certs: Path, foreign: Path, pose: PoserOf, tmp_path: Path
) -> None:
    both = (certs / "ca.pem").read_bytes() + (foreign / "ca.pem").read_bytes()
    poser = pose(foreign, "server", both)
    [code] = invite(certs, 1, DAY)
    line = refused(device(f"localhost:{poser.port}", code, tmp_path / "certs"), tmp_path / "certs")
    assert "shows another authority" in line
    assert poser.heard == []


@pytest.mark.parametrize("as_whom", ["another authority's server", "a silo of this federation"])
def test_who_passes_on_the_right_authority_learns_nothing(
    certs: Path, foreign: Path, enrolment: Enrolment, pose: PoserOf, tmp_path: Path, as_whom: str
) -> None:
    folder = foreign if as_whom == "another authority's server" else join_as(enrolment, 5, tmp_path / "silo")
    name = "server" if folder == foreign else "silo-5"
    poser = pose(folder, name, (certs / "ca.pem").read_bytes())
    code = enrolment.code()
    with pytest.raises(DapperError) as caught:
        join(f"localhost:{poser.port}", code, tmp_path / "certs")
    assert "shows a certificate that its authority does not vouch for, or of another name" in str(caught.value)
    request = JoinRequest(rank=code.rank, secret=code.secret, request=request_of([code.name]))
    with pytest.raises(DapperError, match="shows a certificate that its authority does not vouch for"):
        ask_for_certificate(f"localhost:{poser.port}", (certs / "ca.pem").read_bytes(), request)
    assert poser.heard == []
    assert not enrolment.is_spent(code)
    assert not (tmp_path / "certs").exists()


def test_a_host_that_the_server_s_certificate_does_not_name_is_not_told_the_code(
    enrolment: Enrolment, tmp_path: Path
) -> None:
    address = enrolment.address.replace("localhost", "127.0.0.1")
    line = refused(device(address, enrolment.code(), tmp_path / "certs"), tmp_path / "certs")
    assert "or of another name" in line
    assert enrolment.events() == []


def test_nobody_in_the_service_s_place_is_one_line(tmp_path: Path, certs: Path) -> None:
    [code] = invite(certs, 1, DAY)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    for address, tried, folder, said in (
        (f"localhost:{free_port()}", code, "certs", "nobody answers at localhost:"),
        ("localhost", code, "certs", "expected HOST:PORT"),
        ("localhost:1", "silo-1.abc", "certs", "that is no code to join by; expected silo-RANK.SECRET.FINGERPRINT"),
        ("localhost:1", code, "taken", "taken: is in use already, and a device joins into a folder of its own"),
    ):
        told = device(address, tried, tmp_path / folder)
        assert told.exit_code == 2
        [line] = told.stderr.splitlines()
        assert said in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["administrator", "taken"]


# Requests for more than the code is for


@pytest.mark.parametrize("names", [["server"], ["admin"], ["silo-7"], ["edge-1"], [], ["silo-1", "admin"], ["SILO-1"]])
def test_a_request_for_another_name_is_refused_and_the_code_stays_good(
    enrolment: Enrolment, certs: Path, tmp_path: Path, names: list[str]
) -> None:
    before = {file: file.read_bytes() for file in certs.glob("*.pem")}
    code = enrolment.code(1)
    with pytest.raises(JoinRefusedError, match="the code is for silo-1, and a certificate of another name is asked"):
        enrolment.ask(code, request_of(names))
    assert {file: file.read_bytes() for file in certs.glob("*.pem")} == before
    assert enrolment.events() == [("join_refused", "silo-1")]
    join(enrolment.address, code, tmp_path / "certs")


def test_of_what_else_a_request_asks_for_nothing_is_given(enrolment: Enrolment) -> None:
    wanted = [
        x509.BasicConstraints(ca=True, path_length=None),
        x509.SubjectAlternativeName([x509.DNSName("localhost")]),
        x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]),
    ]
    code = enrolment.code()
    got = x509.load_pem_x509_certificate(enrolment.ask(code, request_of([code.name], extensions=wanted)))
    assert not got.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = got.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    with pytest.raises(x509.ExtensionNotFound):
        got.extensions.get_extension_for_class(x509.SubjectAlternativeName)


def test_a_key_that_the_sender_does_not_have_or_of_another_kind_is_refused(enrolment: Enrolment) -> None:
    code = enrolment.code()
    honest = x509.load_pem_x509_csr(request_of([code.name]).encode())
    ours, others = (
        key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        for key in (honest.public_key(), new_key().public_key())
    )
    forged = honest.public_bytes(Encoding.DER).replace(ours, others)
    swapped = x509.load_der_x509_csr(forged).public_bytes(Encoding.PEM).decode()
    for request, said in (
        (swapped, "the request for a certificate is not signed by the key that it is for"),
        (request_of([code.name], rsa.generate_private_key(65537, 2048)), "none of the curve P-256"),
        (
            "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----",
            "no request for a certificate",
        ),
        ("", "that is no request for a certificate"),
    ):
        with pytest.raises(JoinRefusedError, match=said):
            enrolment.ask(code, request)
    assert not enrolment.is_spent(code)
    assert enrolment.events() == [("join_refused", code.name)] * 4


def test_what_is_too_large_or_no_request_is_refused_and_the_service_goes_on(
    enrolment: Enrolment, tmp_path: Path
) -> None:
    code = enrolment.code()
    good = {"rank": 1, "secret": code.secret, "request": request_of([code.name])}
    for content, said in (
        (b"x" * (MAX_REQUEST_BYTES + 1), f"a request to join takes at most {MAX_REQUEST_BYTES} bytes"),
        (json.dumps(good | {"request": "x" * 5000}).encode(), "that is no request to join"),
        (json.dumps(good | {"role": "admin"}).encode(), "that is no request to join"),
        (json.dumps(good | {"rank": True}).encode(), "that is no request to join"),
        (b"\xff\xfe", "that is no request to join"),
        (b"[" * MAX_REQUEST_BYTES, "that is no request to join"),
        (b"", "that is no request to join"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            enrolment.call(content)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert caught.value.details() == said
        assert enrolment.reasons()[-1] == said
    with pytest.raises(grpc.RpcError) as caught:
        enrolment.call(b"x" * (RECEIVED_BYTES + 1))  # gRPC itself ends it
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    join(enrolment.address, code, tmp_path / "certs")


# Kills, and answers that are lost

KILLED = """
import os, signal, sys
from pathlib import Path
from fedml_dapper.operations import AuditLog
from fedml_dapper.operations.authority import Authority
from fedml_dapper.operations.invitations import InvitationFile
from fedml_dapper.operations.peers import host_of
from fedml_dapper.operations.registrar import Registrar

spend = InvitationFile.spend

def killed(*arguments):
    if sys.argv[2] == "after":
        spend(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

InvitationFile.spend = killed
Registrar(Authority(Path(sys.argv[1])), None, AuditLog(None)).answer(sys.stdin.buffer.read(), "ipv4:127.0.0.1:1")
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_service_that_is_killed_costs_no_code(enroll: Opener, certs: Path, when: str) -> None:
    """Killed when the certificate is in its file, before or after the code is spent for it, and nobody is told."""
    [code] = invite(certs, 1, DAY)
    request = request_of([code.name])
    asked = JoinRequest(rank=code.rank, secret=code.secret, request=request).model_dump_json()
    ended = subprocess.run([sys.executable, "-c", KILLED, certs, when], input=asked.encode(), check=False)
    assert ended.returncode == -signal.SIGKILL
    enrolment = enroll()
    assert enrolment.is_spent(code) == (when == "after")
    written = (certs / "silo-1.pem").read_bytes()
    if when == "after":
        with pytest.raises(JoinRefusedError, match="is spent, by another key"):
            enrolment.ask(code, request_of([code.name]))
    got = enrolment.ask(code, request)
    assert (got == written) == (when == "after")
    assert enrolment.ask(code, request) == got == (certs / "silo-1.pem").read_bytes()
    with pytest.raises(JoinRefusedError, match="is spent, by another key"):
        enrolment.ask(code, request_of([code.name]))


@needs_ipv6
def test_a_device_joins_over_ipv6(enroll: Opener, tmp_path: Path) -> None:
    enrolment = enroll(None, make_certificates(tmp_path / "ipv6", 0, "::1"), "[::1]")
    joined = device(enrolment.address, enrolment.code(1), tmp_path / "certs")
    assert joined.exit_code == 0, joined.output
    assert (tmp_path / "certs" / "silo-1.pem").exists()


@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_device_joins_through_the_proxy_to_a_name_that_the_proxy_alone_knows(
    enroll: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    enrolment = enroll(None, make_certificates(tmp_path / "far", 0, "server.invalid", "localhost"))
    address = enrolment.address.replace("localhost", "server.invalid")
    place, code = ["--certificates", str(tmp_path / "certs")], str(enrolment.code(1))
    with ConnectProxy(int(address.rpartition(":")[2])) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://me:secret@"))
        told = CliRunner().invoke(dapper_device, ["join", address, code, *place])
        assert "nobody answers at server.invalid:" in told.stderr  # without the option, whatever the environment says
        assert proxy.asked == []
        way = proxy.url if by == "option" else "environment"
        joined = CliRunner().invoke(dapper_device, ["join", address, code, *place, "--http-proxy", way])
        assert joined.exit_code == 0, joined.output
        assert proxy.asked == [f"CONNECT {address} HTTP/1.1"] * 3  # what it shows, its authority, and the certificate
        assert proxy.passwords == ([] if by == "option" else [b64encode(b"me:secret").decode()] * 3)
    assert (tmp_path / "certs" / "silo-1.pem").exists()


def test_a_proxy_that_refuses_or_is_none_is_one_line(certs: Path, tmp_path: Path) -> None:
    [code] = invite(certs, 1, DAY)
    words = ["join", "server.invalid:1", str(code), "--certificates", str(tmp_path / "certs"), "--http-proxy"]
    with ConnectProxy(1, refuses=True) as proxy:
        line = refused(CliRunner().invoke(dapper_device, [*words, proxy.url]), tmp_path / "certs")
        assert line.endswith("would: the proxy answers: HTTP/1.1 403 Forbidden")
    line = refused(CliRunner().invoke(dapper_device, [*words, "proxy:3128"]), tmp_path / "certs")
    assert "expected `environment`, or http://HOST:PORT of a proxy, found proxy:3128" in line


def test_a_device_whose_answer_was_lost_joins_by_the_same_command(
    enroll: Opener, certs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    members = tmp_path / "members.json"
    enrolment = enroll(members)
    code = enrolment.code()
    members.write_text("damaged")
    told = device(enrolment.address, code, tmp_path / "certs")
    assert told.exit_code == 2
    [line] = told.stderr.splitlines()
    assert "could not write the certificate down; the same command may be given again later" in line
    assert str(members) not in line  # which is not for strangers
    assert str(members) in caplog.text
    assert not (tmp_path / "certs").exists()
    members.unlink()
    with pytest.raises(JoinRefusedError, match="is spent, by another key"):
        enrolment.ask(code, request_of([code.name]))
    again = device(enrolment.address, code, tmp_path / "certs")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "certs" / "silo-1.pem").read_bytes() == (certs / "silo-1.pem").read_bytes()
    assert read_membership(members).refusal(read_certificate(certs / "silo-1.pem")) is None
    assert enrolment.events() == [("join_failed", "silo-1"), ("join_refused", "silo-1"), ("joined_again", "silo-1")]


def test_two_processes_do_not_join_into_one_folder(enrolment: Enrolment, tmp_path: Path) -> None:
    code = enrolment.code()
    (tmp_path / ".certs.joining-silo-1").mkdir()
    holding = (
        "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX);"
        " print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holding, tmp_path / ".certs.joining-silo-1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdin is not None
        other.stdout.readline()
        with pytest.raises(ConfigError, match="certs: another process joins into this folder"):
            join(enrolment.address, code, tmp_path / "certs")
        other.stdin.close()
    join(enrolment.address, code, tmp_path / "certs")


# As processes


@pytest.mark.long
def test_devices_join_by_codes_and_take_part(
    devices: Devices, made: Path, tmp_path: Path, server: Callable[[], Silos]
) -> None:
    (devices.folder / "certs").unlink()
    certs = shutil.copytree(made, devices.folder / "certs")
    members = devices.folder / "members.json"
    devices.grpc["members_file"] = str(members)
    devices.write()
    codes = invite(certs, NUM_DEVICES, DAY)
    address = f"localhost:{free_port()}"
    command = [sys.executable, "-m", "fedml_dapper", "silos", "enroll", "--certificates", certs, "--listen", address]
    command = [sys.executable, "-c", "from fedml_dapper.entry import main; main()", *command[3:], "--members", members]
    with (tmp_path / "enrolment.log").open("wb") as log:
        service = subprocess.Popen(
            ["env", "--default-signal=INT", *command], env=devices.environment, stdout=log, stderr=log
        )
    said = tmp_path / "enrolment.log"
    try:
        wait_until(lambda: service.poll() is not None or "Devices join by" in said.read_text())
        for code in codes:
            place = devices.folder / f"certs_{code.rank}"
            joined = devices.told("join", address, str(code), "--certificates", str(place))
            assert joined.returncode == 0, joined.stderr + said.read_text()
    finally:
        service.send_signal(signal.SIGINT)
        assert service.wait(60) == 0, said.read_text()
    assert "Traceback" not in said.read_text()
    server_process = server()
    for code in codes:
        place = f"comm_args.dapper_grpc.certificates=certs_{code.rank}"
        devices.start(code.rank, "--set", place, command=(sys.executable, Path(lightly)))
    assert server_process.wait(0) == 0, server_process.output(0)
    for rank, process in devices.processes.items():
        assert process.wait(300) == 0, devices.output(rank)
        assert f"client {rank - 1}: round 2, loss" in devices.output(rank)


def test_calls_that_are_begun_and_never_sent_keep_nobody_from_joining(enrolment: Enrolment, tmp_path: Path) -> None:
    """A stranger with one connection, which may have four calls under way."""
    tls = grpc.ssl_channel_credentials((enrolment.certs / "ca.pem").read_bytes())
    never = Event()

    def nothing() -> Iterator[bytes]:
        never.wait()
        yield from ()

    with grpc.secure_channel(enrolment.address, tls) as channel:
        begun = [channel.stream_unary(f"/{SERVICE}/{JOIN}").future(nothing()) for _ in range(4)]
        grpc.channel_ready_future(channel).result(60)
        assert device(enrolment.address, enrolment.code(), tmp_path / "certs").exit_code == 0
        assert not any(one.done() for one in begun)
        never.set()
