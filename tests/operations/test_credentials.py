"""Certificates from run/make_certs.sh, and every way in which they can be wrong."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedml_dapper.config import SecureGrpcConfig, load_settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.operations.credentials import CredentialFiles, read_credentials

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "run" / "make_certs.sh"


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", SCRIPT, folder, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    finished = make(folder, "2", "localhost", "server.example.org", "127.0.0.1")
    assert finished.returncode == 0, finished.stderr
    return folder


def config(folder: Path, host: str = "localhost", **more: object) -> SecureGrpcConfig:
    return SecureGrpcConfig.model_validate({"server_address": f"{host}:8890", "certificates": folder, **more})


def openssl(folder: Path, *command: str) -> None:
    subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)


def test_keys_are_for_their_owner_alone(certificates: Path) -> None:
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in certificates.iterdir() if file.is_file()}
    names = ["ca", "server", "silo-1", "silo-2", "admin"]
    assert modes == {f"{name}.key": 0o600 for name in names} | {f"{name}.pem": 0o644 for name in names}
    assert stat.S_IMODE(certificates.stat().st_mode) == 0o700


def test_an_authority_is_not_overwritten(certificates: Path) -> None:
    before = {file: file.read_bytes() for file in certificates.rglob("*") if file.is_file()}
    finished = make(certificates, "3")
    assert finished.returncode == 2
    assert "holds an authority already" in finished.stderr
    assert {file: file.read_bytes() for file in certificates.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("arguments", [[], ["-1"], ["two"]])
def test_usage(tmp_path: Path, arguments: Sequence[str]) -> None:
    finished = make(tmp_path / "certs", *arguments)
    assert finished.returncode == 2
    assert "usage: bash run/make_certs.sh FOLDER NUM_SILOS [--edge RANK ...]" in finished.stderr


def test_where_all_silos_join_by_codes_no_silo_has_a_key_here(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    assert make(folder, "0", "localhost").returncode == 0
    assert {file.stem for file in folder.glob("*.key")} == {"ca", "server", "admin"}
    assert make(folder, "0", "localhost").returncode == 2
    assert make(folder, "--renew", "silo-3").returncode == 0


def test_a_kit_has_what_one_machine_needs_and_nobody_else_s_key(certificates: Path) -> None:
    kit = certificates / "kits" / "silo-2"
    files = {str(file.relative_to(kit)) for file in kit.rglob("*") if file.is_file()}
    assert files == {"certs/ca.pem", "certs/silo-2.pem", "certs/silo-2.key", "connection.yaml", "start.sh"}
    assert stat.S_IMODE((kit / "certs" / "silo-2.key").stat().st_mode) == 0o600
    settings = load_settings([ROOT / "config" / "cross_silo.yaml", kit / "connection.yaml"])
    assert settings.comm_args.dapper_grpc is not None
    assert settings.comm_args.dapper_grpc.server_address == "localhost:8890"
    assert read_credentials(settings.comm_args.dapper_grpc, 2).name == "silo-2"
    echo = {"PYTHON": "echo", "PATH": os.environ["PATH"]}
    started = subprocess.run(["bash", kit / "start.sh", "--x"], env=echo, capture_output=True, text=True, check=True)
    command = "-m fedml_dapper --cf experiment.yaml --cf connection.yaml --rank 2 --role client --x"
    assert started.stdout.split() == command.split()


@pytest.mark.parametrize(
    ("address", "port", "noted"),
    [("localhost:8890", "8890", False), ("localhost:18890", "8890", True), ('"localhost:18890"', "18890", False)],
)
def test_kits_that_dial_another_server_than_the_experiment_s_are_noted(
    tmp_path: Path, address: str, port: str, noted: bool
) -> None:
    experiment = tmp_path / "mine.yaml"
    experiment.write_text(f"comm_args:\n  dapper_grpc:\n    # server_address: other:1\n    server_address: {address}\n")
    finished = make(tmp_path / "certs", "1", "--experiment", str(experiment), "--port", port)
    assert finished.returncode == 0, finished.stderr
    note = f"note: the kits dial localhost:{port}, and mine.yaml names another server_address"
    assert (note in finished.stderr) == noted


def test_a_certificate_is_renewed_and_one_more_silo_made_by_the_same_authority(certificates: Path) -> None:
    before = {name: (certificates / f"{name}.pem").read_bytes() for name in ("ca", "server", "silo-1", "silo-2")}
    finished = make(certificates, "--renew", "server", "--renew", "silo-1", "--renew", "silo-3")
    assert finished.returncode == 0, finished.stderr
    after = {name: (certificates / f"{name}.pem").read_bytes() for name in before}
    assert [name for name in before if before[name] != after[name]] == ["server", "silo-1"]
    for host in ("localhost", "server.example.org", "127.0.0.1"):  # as it was named before
        assert read_credentials(config(certificates, host), 0).certificate == after["server"]
    assert (certificates / "kits" / "silo-1" / "certs" / "silo-1.pem").read_bytes() == after["silo-1"]
    assert read_credentials(config(certificates / "kits" / "silo-3" / "certs"), 3).name == "silo-3"
    for folder, name in ((certificates, "../x"), (certificates / "kits", "silo-1")):  # no ca.key in the second
        assert make(folder, "--renew", name).returncode == 2


def test_files_are_read_again_and_the_last_good_ones_count(
    certificates: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "token"
    token.write_text("the-first-token-of-all\n")
    files = CredentialFiles(config(certificates, token_file=token), 1)
    first = files.current
    assert not files.renew()
    (certificates / "silo-1.key").write_bytes((certificates / "silo-2.key").read_bytes())  # half of a change
    assert not files.renew()
    assert not files.renew()
    assert files.current is first
    assert caplog.text.count("the ones before still count") == 1
    (certificates / "silo-1.key").unlink()
    assert not files.renew()
    make(certificates, "--renew", "silo-1")
    assert files.renew()
    assert files.current.certificate == (certificates / "silo-1.pem").read_bytes() != first.certificate
    token.write_text("the-second-token-of-all\nthe-first-token-of-all\n")
    assert files.renew()
    assert files.current.tokens == ("the-second-token-of-all", "the-first-token-of-all")
    assert files.current.token == "the-second-token-of-all"


def test_openssl_s_own_words_are_shown_when_it_fails(tmp_path: Path) -> None:
    finished = make(tmp_path / "certs", "1", "999.999.999.999")
    assert finished.returncode != 0
    assert "999.999.999.999" in finished.stderr


@pytest.mark.parametrize("host", ["localhost", "server.example.org", "127.0.0.1"])
def test_credentials_of_everyone(certificates: Path, host: str) -> None:
    names = [read_credentials(config(certificates, host), rank).name for rank in range(3)]
    assert names == ["server", "silo-1", "silo-2"]


def test_credentials_do_not_show_secrets(certificates: Path) -> None:
    shown = repr(read_credentials(config(certificates), 1))
    assert shown == "Credentials(name='silo-1')"


def test_a_host_that_the_server_s_certificate_does_not_name(certificates: Path) -> None:
    with pytest.raises(ConfigError, match=r"server.pem: .*not valid for 'other.example.org'"):
        read_credentials(config(certificates, "other.example.org"), 0)
    assert read_credentials(config(certificates, "other.example.org"), 1).name == "silo-1"  # its peer is to check that


@pytest.mark.parametrize("missing", ["ca.pem", "silo-1.pem", "silo-1.key"])
def test_a_missing_file_is_named_with_what_to_do(certificates: Path, missing: str) -> None:
    (certificates / missing).unlink()
    with pytest.raises(ConfigError, match=rf"{missing}: cannot be read .*run/make_certs.sh"):
        read_credentials(config(certificates), 1)


def test_a_key_of_another_certificate(certificates: Path) -> None:
    (certificates / "silo-2.key").rename(certificates / "silo-1.key")
    with pytest.raises(ConfigError, match=r"not a certificate that goes with silo-1.key"):
        read_credentials(config(certificates), 1)


def test_a_certificate_of_another_silo(certificates: Path) -> None:
    for kind in ("pem", "key"):
        (certificates / f"silo-2.{kind}").rename(certificates / f"silo-1.{kind}")
    with pytest.raises(ConfigError, match="its common name is silo-2, not silo-1"):
        read_credentials(config(certificates), 1)


def test_another_authority(certificates: Path, tmp_path: Path) -> None:
    make(tmp_path / "other", "1")
    (tmp_path / "other" / "ca.pem").rename(certificates / "ca.pem")
    for rank in (0, 1):
        with pytest.raises(ConfigError, match=r"peers with ca.pem would refuse it"):
            read_credentials(config(certificates), rank)


def test_a_silo_s_certificate_is_no_server_s(certificates: Path) -> None:
    for kind in ("pem", "key"):
        (certificates / f"silo-1.{kind}").rename(certificates / f"server.{kind}")
    with pytest.raises(ConfigError, match=r"server.pem: peers with ca.pem would refuse it"):
        read_credentials(config(certificates), 0)


def test_an_expired_certificate(certificates: Path) -> None:
    openssl(certificates, "req", "-new", "-key", "silo-1.key", "-subj", "/CN=silo-1", "-out", "request")
    openssl(
        certificates, "x509", "-req", "-in", "request", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "-1",
        "-out", "silo-1.pem",
    )  # fmt: skip
    with pytest.raises(ConfigError, match="certificate has expired"):
        read_credentials(config(certificates), 1)


def test_a_key_with_a_password(certificates: Path) -> None:
    openssl(certificates, "pkey", "-in", "silo-1.key", "-aes256", "-passout", "pass:secret", "-out", "locked.key")
    (certificates / "locked.key").rename(certificates / "silo-1.key")
    with pytest.raises(ConfigError, match="locked by a password"):
        read_credentials(config(certificates), 1)


def test_a_file_that_is_no_certificate(certificates: Path) -> None:
    (certificates / "silo-1.pem").write_text("hello\n")
    with pytest.raises(ConfigError, match=r"silo-1.pem: not a certificate"):
        read_credentials(config(certificates), 1)


def test_a_token_from_a_file_or_a_variable(certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("from-the-file-it-came\n")
    assert read_credentials(config(certificates, token_file=file), 1).token == "from-the-file-it-came"
    monkeypatch.setenv("DAPPER_TOKEN", "from-the-variable-it-came")
    assert read_credentials(config(certificates, token_variable="DAPPER_TOKEN"), 1).token == "from-the-variable-it-came"


@pytest.mark.parametrize("token", ["", "short", "with a blank in between", "mit-ümlaut-von-weither"])
def test_a_weak_token_is_refused(certificates: Path, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("DAPPER_TOKEN", token)
    with pytest.raises(
        ConfigError, match="environment variable DAPPER_TOKEN: expected a token of 16 or more"
    ) as caught:
        read_credentials(config(certificates, token_variable="DAPPER_TOKEN"), 1)
    assert not token or token not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read(certificates: Path) -> None:
    (certificates / "silo-1.key").chmod(0)
    with pytest.raises(ConfigError, match=r"silo-1.key: cannot be read \(Permission denied\)"):
        read_credentials(config(certificates), 1)


def test_an_edge_shows_its_certificate_to_both_sides(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    make = ["bash", str(SCRIPT), str(folder), "2", "--edge", "3", "edge.example.org"]
    subprocess.run(make, check=True, capture_output=True)

    def at(host: str) -> SecureGrpcConfig:
        edge = {"rank": 3, "silos": [1], "server_address": f"{host}:8891"}
        return SecureGrpcConfig.model_validate(
            {"server_address": "edge.example.org:8890", "certificates": folder, "edges": [edge]}
        )

    assert read_credentials(at("edge.example.org"), 3).name == "edge-3"
    with pytest.raises(ConfigError, match=r"edge-3\.pem: peers with ca\.pem would refuse it"):
        read_credentials(at("elsewhere.example.org"), 3)
    (folder / "edge-3.pem").write_bytes((folder / "silo-1.pem").read_bytes())
    (folder / "edge-3.key").write_bytes((folder / "silo-1.key").read_bytes())
    with pytest.raises(ConfigError, match=r"edge-3\.pem"):
        read_credentials(at("edge.example.org"), 3)
