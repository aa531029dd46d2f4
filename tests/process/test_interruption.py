"""How a process ends when it is told to, seen from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedml_dapper.process.interruption import GOING_ON, INTERRUPTED

WITHIN_S = 300
"""For an end that takes a moment, on a machine that does much else."""
PROGRAM = """
import signal, sys, threading, time
from fedml_dapper.process import interruption

interruption.GRACE_S = {grace_s}

def ready():
    print("ready", flush=True)

def wait():  # in naps: a signal right before a sleep does not cut it short
    while True:
        time.sleep(0.05)

def until_told():
    ready()
    sys.stdin.readline()

with interruption.ending_in_order("it"):
{body}
"""
ORDERLY = """
    try:
        ready()
        wait()
    finally:
        until_told()
        until_told()
        print("tidy")
"""
IGNORING = """
    until_told()
    print("tidy")
"""
IN_CODE_MADE_ON_THE_WAY = """
    exec("ready(); wait()")
"""
SWALLOWED = """
    while True:
        try:
            ready()
            wait()
        except BaseException:
            pass
"""
A_POOL = """
    import multiprocessing
    ready()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(abs, [-1, 2]))
"""
A_FORK = """
    import os
    ready()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            time.sleep(2)  # cut short by the signal; one that is lost shows as 7, and not as a test that hangs
            os._exit(7)
        os.kill(child, signal.SIGTERM)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
A_THREAD_HANGS = """
    threading.Thread(target=time.sleep, args=(600,)).start()
    ready()
    wait()
"""
A_LIBRARY_HANGS_IN_THE_END = """
    import ctypes
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(ctypes.cast(libc.pause, ctypes.c_void_p), None, None)
    ready()
    wait()
"""
OF_WHICH_A_LIBRARY_MAKES_ANOTHER_ERROR = """
    import torch
    from fedml_dapper.federation.run_folder.tensor_file import read_tensors, write_tensors
    from pathlib import Path

    calls = []

    def interrupting(frame, event, argument):
        calls.append((event, frame.f_code))
        if calls.count(("call", torch.UntypedStorage.__getitem__.__code__)) == 2:  # the second is from torch's C++
            sys.setprofile(None)
            signal.raise_signal(signal.SIGTERM)

    write_tensors({"weight": torch.ones(3)}, {}, Path("tensors"))
    sys.setprofile(interrupting)
    ready()
    try:
        read_tensors(Path("tensors"), "file")
    except Exception as error:
        print(type(error).__name__, file=sys.stderr)
        raise
"""
A_FAILURE = """
    ready()
    raise ValueError("its own")
"""
AN_IMPORT = """
    sys.modules["asker"] = sys.modules["__main__"]
    import imported
"""
AN_IMPORT_THAT_MAKES_ANOTHER_ERROR_OF_IT = """
import asker
try:
    asker.ready()
    asker.wait()
except BaseException as error:
    raise ImportError from error
"""
AN_IMPORT_THAT_SWALLOWS_IT = """
import asker
try:
    asker.ready()
    asker.wait()
except BaseException:
    asker.wait()
"""
REPORTING = """
    try:
        ready()
        wait()
    except KeyboardInterrupt:
        print(signal.getitimer(signal.ITIMER_REAL)[0] > 0)
        interruption.take_time()
        print(signal.getitimer(signal.ITIMER_REAL)[0] > 0)
        ready()
        wait()
"""
REPORTED = """
    threading.Thread(target=time.sleep, args=(600,)).start()
    try:
        ready()
        wait()
    except KeyboardInterrupt:
        interruption.take_time()
        print("reported", flush=True)
        interruption.ignore_further_interruptions()
        sys.exit(interruption.INTERRUPTED)
"""


