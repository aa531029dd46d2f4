"""Messages on a run in which something is no longer finite: since when, from whom, and what helps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fedml_dapper.federation import RoundRecord, RunRecord

_MOST_NAMED = 10
_REMEDY = (
    "look for such values in the data, lower train_args.learning_rate, or clip gradients by train_args.max_grad_norm,"
    " e.g. 2"
)
BEYOND_FP16 = "weights beyond 65504 are too large for dapper_args.uplink fp16, and need bf16 or fp32"


def divergence_of(record: RoundRecord) -> Iterator[str]:
    """Yield what a round's progress line says of values that are not finite; nothing for a sound round."""
    if record.not_finite:
        yield f"NOT FINITE: {_clients(record)}"
    if not record.model_is_finite:
        yield "global model NOT FINITE"
    elif domains := _badly_tested(record):
        yield f"test loss NOT FINITE: {', '.join(domains)}"
    elif domains := _not_judged(record):
        yield f"test figure NOT FINITE: {', '.join(domains)}"


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
        f"In round {first.round}, the loss on test samples of {', '.join(_badly_tested(first))} is not finite (NaN or"
        f" infinity): so are outputs for them, and figures there mean nothing. What helps: {_REMEDY}."
    )


def _of_figures(rounds: Sequence[RoundRecord]) -> str | None:
    """Return sentences on the first test whose figure is not finite, although its loss is; None without one."""
    first = next((record for record in rounds if _not_judged(record)), None)
    if first is None:
        return None
    return (
        f"In round {first.round}, the figure on test samples of {', '.join(_not_judged(first))} is not finite (NaN or"
        " infinity), and so is the mean over domains: nothing there can be judged, as where masks ignore all pixels."
        " What helps: look at these samples, and at what train_args.task makes of them."
    )


def _badly_tested(record: RoundRecord) -> list[str]:
    """Domains on whose test or validation samples the loss is not finite."""
    tested = [scores.domain_loss for scores in (record.scores, record.validation_scores) if scores is not None]
    return sorted({domain for losses in tested for domain, loss in losses.items() if not math.isfinite(loss)})


def _not_judged(record: RoundRecord) -> list[str]:
    """Domains on whose test or validation samples the headline figure is not finite."""
    tested = [scores.domain_accuracy for scores in (record.scores, record.validation_scores) if scores is not None]
    return sorted({domain for figures in tested for domain, figure in figures.items() if not math.isfinite(figure)})


def _clients(record: RoundRecord) -> str:
    named = [f"{client}" for client in record.not_finite[:_MOST_NAMED]]
    more = len(record.not_finite) - len(named)
    word = "client" if len(record.not_finite) == 1 else "clients"
    return f"{word} {', '.join(named)}" + (f" and {more} more" if more else "")
