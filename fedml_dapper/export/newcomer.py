"""A device that joins a finished federation: the model of its level, adapted to its own pictures without labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedml_dapper.errors import ConfigError
from fedml_dapper.export.subjects import CPU, Subject, check_known, of_level, pictures_for, with_statistics
from fedml_dapper.federation.run_folder.finished import FinishedRun
from fedml_dapper.methods.contract.batchnorm import running_statistics
from fedml_dapper.methods.parts.information import Adaptation, gains_and_biases, maximise_information


def adapt(run: FinishedRun, folder: Path, level: int | None = None) -> tuple[Subject, Subject]:
    """Return the model of ``level``, or the whole one, before and after it is adapted to the pictures in ``folder``.

    It is adapted by the method's own rule if there is one, else by BatchNorm's statistics, else by information
    maximisation.

    Raises:
        ConfigError: None of these is possible.
    """
    check_known(run, level)
    method = run.method
    if not method.serves_newcomers:
        raise ConfigError(f"method `{method.name}` has no model for a client that never trained; train along with it")
    before = of_level(run, level)
    pictures = pictures_for(run, folder)
    after = of_level(run, level)
    source = f"{pictures.num_samples} pictures ({pictures.domain})"
    if method.adapts:
        model = method.adapted_model(run.state, pictures, CPU).to(CPU).eval()
        return before, replace(
            after, model=model, changes=(f"adapted to {source} by {method.name}'s rule for newcomers",)
        )
    if running_statistics(after.model):
        return before, with_statistics(after, pictures, source)
    if method.problem.task.name != "classification" or not gains_and_biases(after.model):
        raise ConfigError(
            f"{method.problem.backbone.label} cannot adapt without labels: it has no BatchNorm, and information"
            " maximisation takes a classifier with gains (GroupNorm, LayerNorm, standardised convolutions); use"
            " `fedml-dapper export`"
        )
    found = maximise_information(after.model, pictures, CPU, run.origin.seed)
    return before, replace(after, model=after.model.eval(), changes=(_described(found, source),))


def _described(found: Adaptation, source: str) -> str:
    if not found.passes:
        return f"left as it is: information maximisation on {source} crowded the predictions into fewer classes"
    return (
        f"gains and biases adapted to {source} by information maximisation: {found.passes} passes, mean entropy"
        f" {found.before:.2f} before and {found.after:.2f} after"
    )