def started(body: str, folder: Path, *before: str, grace_s: int = 300) -> subprocess.Popen[str]:
    """Patience is to last for ever where a program ends without it, and for a moment where it is what ends."""
    (folder / "program.py").write_text(PROGRAM.format(body=body, grace_s=grace_s))
    process = subprocess.Popen(
        ["env", "--default-signal=INT", *before, sys.executable, "-m", "program"],
        cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    heard(process)
    return process


def heard(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def tell(process: subprocess.Popen[str]) -> None:
    """What was sent before has arrived when the process reads this."""
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_order_and_repeated_signals_do_not_disturb(number: signal.Signals, tmp_path: Path) -> None:
    process = started(ORDERLY, tmp_path)
    process.send_signal(number)
    for _ in range(2):
        heard(process)
        process.send_signal(number)
        tell(process)
    stdout, stderr = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, stdout, stderr) == (INTERRUPTED, "tidy\n", f"it: {GOING_ON}\n")


def test_by_its_exit_code_and_not_by_a_signal(tmp_path: Path) -> None:
    process = started(IN_CODE_MADE_ON_THE_WAY, tmp_path)
    process.terminate()
    _, stderr = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, stderr) == (INTERRUPTED, f"it: {GOING_ON}\n")


@pytest.mark.nightly
def test_where_a_library_made_another_error_of_it_too(tmp_path: Path) -> None:
    process = started(OF_WHICH_A_LIBRARY_MAKES_ANOTHER_ERROR, tmp_path)
    _, stderr = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, stderr) == (INTERRUPTED, f"ValueError\nit: {GOING_ON}\n")


def test_and_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    process = started(A_FAILURE, tmp_path)
    _, stderr = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1
    assert "ValueError: its own" in stderr


def test_and_processes_of_a_pool_end_without_a_word(tmp_path: Path) -> None:
    process = started(A_POOL, tmp_path)
    stdout, stderr = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, stdout, stderr) == (0, "[1, 2]\n", "")


def test_a_fork_that_is_ended_in_its_first_moment_ends(tmp_path: Path) -> None:
    """CPython forgets there what a handler of its own was to answer; so did pools wait for workers for ever."""
    process = started(A_FORK, tmp_path)
    stdout, stderr = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, stdout, stderr) == (0, f"{-signal.SIGTERM}\n" * 20, "")


@pytest.mark.parametrize(
    "imported",
    [AN_IMPORT_THAT_MAKES_ANOTHER_ERROR_OF_IT, AN_IMPORT_THAT_SWALLOWS_IT],
    ids=["another_error", "swallowed"],
)
def test_of_imports_at_once(imported: str, tmp_path: Path) -> None:
    (tmp_path / "imported.py").write_text(imported)
    process = started(AN_IMPORT, tmp_path)
    process.terminate()
    _, stderr = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, stderr) == (INTERRUPTED, f"it: {GOING_ON}\n")


@pytest.mark.parametrize(
    "body",
    [SWALLOWED, A_THREAD_HANGS, A_LIBRARY_HANGS_IN_THE_END],
    ids=["swallowed", "a_thread_hangs", "a_library_hangs"],
)
def test_in_any_case_before_long(body: str, tmp_path: Path) -> None:
    process = started(body, tmp_path, grace_s=1)
    process.terminate()
    _, stderr = process.communicate(timeout=WITHIN_S)
    assert process.returncode == INTERRUPTED
    assert set(stderr.splitlines()) == {f"it: {GOING_ON}"}


def test_a_report_may_take_its_time_and_can_be_interrupted_too(tmp_path: Path) -> None:
    process = started(REPORTING, tmp_path)
    process.terminate()
    assert process.stdout is not None
    has_to_hurry = [process.stdout.readline() for _ in range(2)]
    assert has_to_hurry == ["True\n", "False\n"]  # once it is interrupted, and once it reports
    heard(process)
    process.terminate()
    _, stderr = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, stderr) == (INTERRUPTED, f"it: {GOING_ON}\n")


def test_after_it_the_end_may_not(tmp_path: Path) -> None:
    process = started(REPORTED, tmp_path, grace_s=1)
    process.terminate()
    stdout, _ = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, stdout) == (INTERRUPTED, "reported\n")


def test_an_interrupt_that_the_shell_had_ignored_stays_ignored(tmp_path: Path) -> None:
    process = started(IGNORING, tmp_path, "env", "--ignore-signal=INT")
    process.send_signal(signal.SIGINT)
    tell(process)
    assert process.communicate(timeout=WITHIN_S) == ("tidy\n", "")
    assert process.returncode == 0
