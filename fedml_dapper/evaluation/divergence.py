"""Messages on a run in which something is no longer finite: since when, from whom, and what helps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from fedml_dapper.config import BEYOND_FP16
from fedml_dapper.federation import RoundRecord, RunRecord, Scores

_MOST_NAMED = 10
_REMEDY = (
    "look for such values in the data, lower train_args.learning_rate, or clip gradients by train_args.max_grad_norm,"
    " e.g. 2"
)


def divergence_of(record: RoundRecord) -> Iterator[str]:
    """Yield what a round's progress line says of values that are not finite; nothing for a sound round."""
    if record.not_finite:
        yield f"NOT FINITE: {_clients(record)}"
    if not record.model_is_finite:
        yield "global model NOT FINITE"
    elif badly := _badly_tested(record):
        yield from (f"{part} loss NOT FINITE: {', '.join(domains)}" for part, domains in badly.items())
    else:
        yield from (f"{part} figure NOT FINITE: {', '.join(domains)}" for part, domains in _not_judged(record).items())


def divergence_over(run: RunRecord, rounds: Sequence[RoundRecord]) -> str | None:
    """Return sentences on the first round with values that are not finite; None for a sound run."""
    first = next((record for record in rounds if record.not_finite or not record.model_is_finite), None)
    if first is None:
        return _of_tests(rounds)
    hint = f"; {BEYOND_FP16}" if run.settings.get("dapper_args", {}).get("uplink") == "fp16" else ""
    sent = f"In round {first.round}, {_clients(first)} sent values that are not finite (NaN or infinity)"
    if not first.not_finite:
        sent = f"In round {first.round}, the global model became one that is not finite, from uploads that were"
    last = rounds[-1]
    now = "and the global model is not finite, so its scores mean nothing" if not last.model_is_finite else ""
    now = now or "and the last global model is finite all the same"
    return f"{sent}, {now}. What helps: {_REMEDY}{hint}."


def _of_tests(rounds: Sequence[RoundRecord]) -> str | None:
    """Return sentences on the first test that is not finite, although the global model is; None without one."""
    first = next((record for record in rounds if _badly_tested(record)), None)
    if first is None:
        return _of_figures(rounds)
    return (
        f"In round {first.round}, the loss on {_samples(_badly_tested(first))} is not finite (NaN or"
        f" infinity): so are outputs for them, and figures there mean nothing. What helps: {_REMEDY}."
    )


def _of_figures(rounds: Sequence[RoundRecord]) -> str | None:
    """Return sentences on the first test whose figure is not finite, although its loss is; None without one."""
    first = next((record for record in rounds if _not_judged(record)), None)
    if first is None:
        return None
    return (
        f"In round {first.round}, the figure on {_samples(_not_judged(first))} is not finite (NaN or"
        " infinity), and so is the mean over domains: nothing there can be judged, as where masks ignore all pixels."
        " What helps: look at these samples, and at what train_args.task makes of them."
    )


def _badly_tested(record: RoundRecord) -> dict[str, list[str]]:
    """Domains on whose samples the loss is not finite, by the part of the data: test or validation."""
    losses = {part: scores.domain_loss for part, scores in _tested(record)}
    return _with_not_finite(losses)


def _not_judged(record: RoundRecord) -> dict[str, list[str]]:
    """Domains on whose samples the headline figure is not finite, by the part of the data: test or validation."""
    figures = {part: scores.domain_accuracy for part, scores in _tested(record)}
    return _with_not_finite(figures)


def _tested(record: RoundRecord) -> Iterator[tuple[str, Scores]]:
    """Yield each part of the data on which the round's global model was tested, and its scores."""
    if record.scores is not None:
        yield "test", record.scores
    if record.validation_scores is not None:
        yield "validation", record.validation_scores


def _with_not_finite(figures: Mapping[str, Mapping[str, float]]) -> dict[str, list[str]]:
    """Return by part the domains whose figure is NaN or infinite, without parts that have none."""
    found = {
        part: [domain for domain, figure in of_part.items() if not math.isfinite(figure)]
        for part, of_part in figures.items()
    }
    return {part: sorted(domains) for part, domains in found.items() if domains}


def _samples(domains_of: Mapping[str, Sequence[str]]) -> str:
    """Return e.g. "test samples of photo, sketch and validation samples of art"."""
    return " and ".join(f"{part} samples of {', '.join(domains)}" for part, domains in domains_of.items())


def _clients(record: RoundRecord) -> str:
    named = [f"{client}" for client in record.not_finite[:_MOST_NAMED]]
    more = len(record.not_finite) - len(named)
    word = "client" if len(record.not_finite) == 1 else "clients"
    return f"{word} {', '.join(named)}" + (f" and {more} more" if more else "")
