"""Results of a run: summary, terminal tables, figures and HTML report."""

from typing import TYPE_CHECKING

from fedml_dapper.process.lazy_imports import lazy_names

if TYPE_CHECKING:
    from fedml_dapper.evaluation.experiment_overview import experiment_tables
    from fedml_dapper.evaluation.figures import footprint_bars, learning_curves, loss_per_level, seconds_per_level
    from fedml_dapper.evaluation.predictions import draw_predictions
    from fedml_dapper.evaluation.progress import progress_for
    from fedml_dapper.evaluation.report import write_report, write_run_report
    from fedml_dapper.evaluation.run_tables import device_table, footprint_table, personal_table, result_table
    from fedml_dapper.evaluation.summary import LAST_ROUNDS, Accuracy, RunSummary, summarise
else:
    __getattr__ = lazy_names(__name__, __file__)

__all__ = [
    "LAST_ROUNDS",
    "Accuracy",
    "RunSummary",
    "device_table",
    "draw_predictions",
    "experiment_tables",
    "footprint_bars",
    "footprint_table",
    "learning_curves",
    "loss_per_level",
    "personal_table",
    "progress_for",
    "result_table",
    "seconds_per_level",
    "summarise",
    "write_report",
    "write_run_report",
]
