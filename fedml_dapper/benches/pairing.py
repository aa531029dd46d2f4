"""Whether runs that are compared seed by seed trained on the same data, which cells' names do not tell of a suite."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedml_dapper.datasets import FOLDER
from fedml_dapper.federation import RunRecord


@dataclass(frozen=True)
class Trained:
    """A variant's run of one seed."""

    variant: str
    seed: int
    run: RunRecord


def on_other_data(runs: Sequence[Trained], reference: str) -> Mapping[tuple[str, int], str]:
    """Return what is wrong with runs whose settings name the data of another run, and whose data were others.

    So it is where some were run while a suite was not there in whole. Runs are held against the reference's of their
    seed, or where it has none with these settings, against the first.

    Args:
        runs: Finished runs in the bench's order.
        reference: Label of the variant that others are compared with.

    Returns:
        Reasons by variant and seed.
    """
    first = dict[Hashable, Trained]()
    wrong = {}
    for each in sorted(runs, key=lambda one: one.variant != reference):
        like = first.setdefault((each.seed, _settings(each.run)), each)
        if _data(each.run) != _data(like.run):
            wrong[each.variant, each.seed] = (
                f"trained on other data than {like.variant} with this seed: {_described(each.run)}, there"
                f" {_described(like.run)}; delete its cell and run the bench once more"
            )
    return wrong


def _settings(run: RunRecord) -> str:
    """Return those settings of a run that decide which data its clients have, as text."""
    data = dict(run.settings["data_args"])
    folder = data.pop("data_cache_dir", None)  # a suite's may lie anywhere
    if data["dataset"] == FOLDER and folder is not None:
        data["folder"] = Path(folder).name
    return json.dumps([data, run.settings["train_args"].get("client_num_in_total")], sort_keys=True)


def _data(run: RunRecord) -> Hashable:
    return run.suite, tuple((client.client, client.domain, client.num_samples) for client in run.clients)


def _described(run: RunRecord) -> str:
    return f"{run.suite} ({sum(client.num_samples for client in run.clients)} samples)"
