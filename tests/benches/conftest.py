"""Made-up benches: a store whose cells' ledgers hold the accuracies that a test names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedml_dapper.benches.diagnosis import DIAGNOSIS_NAME, Diagnosis, Embedding, LevelScore
from fedml_dapper.benches.grid import Bench, Manifest, PlannedCell, Profile, Variant
from fedml_dapper.benches.results import CELLS_NAME, MANIFEST_NAME
from fedml_dapper.federation import ClientRecord, LedgerWriter, LevelFootprint, RoundRecord, RunRecord, Scores
from fedml_dapper.federation.run_folder.records import (
    ClientOnClock,
    ClientSummary,
    DeviceFigures,
    DeviceScores,
    LevelFigures,
    PersonalScores,
    RoundOnClock,
    RoundSeconds,
)

DOMAINS = ("mnist", "usps")
FOOTPRINTS = (
    LevelFootprint(level=1, ratio=0.0, params=4_000_000, macs=250_000_000, bytes_up=16_000_000, bytes_down=16_000_000),
    LevelFootprint(level=2, ratio=0.4, params=2_400_000, macs=150_000_000, bytes_up=10_000_000, bytes_down=16_000_000),
    LevelFootprint(level=3, ratio=0.8, params=1_000_000, macs=50_000_000, bytes_up=4_000_000, bytes_down=16_000_000),
)
Accuracies = Sequence[float]
"""Of the tested rounds, as the mean of both domains; mnist lies 2 above it and usps 2 below."""


class Store:
    """Writes a bench and its cells below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def bench(
        self,
        variants: Sequence[str | Variant],
        seeds: Sequence[int] = (1, 2),
        *,
        rounds: int = 3,
        overrides: Mapping[str, Any] | None = None,
        same_as: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> Path:
        """The manifest of a bench; the first variant is its reference, ``same_as`` names those that share its runs."""
        made = tuple(
            variant if isinstance(variant, Variant) else Variant(label=variant, method=variant.lower())
            for variant in variants
        )
        values: dict[str, Any] = {
            "name": "demo",
            "title": "Digits: a demonstration",
            "source": "Table 1",
            "experiment": "digits.yaml",
            "profiles": {"small": Profile(seeds=tuple(seeds), note="fewer rounds")},
            "variants": made,
            "reference": made[0].label,
        }
        bench = Bench(**values | changes)
        cells = tuple(
            PlannedCell(
                variant=variant.label,
                seed=seed,
                folder=self.folder((same_as or {}).get(variant.label, variant.label), seed),
            )
            for seed in seeds
            for variant in made
        )
        folder = self.root / bench.name
        folder.mkdir(parents=True, exist_ok=True)
        profile = next(iter(bench.profiles))
        manifest = Manifest(bench=bench, profile=profile, overrides=dict(overrides or {}), rounds=rounds, cells=cells)
        (folder / MANIFEST_NAME).write_text(manifest.model_dump_json(), encoding="utf-8")
        return folder

    @staticmethod
    def folder(label: str, seed: int) -> str:
        return f"{''.join(c for c in label.lower() if c.isalnum())}-seed{seed}"

    def cell(
        self,
        label: str,
        seed: int,
        accuracies: Accuracies,
        *,
        validation: Accuracies | None = None,
        personal: Accuracies | None = None,
        unseen: Accuracies | None = None,
        devices: Accuracies | None = None,
        planned: int | None = None,
        diagnosed: bool = False,
        sent_slim: bool = False,
        round_s: float | None = None,
        **changes: Any,
    ) -> Path:
        """A cell's ledger: its test (and validation) accuracies, by round; ``planned`` rounds if it was cut short.
        With ``round_s``, on a virtual clock."""
        folder = self.root / CELLS_NAME / self.folder(label, seed)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ledger.jsonl").unlink(missing_ok=True)
        writer = LedgerWriter(folder / "ledger.jsonl")
        writer.run_started(run_record(label, seed, planned or len(accuracies), **changes))
        for number, accuracy in enumerate(accuracies, start=1):
            writer.round_finished(
                RoundRecord(
                    round=number,
                    scores=scores(accuracy, unseen[number - 1] if unseen else None),
                    validation_scores=scores(validation[number - 1]) if validation else None,
                    clients=client_records(),
                    personal=own(personal[number - 1]) if personal else None,
                    validation=own(validation[number - 1]) if personal and validation else None,
                    devices=of_devices(devices[number - 1]) if devices else None,
                    clock=None if round_s is None else on_clock(number, round_s),
                    seconds=RoundSeconds(total=3.0, evaluation=1.0),
                )
            )
        writer.run_finished()
        if diagnosed:
            made_up_diagnosis(sent_slim).save(folder / DIAGNOSIS_NAME)
        return folder


def on_clock(number: int, round_s: float) -> RoundOnClock:
    """A round whose one client is busy for half of the time."""
    times = {"download_s": 0.0, "training_s": round_s / 2, "upload_s": 0.0, "joules": round_s}
    client = ClientOnClock(client=0, outcome="in time", **times)
    return RoundOnClock(round_s=round_s, elapsed_s=number * round_s, joules=number * round_s, clients=(client,))


def run_record(label: str, seed: int, rounds: int, **changes: Any) -> RunRecord:
    values: dict[str, Any] = {
        "version": "0.1.0",
        "suite": "digits",
        "domains": DOMAINS,
        "method": label.lower(),
        "settings": {
            "data_args": {"dataset": "office_caltech10"},
            "common_args": {"random_seed": seed},
            "train_args": {"comm_round": rounds},
            "dapper_args": {"method": label.lower(), "params": {label.lower(): {"alpha": 0.5}}},
        },
        "footprints": FOOTPRINTS,
        "cost_note": "",
        "clients": tuple(
            ClientSummary(client=place, domain=DOMAINS[place % 2], level=level.level, ratio=level.ratio, num_samples=60)
            for place, level in enumerate(FOOTPRINTS)
        ),
        "notes": (),
    }
    return RunRecord(**values | changes)


def client_records() -> tuple[ClientRecord, ...]:
    return tuple(
        ClientRecord(
            client=place, domain=DOMAINS[place % 2], num_samples=60, loss=1.0, steps=5, seconds=1.5,
            **level.model_dump(),
        )
        for place, level in enumerate(FOOTPRINTS)
    )  # fmt: skip


def scores(accuracy: float, unseen: float | None = None) -> Scores:
    by_domain = {"mnist": accuracy + 2, "usps": accuracy - 2}
    return Scores(
        global_accuracy=accuracy, domain_accuracy=by_domain, domain_loss=dict.fromkeys(DOMAINS, 1.0),
        best_global_accuracy=accuracy, best_domain_accuracy=by_domain, unseen_accuracy=unseen,
    )  # fmt: skip


def own(average: float) -> PersonalScores:
    return PersonalScores(
        overall=average + 1, average=average, worst=average - 5, deviation=2.0, accuracy=(average,) * 3
    )


def made_up_diagnosis(sent_slim: bool) -> Diagnosis:
    return Diagnosis(
        confusion=dict.fromkeys(DOMAINS, ((8, 2), (1, 9))),
        levels=tuple(
            LevelScore(
                client=place, domain=DOMAINS[place % 2], level=level.level, ratio=level.ratio,
                before=50.0 - 5 * place, after=60.0 - 5 * place,
                everywhere=30.0 - 10 * (place % 2) if sent_slim else None,
            )
            for place, level in enumerate(FOOTPRINTS)
        ),
        embedding=Embedding(domains=DOMAINS, x=(0.0, 1.0, 2.0), y=(0.0, 1.0, 0.0), label=(0, 1, 1), domain=(0, 0, 1)),
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture(scope="session")
def make_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Store]:
    """For what is expensive to draw and looked at by several tests."""
    return lambda: Store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def three_methods(store: Store) -> Callable[..., Path]:
    """A bench of Ours, FedAvg and Other with seeds 1 to 3, each variant's accuracies by seed (two rounds alike)."""

    def make(ours: Sequence[float], fedavg: Sequence[float], other: Sequence[float], **changes: Any) -> Path:
        rows: Mapping[str, Sequence[float]] = {"Ours": ours, "FedAvg": fedavg, "Other": other}
        folder = store.bench(list(rows), seeds=(1, 2, 3), rounds=2, **changes)
        for label, values in rows.items():
            for seed, value in enumerate(values, start=1):
                store.cell(label, seed, [value, value], validation=[value, value])
        return folder

    return make


def of_devices(accuracy: float) -> DeviceScores:
    """Level 2 ten points below ``accuracy``, level 3 without a model as sent; 20 points more with own statistics."""

    def figures(more: float, weakest: float | None) -> DeviceFigures:
        values = (accuracy + more, accuracy + more - 10, weakest)
        levels = tuple(
            LevelFigures(level=level, accuracy=value, domain_accuracy={}) for level, value in enumerate(values, start=1)
        )
        whole = weakest is not None
        return DeviceFigures(
            levels=levels, clients=(), accuracy=accuracy + more if whole else None, worst=weakest if whole else None
        )

    return DeviceScores(sent=figures(0, None), own_statistics=figures(20, 5.0))
