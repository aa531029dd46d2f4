"""Metrics of a round, under the names that every tracking sink shares (table in docs/reference/metrics.md)."""

from __future__ import annotations

from collections import defaultdict

from fedml_dapper.federation.run_folder.records import ClientRecord, DeviceFigures, RoundRecord


def metrics_of(record: RoundRecord) -> dict[str, float]:
    """Return all tracked metrics of a round by name.

    Accuracies are in the task's headline figure, and are missing in rounds without a test.
    """
    metrics: dict[str, float] = {}
    scores = record.scores
    if scores is not None:
        metrics |= {f"accuracy/{_own_name(domain)}": value for domain, value in scores.domain_accuracy.items()}
        metrics |= {
            f"best_accuracy/{_own_name(domain)}": value for domain, value in scores.best_domain_accuracy.items()
        }
        metrics["accuracy/global"] = scores.global_accuracy
        metrics["best_accuracy/global"] = scores.best_global_accuracy
        metrics |= {f"loss/{domain}": value for domain, value in scores.domain_loss.items()}
        for domain, figures in scores.domain_figures.items():
            metrics |= {f"figures/{name.replace(' ', '_')}/{domain}": value for name, value in figures.items()}
        if scores.unseen_accuracy is not None:
            metrics["accuracy/unseen"] = scores.unseen_accuracy
    if record.personal is not None:
        metrics["personal_accuracy/overall"] = record.personal.overall
        metrics["personal_accuracy/average"] = record.personal.average
        metrics["personal_accuracy/worst"] = record.personal.worst
    if record.devices is not None:
        metrics |= _of_devices("device_accuracy", record.devices.sent)
        if record.devices.own_statistics is not None:
            metrics |= _of_devices("device_accuracy_own_statistics", record.devices.own_statistics)
    metrics |= {f"train_loss/level_{level}": loss for level, loss in _loss_per_level(record.clients).items()}
    metrics["bytes/up"] = sum(client.bytes_up for client in record.clients)
    metrics["bytes/down"] = sum(client.bytes_down for client in record.clients)
    metrics["clients/answered"] = len(record.clients)
    metrics["clients/absent"] = len(record.absent)
    metrics["clients/refused"] = len(record.refused)
    metrics["clients/not_finite"] = len(record.not_finite)
    metrics["clients/left_out"] = len(record.left_out)
    metrics["clients/from_earlier_rounds"] = sum(client.begun is not None for client in record.clients)
    if record.clock is not None:
        metrics["clock/round_s"] = record.clock.round_s
        metrics["clock/elapsed_s"] = record.clock.elapsed_s
        metrics["clock/late"] = sum(client.outcome == "late" for client in record.clock.clients)
        if record.clock.joules is not None:
            metrics["clock/joules"] = record.clock.joules
    metrics["seconds/round"] = record.seconds.total
    metrics["seconds/evaluation"] = record.seconds.evaluation
    return metrics


def _own_name(domain: str) -> str:
    """Return the domain's name, told from the run's own figures where it is called like one of them."""
    return f"domain {domain}" if domain in ("global", "unseen") else domain


def _of_devices(name: str, figures: DeviceFigures) -> dict[str, float]:
    values = {"mean": figures.accuracy, "worst": figures.worst}
    values |= {f"level_{level.level}": level.accuracy for level in figures.levels}
    return {f"{name}/{key}": value for key, value in values.items() if value is not None}


def _loss_per_level(clients: tuple[ClientRecord, ...]) -> dict[int, float]:
    """Return the mean training loss per sample over the clients of each level."""
    total: defaultdict[int, float] = defaultdict(float)
    samples: defaultdict[int, int] = defaultdict(int)
    for client in clients:
        total[client.level] += client.loss * client.num_samples
        samples[client.level] += client.num_samples
    return {level: total[level] / samples[level] for level in sorted(samples)}
