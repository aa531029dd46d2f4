"""Small made-up runs: two domains, two levels, three clients."""

from collections.abc import Callable
from typing import Any

import pytest

from fedml_dapper.federation import ClientRecord, LevelFootprint, RoundRecord, RunRecord, Scores
from fedml_dapper.federation.run_folder.records import ClientSummary, RoundSeconds

FOOTPRINTS = (
    LevelFootprint(level=1, ratio=0.0, params=4_000_000, macs=250_000_000, bytes_up=16_000_000, bytes_down=16_000_000),
    LevelFootprint(level=2, ratio=0.5, params=1_999_999, macs=125_000_000, bytes_up=8_000_100, bytes_down=16_000_000),
)
LEVEL_OF_CLIENT = (1, 2, 2)
DOMAIN_OF_CLIENT = ("mnist", "usps", "usps")


@pytest.fixture
def make_run() -> Callable[..., RunRecord]:
    def make(**changes: Any) -> RunRecord:
        clients = tuple(
            ClientSummary(client=client, domain=domain, level=level, ratio=FOOTPRINTS[level - 1].ratio, num_samples=60)
            for client, (domain, level) in enumerate(zip(DOMAIN_OF_CLIENT, LEVEL_OF_CLIENT, strict=True))
        )
        values: dict[str, Any] = {
            "version": "0.1.0",
            "suite": "digits",
            "domains": ("mnist", "usps"),
            "method": "dapperfl",
            "settings": {"common_args": {"random_seed": 7}, "train_args": {"comm_round": 20}},
            "footprints": FOOTPRINTS,
            "clients": clients,
            "cost_note": "the download is dense.",
            "notes": ("client 2 shares samples",),
        }
        return RunRecord(**values | changes)

    return make


@pytest.fixture
def make_round() -> Callable[..., RoundRecord]:
    """``make_round(3, 80.0, 60.0)``: round 3 with its accuracies on mnist and usps; without them it was not tested."""

    def make(number: int, *accuracies: float, losses: tuple[float, ...] = (1.0, 2.0, 4.0)) -> RoundRecord:
        clients = tuple(
            ClientRecord(
                client=client,
                domain=DOMAIN_OF_CLIENT[client],
                level=level,
                num_samples=60,
                loss=loss,
                steps=5,
                seconds=1.5,
                **FOOTPRINTS[level - 1].model_dump(exclude={"level"}),
            )
            for client, (level, loss) in enumerate(zip(LEVEL_OF_CLIENT, losses, strict=True))
        )
        seconds = RoundSeconds(total=10.0, evaluation=1.0)
        return RoundRecord(round=number, scores=_scores(accuracies), clients=clients, seconds=seconds)

    return make


def _scores(accuracies: tuple[float, ...]) -> Scores | None:
    if not accuracies:
        return None
    by_domain = dict(zip(("mnist", "usps"), accuracies, strict=True))
    mean = sum(accuracies) / len(accuracies)
    return Scores(
        global_accuracy=mean,
        domain_accuracy=by_domain,
        domain_loss=dict.fromkeys(by_domain, 1.0),
        best_global_accuracy=mean,
        best_domain_accuracy=by_domain,
    )
