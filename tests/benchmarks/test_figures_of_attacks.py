"""Figures of docs/privacy.md, docs/reliability.md and results/attacks are those of the committed runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from benchmarks import attacks, inversion, membership
from benchmarks.resumable import read
from docs.pictures.attacks import accuracy
from fedml_dapper.federation.privacy.accountant import epsilon
from fedml_dapper.methods.contract.privacy import Privacy

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "attacks"
RELIABILITY = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
PRIVACY = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
SEEDS, NOISE = 3, 0.1
ROUNDS, DELTA = 12, 1e-5


def prose(page: str) -> str:
    """The page in one line, without what makes words bold."""
    return " ".join(page.split()).replace("**", "")


@pytest.mark.parametrize(
    ("table", "file"),
    [
        (attacks.table, "quickstart_small"),
        (attacks.table, "digits_offline"),
        (attacks.table, "quickstart"),
        (attacks.table, "quickstart_6_rounds"),
        (inversion.table, "inversion"),
        (membership.table, "membership"),
    ],
)
def test_a_record_s_tables_are_what_its_command_prints(
    table: Callable[[Sequence[Mapping[str, Any]]], Iterator[str]], file: str
) -> None:
    rows = "\n".join(table(read(RESULTS / f"{file}.jsonl")))
    assert rows in (RESULTS / "README.md").read_text(encoding="utf-8")


def opened(defence: str) -> float:
    """Percent of stamped images that two backdoors of level 1 turn into their class."""
    runs = read(RESULTS / "quickstart_small.jsonl")
    key = ("backdoor", 1, 2, defence)
    return mean(
        run["backdoor"] for run in runs if (run["attack"], run["level"], run["attackers"], run["defence"]) == key
    )


def test_what_the_page_says_that_screening_costs() -> None:
    untouched = accuracy("none", 0, "mean", 0)

    def lost(attack: str, level: int, defence: str, hostile: int = 2) -> str:
        return f"{untouched - accuracy(attack, level, defence, hostile):.0f}"

    flipped = {level: lost("sign_flip", level, "screened_mean") for level in (1, 3, 5)}
    said = prose(RELIABILITY)
    assert f"Two sign-flippers cost at most {max(flipped.values(), key=int)} points under screening" in said
    assert f"under the mean {lost('sign_flip', 1, 'mean')} at level 1 and {lost('sign_flip', 3, 'mean')} at" in said
    assert f"mere silence costs {lost('silent', 1, 'mean')} points" in said
    assert f"cost {lost('times_-4', 1, 'screened_mean')} points under screening" in said
    assert f"screening costs {untouched - accuracy('none', 0, 'screened_mean', 0):.1f} points" in said
    assert f"The median costs {untouched - accuracy('none', 0, 'median', 0):.1f}" in said
    assert f"opens for {opened('screened_mean'):.0f} % of stamped images, instead of {opened('mean'):.0f} %" in said
    alone = [lost(attack, level, "screened_mean", 1) for attack in attacks.ATTACKS[1:] for level in (1, 3, 5)]
    assert f"One hostile client costs up to {max(alone, key=int)} points" in said


def test_what_an_attacker_draws() -> None:
    runs = [run for run in read(RESULTS / "inversion.jsonl") if run["method"] == "dapperfl_slim"]

    def found(noise: float | None) -> list[str]:
        areas = [[run["area"] for run in runs if (run["level"], run["noise"]) == (level, noise)] for level in (1, 5)]
        assert [len(values) for values in areas] == [SEEDS, SEEDS]
        return [f"{mean(values):.1f}" for values in areas]

    (spent,) = {run["epsilon"] for run in runs if run["noise"] == NOISE}
    plain, hidden = found(None), found(NOISE)
    assert f"in {plain[0]} % (level 1) and {plain[1]} % (level 5)" in prose(PRIVACY)
    assert f"With noise {NOISE}, an epsilon of {spent:.0f}, it is {hidden[0]} and {hidden[1]} %" in prose(PRIVACY)
    sums = {
        method: mean(run["area"] for run in read(RESULTS / "inversion.jsonl") if (run["method"], run["seen"]) == key)
        for method in ("fedavg", "dapperfl_slim")
        if (key := (method, "sum"))
    }
    assert f"{sums['fedavg']:.1f} for `fedavg` and {sums['dapperfl_slim']:.1f} for `dapperfl_slim`" in prose(PRIVACY)


def test_who_was_trained_on() -> None:
    rows = [line for line in membership.table(read(RESULTS / "membership.jsonl")) if "| none | none |" in line]
    for seen, said in (("upload", "{} to {} % on uploads"), ("sum", "{} to {} % on sums")):
        areas = [float(cell.split(" ± ")[0]) for row in rows if f"| {seen} |" in row for cell in row.split(" | ")[5:10]]
        assert said.format(min(areas), max(areas)) in prose(PRIVACY)


def test_what_noise_costs() -> None:
    bench = json.loads((ROOT / "results" / "small" / "privacy" / "summary.json").read_text(encoding="utf-8"))
    found = [row["entries"]["global"] for row in bench["honest"]["rows"]]
    table = PRIVACY.split("| noise multiplier | epsilon")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()[2:]]
    assert len(rows) == len(found)
    for entry, row in zip(found, rows, strict=True):
        assert row[2] == f"{entry['estimate']['mean']:.1f} ± {entry['estimate']['std']:.1f}", row
        if entry["difference"] is not None:
            change, interval = entry["difference"]["mean"], entry["difference"]["interval"]
            assert row[3] == f"{change:.1f} ({interval['low']:.1f} to {interval['high']:.1f})", row
    for multiplier, said, *_ in rows[2:]:
        spent = epsilon(Privacy("server", 1.0, float(multiplier), DELTA, is_secret=False), ROUNDS)
        assert said == (f"{spent:,.0f}" if spent > 100 else f"{spent:.1f}")
