"""An audit log that shows it when it is changed, torn, or written by two."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedml_dapper.cli import main
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.operations import AuditLog
from fedml_dapper.operations.audit_log import AT_ONCE, entries_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def written(file: Path, count: int = 5) -> list[str]:
    log = AuditLog(file)
    for number in range(count):
        log.record("connected", "silo-1", peer=f"ipv4:10.0.0.{number}")
    log.close()
    return file.read_text().splitlines(keepends=True)


def audit(file: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["audit", str(file), *words], env={"COLUMNS": "200"})


def test_what_is_written_is_whole_and_a_noted_head_stays_in_it(file: Path) -> None:
    written(file)
    noted = json.loads(audit(file, "--json").stdout)
    assert noted["entries"] == 5
    written(file, 2)  # as after a restart
    result = audit(file, "--holds", noted["head"], "--last", "3")
    assert result.exit_code == 0
    assert "7 entries, whole; head " in result.stdout
    assert result.stdout.count("connected") == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [*lines[:2], lines[2].replace("silo-1", "silo-2"), *lines[3:]], "line 3 was changed"),
        (lambda lines: [*lines[:2], *lines[3:]], "line 3 does not follow"),
        (lambda lines: [*lines[:2], lines[3], lines[2], lines[4]], "line 3 does not follow"),
        (lambda lines: [*lines, lines[4]], "line 6 does not follow"),
        (lambda lines: lines[1:], "line 1 does not follow"),
        (lambda lines: [*lines[:2], "hello\n", *lines[2:]], "line 3 is no entry"),
        (lambda lines: [*lines, "x" * 100_000], "line 6 is torn"),
    ],
)
def test_every_change_is_found(file: Path, change: Callable[[list[str]], list[str]], said: str) -> None:
    file.write_text("".join(change(written(file))))
    before = file.read_bytes()
    result = audit(file)
    assert result.exit_code == 2
    assert said in result.stderr
    with pytest.raises(ConfigError, match=r"keep the file|is no audit log"):
        AuditLog(file)
    assert file.read_bytes() == before


def test_lines_cut_off_at_the_end_or_all_written_anew_are_found_by_a_noted_head(file: Path) -> None:
    lines = written(file)
    head = json.loads(audit(file, "--json").stdout)["head"]
    file.write_text("".join(lines[:4]))
    assert audit(file).exit_code == 0
    assert "no line has the hash" in audit(file, "--holds", head).stderr
    file.unlink()
    written(file)
    assert audit(file, "--holds", head).exit_code == 2


def test_an_entry_that_a_crash_tore_is_cut_off_and_that_is_said(file: Path) -> None:
    lines = written(file)
    file.write_text("".join(lines[:4]) + lines[4][:40])
    written(file, 1)
    assert [entry.event for entry in entries_of(file)] == ["connected"] * 4 + ["torn", "connected"]


@pytest.mark.parametrize("content", ["hello", "common_args: {}\n", '{"numb: 3'])
def test_a_file_that_is_no_audit_log_is_left_alone(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(ConfigError, match="audit log"):
        AuditLog(file)
    assert file.read_text() == content


def test_a_pipe_is_not_waited_for(file: Path) -> None:
    os.mkfifo(file)
    threading.Thread(target=lambda: file.open("rb").close(), daemon=True).start()  # so that nothing waits for ever
    with pytest.raises(ConfigError, match="is a pipe; take another name for audit_file"):
        AuditLog(file)
    threading.Thread(target=lambda: file.open("wb").close(), daemon=True).start()
    with pytest.raises(DataError, match=r"cannot be read \(it is a pipe\)"):
        list(entries_of(file))


def test_two_processes_do_not_write_one_log(file: Path) -> None:
    log = AuditLog(file)
    with pytest.raises(ConfigError, match="another process writes this audit log"):
        AuditLog(file)
    log.close()
    AuditLog(file).close()


def test_a_caller_that_makes_entries_without_end_is_counted_and_others_are_heard(file: Path) -> None:
    log = AuditLog(file)
    for _ in range(1000):
        log.record("refused", "stranger", reason="no silo")
    log.record("refused", "silo-1", reason="no token")
    log.record("cut_off", name="silo-1")
    log.close()
    entries = list(entries_of(file))
    assert AT_ONCE <= sum(entry.who == "stranger" for entry in entries) < AT_ONCE + 5
    assert [entry.who for entry in entries[-2:]] == ["silo-1", "server"]


@pytest.mark.parametrize(
    "forged",
    [
        lambda line: line.replace(b'"event":', b'"event":"started","event":'),
        lambda line: line.replace(b'"who":', b'"who": '),
        lambda line: line.replace(b"silo-1", b"silo\\u002d1"),
        lambda line: line.replace(b"\n", b" \n"),
    ],
    ids=["a key twice", "spaces", "letters as numbers", "more behind it"],
)
def test_the_hash_is_that_of_the_line_to_the_byte(file: Path, forged: Callable[[bytes], bytes]) -> None:
    log = AuditLog(file)
    log.record("refused", "silo-1", reason="no token")
    log.close()
    line = file.read_bytes()
    assert len(list(entries_of(file))) == 1
    file.write_bytes(forged(line))
    assert file.read_bytes() != line
    with pytest.raises(DataError, match=r"line 1 was changed: it says the same in other bytes"):
        list(entries_of(file))


def test_no_name_forges_a_line(file: Path) -> None:
    log = AuditLog(file)
    log.record("refused", 'x"}\n{"event": "act"', reason="a\r\nb\x1b[31m\u2028c" + "d" * 10_000)
    log.close()
    [entry] = entries_of(file)
    assert file.read_bytes().count(b"\n") == 1
    assert entry.detail["reason"].startswith("a??b?[31m?cdd")
    assert len(str(entry.detail["reason"])) < 300


def test_a_full_disk_costs_the_entry_and_is_counted(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = AuditLog(file)
    log.record("started")
    stream = log._stream

    class Full:
        def write(self, line: bytes) -> int:
            return stream.write(line[:20])  # as much as there was room for

        fileno = stream.fileno

    log._stream = Full()
    log.record("connected", "silo-1")
    log._stream = stream
    log.record("connected", "silo-1")
    log.close()
    assert [(entry.event, entry.left_out) for entry in entries_of(file)] == [("started", 0), ("connected", 1)]
    assert "No space left on device" in caplog.text


@pytest.mark.parametrize("event", ["order", "order_refused"])
def test_every_order_is_written_down_whatever_else_is_said_in_its_giver_s_name(file: Path, event: str) -> None:
    log = AuditLog(file)
    for number in range(150):
        log.record("refused", "admin", reason="the certificate is revoked")
        log.record(event, "admin", act="pause", silo=number)
    log.close()
    assert [entry.detail["silo"] for entry in entries_of(file) if entry.event == event] == list(range(150))
