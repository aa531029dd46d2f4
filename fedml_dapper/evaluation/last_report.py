"""The report at the end of a run, whose failure never fails the run."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from fedml_dapper.errors import DapperError
from fedml_dapper.evaluation.terminal import say


def report_of_finished(run_dir: Path, console: Console) -> Path | None:
    """Write the report of the finished run in ``run_dir``.

    Returns the report's path; None where it could not be written, which is printed on ``console``.
    """
    # drawing libraries load slowly, and a run should not wait for them before its first step
    from fedml_dapper.evaluation.report import write_run_report  # noqa: PLC0415

    try:
        return write_run_report(run_dir)
    except Exception as error:  # noqa: BLE001  # whatever it is, the run has its results
        reason = str(error) if isinstance(error, DapperError) else f"{type(error).__name__}: {error}"
        say(console, f"The report was not written: {reason}; `fedml-dapper report {run_dir}` writes it.")
        return None
