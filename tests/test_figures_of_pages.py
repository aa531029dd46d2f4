"""Figures in pages are those of ``results/``.

Every sentence below is written anew from the committed summaries, and has to stand in its page. A decimal figure that
no sentence accounts for is one of ``OTHERS``, with its reason.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from functools import cache
from statistics import fmean
from typing import Any

import pytest

from docs.pictures.equal_cost import SUITES, is_judged
from docs.pictures.summaries import RESULTS, entry, named, summary
from fedml_dapper.benches.statistics import Estimate, holm, paired_difference, paired_p
from fedml_dapper.federation import LEDGER_NAME, read_ledger

from .test_prose import ROOT

DRAWN, LARGE, LARGE_DRAWN = "small/table2_drawn", "paper/table2", "paper/table2_drawn"
CARD = "paper_on_h100/table2"
ADAPTERS = "small/adapters"
SLIM, BYTES, FLEET, PACS = "small/slim", "small/slim_bytes", "small/fleet", "small/capacity"
EXITS, EXITS_DIGITS = "small/exits", "small/exits_digits"
EXITS_OURS, EXITS_FULL, EXITS_NARROW = "DapperFL-exits", "FedAvg with exits", "width 10 for all, with the same exits"
PARTS, RATIOS, FEWER, RULES, WIDE, STATISTICS = (
    "small/table3",
    "small/fig3",
    "small/fewer_bits",
    "small/official",
    "small/plus_wide",
    "small/slim_batchnorm",
)
OFFICE, DIGITS_BUDGETS, CIFAR_BUDGETS = SUITES
PLUS, SMALLEST = "DapperFL+ (ours)", "smallest for all"
WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")


def mean(bench: str, label: str, column: str = "global", rule: str = "honest") -> float:
    found: float = entry(bench, label, column=column, rule=rule)["estimate"]["mean"]
    return found


def of(bench: str, label: str, column: str = "global") -> str:
    """Mean over seeds, in percent."""
    return f"{mean(bench, label, column):.1f}"


def spread(bench: str, label: str) -> str:
    """Mean ± standard deviation over seeds."""
    return f"{of(bench, label)} ± {entry(bench, label)['estimate']['std']:.1f}"


def range_of(estimate: Mapping[str, Any]) -> str:
    """The 95 % interval."""
    return f"{estimate['interval']['low']:.1f} to {estimate['interval']['high']:.1f}"


def apart(bench: str, one: str, other: str, column: str = "global") -> str:
    """How many points lie between two variants."""
    return f"{abs(mean(bench, one, column) - mean(bench, other, column)):.1f}"


def level(bench: str, label: str, number: int) -> str:
    """What the model of a level has, as it is sent."""
    return f"{named(bench, 'devices', label)['sent'][str(number)]['mean']:.1f}"


def own(bench: str, label: str, number: int) -> str:
    """What the model of a level has under BatchNorm statistics of a device's own images."""
    return f"{named(bench, 'devices', label)['own_statistics'][str(number)]['mean']:.1f}"


def lost(label: str, number: int) -> str:
    """How many points statistics that do not fit cost the model of a level."""
    found = named(STATISTICS, "devices", label)
    return f"{found['own_statistics'][str(number)]['mean'] - found['sent'][str(number)]['mean']:.1f}"


def left_behind(label: str, rate: str = "") -> str:
    """How many points a method is behind FedAvg, both at a rate and under statistics of devices' own images."""
    fedavg, method = (
        named(STATISTICS, "devices", f"{name}{rate}")["own_statistics"]["1"]["mean"] for name in ("FedAvg", label)
    )
    return f"{fedavg - method:.1f}"


def statistics_row(label: str) -> str:
    levels = f"{level(STATISTICS, label, 5)} | {own(STATISTICS, label, 5)}" if "FedAvg" not in label else "- | -"
    return f"| {spread(STATISTICS, label)} | {own(STATISTICS, label, 1)} | {levels} |"


def gap(label: str) -> str:
    """The share of PACS' gap that a method recovers."""
    share = named(PACS, "gap", label)["share"]
    return f"{share['mean']:.2f} ({range_of(share)})"


def clock(label: str) -> str:
    """What has been reached after the shortest run, and seconds of all rounds."""
    times = named(FLEET, "times", label)
    return f"{times['at_equal_time']['global']['mean']:.1f} | {times['elapsed_s']['mean']:.0f}"


def timing(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / "benchmarks" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def timed(name: str, figure: str, digits: int = 2, **row: object) -> str:
    """One figure of the row of a benchmark that has these values."""
    [found] = [found for found in timing(name)["rows"] if row.items() <= found.items()]
    return f"{found[figure]:.{digits}f}"


def above_macs(network: str, precision: str) -> str:
    """The range over levels of a slim step's share of time above its share of multiply-accumulates."""
    rows = timing(f"step_{network}")["rows"]
    shares = [row["time above MACs"] for row in rows if row["precision"] == precision and row["ratio"]]
    return f"{min(shares):.2f} to {max(shares):.2f}"


def recorded(name: str, **row: str) -> dict[str, str]:
    """The row of a committed CSV file that has these values."""
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        [found] = [found for found in csv.DictReader(file) if row.items() <= found.items()]
    return found


def fleet_row(label: str, devices: bool = True) -> str:
    own = of(FLEET, label, "devices") if devices else "-"
    return f"| {spread(FLEET, label)} | {own} | {of(FLEET, label, 'dslr')} | {clock(label)} |"


def slim_row(label: str) -> str:
    return f"| {spread(SLIM, label)} | {level(SLIM, label, 5)} | {of(SLIM, label, 'devices')} |"


def pacs_row(label: str) -> str:
    return f"| {spread(PACS, label)} | {gap(label)} | {of(PACS, label, 'devices')} | {level(PACS, label, 5)} |"


def exits_row(label: str) -> str:
    """What the global model has, and its lead over ``dapperfl_slim``; devices and the weakest level's model."""
    lead, models = entry(EXITS, label)["difference"], named(EXITS, "devices", label)
    figures = (
        spread(EXITS, label),
        "-" if lead is None else f"{lead['mean']:.1f} ({range_of(lead)})",
        "-" if models["worst"] is None else of(EXITS, label, "devices"),
        level(EXITS, label, 4) if "4" in models["sent"] else "-",
    )
    return f"| {' | '.join(figures)} |"


def megabytes(label: str) -> str:
    """What a client of bench `exits` sends in a round."""
    return f"{named(EXITS, 'cost', label)['bytes_up'] / 1e6:.2f}"


def exits_on_digits() -> str:
    """Points of `dapperfl_exits` beyond `dapperfl_slim` on digits, over the seeds that are run."""
    lead = paired_difference(by_seed(EXITS_DIGITS, EXITS_OURS), by_seed(EXITS_DIGITS, "DapperFL-slim"))
    assert lead is not None
    return f"{lead.mean:.1f}"


def adapted_row(label: str) -> str:
    """What the models of three levels have, what devices have, and kB that a client is sent in a round."""
    levels = " | ".join(level(ADAPTERS, label, number) for number in (1, 2, 3))
    sent = named(ADAPTERS, "cost", label)["bytes_down"] / 1000
    return f"{levels} | {of(ADAPTERS, label, 'devices')} | {sent:.0f}"


def budgets_row(bench: str, label: str) -> str:
    """What a method makes of a budget, and what the weakest level's round costs; none where nobody of it trains."""
    models, need = named(bench, "devices", label), named(bench, "needs", label)
    difference, worst = entry(bench, label)["difference"], models["worst"]
    sent = named(bench, "cost", label)
    is_trained = "4" in need["macs"]
    figures = [
        spread(bench, label),
        "-" if difference is None else f"{difference['mean']:.1f} ({range_of(difference)})",
        "-" if worst is None else of(bench, label, "devices"),
        level(bench, label, 4) if "4" in models["sent"] else "-",
        "-" if worst is None else f"{worst['mean']:.1f}",
        of_round(label, 4, bench) if is_trained else "-",
        f"{need['memory_bytes']['4'] / 1e6:.0f}" if is_trained else "-",
        f"{sent['bytes_up'] / 1e6:.2f}, {sent['bytes_down'] / 1e6:.2f}",
    ]
    return f"| {' | '.join(figures)} |"


def by_seed(bench: str, label: str) -> dict[int, float]:
    """Accuracy by seed."""
    return {int(seed): accuracy for seed, accuracy in entry(bench, label)["values"].items()}


def in_last_round(bench: str, label: str) -> dict[int, float]:
    """Global accuracy in the last round, by seed."""
    manifest = json.loads((RESULTS / bench / "bench.json").read_text(encoding="utf-8"))
    found = {}
    for cell in manifest["cells"]:
        if cell["variant"] == label and cell["seed"] in by_seed(bench, label):
            _, rounds = read_ledger(RESULTS / "small" / "cells" / cell["folder"] / LEDGER_NAME)
            assert rounds[-1].scores is not None
            found[cell["seed"]] = rounds[-1].scores.global_accuracy
    return found


def with_interval(ahead: Estimate | None) -> str:
    """A paired difference with its 95 % interval."""
    assert ahead is not None
    assert ahead.interval is not None
    return f"{ahead.mean:.1f} ({ahead.interval.low:.1f} to {ahead.interval.high:.1f})"


def lead(bench: str, one: str, other: str) -> str:
    """Points of a variant beyond another one, over the seeds of both."""
    return with_interval(paired_difference(by_seed(bench, one), by_seed(bench, other)))


def lead_in_last_round(bench: str, one: str, other: str = "FedAvg") -> str:
    """The same in the last round alone."""
    return with_interval(paired_difference(in_last_round(bench, one), in_last_round(bench, other)))


def small_lead(label: str, sign: int = 1) -> tuple[str, str]:
    """Points of a method beyond DapperFL in the small profile of Table 2, or of DapperFL beyond it; the interval."""
    difference = entry(DRAWN, label)["difference"]
    ends = sorted(sign * difference["interval"][end] for end in ("low", "high"))
    return f"{sign * difference['mean']:.1f}", f"{ends[0]:.1f} to {ends[1]:.1f}"


def weakest_behind(label: str, other: str) -> str:
    """Points that the weakest level's own model is behind the global one of ``other``, on CIFAR-10."""
    weakest = named(CIFAR_BUDGETS, "devices", label)["sent"]["4"]["mean"]
    return f"{mean(CIFAR_BUDGETS, other) - weakest:.1f}"


def told_apart(bench: str, reference: str) -> dict[str, float]:
    """Points beyond ``reference`` of the variants that differ from it after Holm's correction for all of the suite."""
    labels = [row["label"] for row in summary(bench)["honest"]["rows"] if row["label"] != reference]
    base = by_seed(bench, reference)
    p_values = {label: paired_p(by_seed(bench, label), base) for label in labels}
    adjusted = holm({label: p for label, p in p_values.items() if p is not None})
    return {label: mean(bench, label) - mean(bench, reference) for label, p in adjusted.items() if p < 0.05}


def claimed(one: str, other: str) -> str:
    """What a paper's claim that a method is ahead comes to at equal budgets, suite by suite."""
    return "".join(f" {_claimed(bench, one, other)} |" for bench in SUITES)


def _claimed(bench: str, one: str, other: str) -> str:
    if not is_judged(bench, one):
        return "not judged"
    ahead = paired_difference(by_seed(bench, one), by_seed(bench, other))
    assert ahead is not None
    clear = "confirmed" if ahead.mean > 0 else "reversed"
    hint = "a hint" if ahead.mean > 0 else "a hint of the reverse"
    verdict = clear if _corrected(bench)[one, other] < 0.05 else hint if ahead.is_clear else "not shown"
    return f"{verdict}: {with_interval(ahead)}"


@cache
def _corrected(bench: str) -> dict[tuple[str, str], float]:
    """P-values of a suite's claims after Holm's correction for all of them."""
    claims = {f"{one}/{other}": (one, other) for one, other in ALL_CLAIMS if is_judged(bench, one)}
    p_values = {key: paired_p(by_seed(bench, one), by_seed(bench, other)) for key, (one, other) in claims.items()}
    return {claims[key]: p for key, p in holm({key: p for key, p in p_values.items() if p is not None}).items()}


def of_round(label: str, number: int, bench: str = OFFICE) -> str:
    """Multiply-accumulates of a level's round, of those that the same clients' round costs under FedAvg."""
    return f"{_of_round(bench, label, number):.2f}"


def of_rounds(label: str) -> str:
    """The same, on the mean of the levels that train."""
    levels = [int(level) for level, macs in named(OFFICE, "needs", label)["macs"].items() if macs]
    return f"{fmean(_of_round(OFFICE, label, level) for level in levels):.2f}"


def _of_round(bench: str, label: str, number: int) -> float:
    method, fedavg = (named(bench, "needs", name)["macs"][str(number)] for name in (label, "FedAvg"))
    found: float = method / fedavg
    return found


def in_seed_11(label: str) -> str:
    """Accuracy on digits in the seed in which the strong devices have few images."""
    return f"{by_seed(DIGITS_BUDGETS, label)[11]:.1f}"


def in_others(label: str) -> str:
    """The least accuracy on digits in the other seeds."""
    return f"{min(accuracy for seed, accuracy in by_seed(DIGITS_BUDGETS, label).items() if seed != 11):.1f}"


def published(label: str) -> str:
    return f"{entry(DRAWN, label, rule='best')['published']['mean']:.1f}"


CLAIMS = (
    ("DapperFL", "FedAvg"),
    ("DapperFL", "FedMP"),
    ("DapperFL", "NeFL"),
    ("DapperFL", "FedDrop"),
    ("FedRolex", "FedDrop"),
    ("FedRolex", "HeteroFL"),
    ("FjORD", "FedDrop"),
    ("FIARSE", "HeteroFL"),
    ("FIARSE", "FedRolex"),
    ("ScaleFL", "HeteroFL"),
    ("DepthFL", "HeteroFL"),
    ("ProFL", "HeteroFL"),
    ("ProFL", "DepthFL"),
)
"""Methods with others that their papers have behind them."""
ALL_CLAIMS = (*CLAIMS, ("the strong alone", "HeteroFL"))
"""The same with the control that DepthFL's paper compares with."""
MEMORY = "benchmarks/training_memory.csv"
DIGITS = recorded("levels_on_digits/levels.csv", row="DapperFL, BatchNorm, rate 0.01 (digits_offline.yaml), as sent")
WEAK = f"DapperFL reaches {float(DIGITS['level 1 (ratio 0)']):.0f} % globally"
MASKS = "official_compat, channels first"
DENSE_BF16 = {"ratio": 0.0, "precision": "bf16"}


def said() -> dict[str, list[str]]:
    """Page -> what it says."""
    settings = {row["label"] for row in summary(WIDE)["honest"]["rows"]} - {"FedAvg", "DapperFL"}
    wide = [label for label in settings if mean(WIDE, label) > mean(WIDE, "FedAvg")]
    more_bytes, dense = "DapperFL-slim, as many bytes", "FedAvg"
    on_those = "FedAvg on those that can"
    behind = sum(mean(DRAWN, label) > mean(DRAWN, "DapperFL")
                 for label in ("FedAvg", "MOON", "FedSR", "FPL", "FedDrop", "FedProx", "FedMP", "NeFL"))  # fmt: skip
    large = {row: of("paper/table3", row) for row in ("DapperFL", "w/o DAR", "w/o MFP", "w/o MFP + DAR")}
    fewer = [mean(FEWER, row["label"]) for row in summary(FEWER)["honest"]["rows"] if row["label"] != "fp32"]
    ratios = ", ".join(of(RATIOS, f"DapperFL, rho {rho}") for rho in (0.2, 0.4, 0.6))
    return {
        "docs/reproduction.md": [
            f"The paper has DapperFL at {published('DapperFL')} % and FedAvg at {published('FedAvg')} %.",
            "DapperFL is {} points behind FedAvg ({}) and {} behind DapperFL+ ({}),".format(
                *small_lead(dense), *small_lead(PLUS)
            ),
            "not told from NeFL ({} behind, {}) and FedMP ({} ahead, {}), and {} ahead of FedDrop ({}).".format(
                *small_lead("NeFL"), *small_lead("FedMP", -1), *small_lead("FedDrop", -1)
            ),
            f"three seeds | {spread(DRAWN, dense)} | {spread(DRAWN, 'DapperFL')} | {spread(DRAWN, PLUS)} |",
            f"deals them, one seed | {of(LARGE, dense)} | {of(LARGE, 'DapperFL')} | {of(LARGE, PLUS)} |",
            f"the same on an H100 | {of(CARD, dense)} | {of(CARD, 'DapperFL')} | not finished |",
            f"gives DapperFL {of(LARGE, 'DapperFL')} and {of(CARD, 'DapperFL')} %.",
            f"FedMP has {spread(DRAWN, 'FedMP')} and NeFL {spread(DRAWN, 'NeFL')}, on the H100 {of(CARD, 'FedMP')} and"
            f" {of(CARD, 'NeFL')}.",
            f"FedMP has {spread(FLEET, 'FedMP')} %, NeFL {spread(FLEET, 'NeFL')}, and FedAvg with full models for all"
            f" {of(FLEET, 'FedAvg without limits')}.",
            f"FedMP is {apart(OFFICE, 'FedMP', dense)} points behind FedAvg on this data set and NeFL, which cuts the"
            f" residual stream too, {apart(OFFICE, 'NeFL', dense)}; on digits and CIFAR-10 neither is shown to be.",
            f"NeFL has {of(CARD, 'NeFL')} % and FedMP {of(CARD, 'FedMP')}, so DapperFL is"
            f" {apart(CARD, 'DapperFL', 'NeFL')} and {apart(CARD, 'DapperFL', 'FedMP')} points ahead",
            *(statistics_row(row["label"]) for row in summary(STATISTICS)["honest"]["rows"]),
            f"cost FedMP's full model {lost('FedMP', 1)} points of the {apart(STATISTICS, 'FedMP', dense)} by which"
            f" it is behind FedAvg, and its weakest level's {lost('FedMP', 5)}.",
            f"NeFL's full model loses {lost('NeFL', 1)} of {apart(STATISTICS, 'NeFL', dense)}.",
            f"FedMP is {left_behind('FedMP')} points behind FedAvg and NeFL {left_behind('NeFL')}, and at three times"
            f" the rate {left_behind('FedMP', ', rate 0.03')} and {left_behind('NeFL', ', rate 0.03')}.",
            f"with one for all it has {apart(STATISTICS, 'NeFL, one BatchNorm', 'NeFL')} points less.",
            f"by the seed, one seed | {of(LARGE_DRAWN, dense)} | {of(LARGE_DRAWN, 'DapperFL')} | not run |",
            f"DapperFL is {apart(FLEET, 'DapperFL', on_those)} points ahead of FedAvg without those devices.",
            f"{WORDS[len(wide)]} of {WORDS[len(settings)]} such settings do, by up to"
            f" {max(mean(WIDE, label) for label in wide) - mean(WIDE, dense):.1f} points.",
            f"FedAvg has {of('paper/slim', dense)} % and our variant `dapperfl_slim`"
            f" {of('paper/slim', 'DapperFL-slim')} %, with one seed.",
            f"For as many bytes it has {spread(BYTES, more_bytes)} % and dense FedAvg {spread(BYTES, dense)} %."
            f" For as many rounds it has {spread(BYTES, 'DapperFL-slim')} %.",
            f"it is {apart(LARGE, PLUS, 'DapperFL')} points ahead of DapperFL.",
            f"Its rules have {spread(RULES, 'official_compat')} % in the small profile, and DapperFL"
            f" {spread(RULES, 'DapperFL')} % beside them.",
            f"behind {WORDS[behind]} of eight on the mean",
            f"({of(PARTS, 'w/o DAR')} and {of(PARTS, 'w/o MFP + DAR')} against {of(PARTS, 'DapperFL')} %)",
            f"rows between {min(large.values())} and {max(large.values())} %, DapperFL {large['DapperFL']}",
            f"({of(RATIOS, 'DapperFL, rho 0.8')} against {of(RATIOS, 'FedMP, rho 0.8')} %)",
            f"by chance: {ratios} and {of(RATIOS, 'DapperFL, rho 0.8')} %",
            f"(between {min(fewer):.1f} and {max(fewer):.1f} % against {of(FEWER, 'fp32')})",
        ],
        "docs/fleet.md": [
            f"Full models for all are worth {named(FLEET, 'gap', 'FedAvg without limits')['gain']['mean']:.1f} points"
            f" more, with an interval of {range_of(named(FLEET, 'gap', 'FedAvg without limits')['gain'])}.",
            f"so without `dslr` {fleet_row(on_those, devices=False)}",
            f"network for all {fleet_row(SMALLEST)}",
            f"the ceiling {fleet_row('FedAvg without limits')}",
            f"`dapperfl` {fleet_row('DapperFL')}",
            f"`dapperfl_slim` {fleet_row('DapperFL-slim')}",
            f"{of(FLEET, 'DapperFL', 'dslr')} % on `dslr`, where FedAvg without them has {of(FLEET, on_those, 'dslr')}."
            f" It ends {apart(FLEET, 'DapperFL', on_those)} points ahead of that FedAvg"
            f" ({range_of(entry(FLEET, 'DapperFL')['difference'])})",
            f"the model that a level-5 device runs has {level(FLEET, 'DapperFL', 5)} %. `dapperfl_slim` has"
            f" {level(FLEET, 'DapperFL-slim', 5)} % at that level.",
            f"buffers of 10 ends at {of(FLEET, 'DapperFL-slim, buffers of 10')} %",
            f"predicted at {recorded('benchmarks/calibration.csv', level='4')['predicted_of_measured']} to"
            f" {recorded('benchmarks/calibration.csv', level='1')['predicted_of_measured']} of its seconds",
        ],
        "docs/devices.md": [
            f"{WEAK} on the embedded digits, but the model that its weakest devices run scores"
            f" {float(DIGITS['5 (0.8)']):.0f} %.",
            *(f"| {of_memory(samples, '')} | {of_memory(samples, 'internal')} | {of_memory(samples, 'grouped')} |"
              for samples in ("64", "8")),
            f"full models everywhere | {spread(SLIM, dense)} | - | - |",
            f"`dapperfl_slim` {slim_row('DapperFL-slim')}",
            f"without DAR {slim_row('DapperFL')}",
            f"network for all {slim_row(SMALLEST)}",
            f"`heterofl` {slim_row('HeteroFL')}",
            f"Its lead over `dapperfl` is {apart(SLIM, 'DapperFL-slim', 'DapperFL')} points",
            f"by {apart(SLIM, 'DapperFL-slim', dense)} points on the mean"
            f" ({range_of(entry(SLIM, 'DapperFL-slim')['difference'])})",
            f"`dapperfl_slim` has {spread(BYTES, more_bytes)} and FedAvg {spread(BYTES, dense)}. The interval is"
            f" {range_of(entry(BYTES, more_bytes)['difference'])}.",
            f"and the global model {apart(BYTES, more_bytes, more_bytes + ', nothing taught')}.",
            f"At twice the width they have {of('small/slim_wide', dense)} and {of('small/slim_wide', 'DapperFL-slim')}."
            f" At the paper's size, with one seed, they have {of('paper/slim', dense)} and"
            f" {of('paper/slim', 'DapperFL-slim')}.",
            f"full models are {named(PACS, 'gap', dense)['gain']['mean']:.1f} points better than the smallest level's"
            f" network for all ({range_of(named(PACS, 'gap', dense)['gain'])}).",
            f"`depthfl` {pacs_row('DepthFL')}",
            f"full models everywhere | {spread(PACS, dense)} | 1 | - | - |",
            f"without DAR {pacs_row('DapperFL')}",
            f"`dapperfl_slim` {pacs_row('DapperFL-slim')}",
            f"network for all | {spread(PACS, SMALLEST)} | 0 | {of(PACS, SMALLEST, 'devices')} |"
            f" {level(PACS, SMALLEST, 5)} |",
            f"`heterofl` {pacs_row('HeteroFL')}",
            f"strong alone | {spread(PACS, 'the strong alone')} | {gap('the strong alone')} | - | - |",
            *(exits_row(row["label"]) for row in summary(EXITS)["honest"]["rows"]),
            f"It is {apart(EXITS, EXITS_OURS, 'DapperFL-slim')} points ahead of `dapperfl_slim`"
            f" ({range_of(entry(EXITS, EXITS_OURS)['difference'])}), in every seed, and"
            f" {lead(EXITS, EXITS_OURS, dense)} ahead of FedAvg's full models.",
            f"Full models with DepthFL's exits have {of(EXITS, EXITS_FULL)}. A network of width 10 for all, a round of"
            f" which costs {of_round(EXITS_NARROW, 1, EXITS)} of FedAvg's, has {of(EXITS, EXITS_NARROW)} with the same"
            " exits.",
            f"It is not told from `dapperfl_exits` ({lead(EXITS, EXITS_OURS, EXITS_NARROW).replace(' (', ', ')}, sends"
            f" {megabytes(EXITS_NARROW)} MB a round in place of {megabytes(EXITS_OURS)},",
            f"which has {level(EXITS, EXITS_OURS, 4)}, where `dapperfl_slim`'s has"
            f" {level(EXITS, 'DapperFL-slim', 4)}.",
            f"{exits_on_digits()} points from `dapperfl_slim`'s, and the weakest level's has"
            f" {level(EXITS_DIGITS, EXITS_OURS, 4)}, where that of `dapperfl_slim` has"
            f" {level(EXITS_DIGITS, 'DapperFL-slim', 4)}.",
            f"exits cost FedAvg's full models {-entry(OFFICE, EXITS_FULL)['difference']['mean']:.1f} points on"
            f" Office-Caltech10 and {-entry(DIGITS_BUDGETS, EXITS_FULL)['difference']['mean']:.1f} on digits, and gain"
            f" {entry(CIFAR_BUDGETS, EXITS_FULL)['difference']['mean']:.1f} on CIFAR-10",
        ],
        "docs/performance.md": [
            f"a dense step takes {timed('step_resnet18', 'time of fp32', **DENSE_BF16)} of its time (ResNet18) or"
            f" {timing('step_resnet10')['rows'][5]['time of fp32']:.2f} (ResNet10)",
            f"took {bf16_on_xeon():.2f} of its time in fp32",
            f"Channels first takes {timing('step_resnet18')['fp32, channels first, dense, of fp32 channels last']:.2f}"
            " times as long.",
            f"{timed('round', 'times as fast', round='DapperFL')}: {timed('round', 'seconds', 0, round='DapperFL')} s"
            f" against {timed('round', 'seconds', 0, round=MASKS)} s",
            f"{timed('round', 'times as fast', round='DapperFL, bf16')}:"
            f" {timed('round', 'seconds', 0, round='DapperFL, bf16')} s; with `round_to: 16`"
            f" {timed('round', 'times as fast', round='DapperFL, bf16, round_to 16')}",
            *(f"| {by_workers(name)}; {by_workers(f'{name}, bf16')} |" for name in ("DapperFL", "DapperFL-slim")),
            f"| {above_macs('resnet18', 'fp32')}; {above_macs('resnet18', 'bf16')} |",
            f"| {above_macs('resnet10', 'fp32')}; {above_macs('resnet10', 'bf16')} |",
            f"| {timed('clients', 's per client, of 10', clients=1000)};"
            f" {timed('clients', 'peak MB, of 10', clients=1000)} |",
            f"{folded('ten that wait')['of_fedml']} and {folded('one by one')['of_fedml']}"
            f" ({float(folded('ten that wait')['seconds']):.2f} and {float(folded('one by one')['seconds']):.2f} s)",
            f"| {timed('startup', 'seconds', 1, what='first training step')} s (one of five runs:"
            f" {timed('startup', 'slowest', 0, what='first training step')} s) |",
            f"| {timed('mpi', 'of one process', runner='MPI, 2 + server')} |",
            f"({timed('gpu', 'ms', 1, ratio=0.8)} against {timed('gpu', 'ms', 1, ratio=0.0)} ms)",
            f"Four processes take {timing('gpu')['times that in 4 processes']:.1f} times as many steps a second as one,"
            f" eight {timing('gpu')['times that in 8 processes']:.1f} times.",
            *(f"| {row['method']} | {row['seconds']:.2f} |" for row in timing("gpu_rounds")["rows"]),
            *(beside(name, row) for name in ("peers_small", "peers_large") for row in timing(name)["rows"]),
            f"takes {of_peer('peers_small', 'pfl-research')} of pfl-research's time with small clients and"
            f" {of_peer('peers_large', 'pfl-research')} with larger ones, {of_peer('peers_small', 'Flower')} and"
            f" {of_peer('peers_large', 'Flower')} of Flower's",
            f"took {of_peer('peers_small_slower', 'Flower')} and {of_peer('peers_small_slower_flower', 'Flower')} of"
            " Flower's time",
            f"clients take {timed('peers_small_loaded', 's', 1, simulator='ours')} s here and"
            f" {timed('peers_small_loaded', 's', 1, simulator='pfl-research')} s under pfl-research.",
        ],
        "docs/adapters.md": [
            *(f"` | {adapted_row(label)} |" for label in ("FLoRA", "DapperFL-slim", "raFLoRA", "FlexLoRA", "HetLoRA")),
            f"network for all | {adapted_row(SMALLEST)} |",
            f"the whole base on every device has {of(ADAPTERS, dense)}.",
        ],
        "docs/weak_devices.md": [
            f"Its process peaks {above_torch(2)} MB above what `import torch` takes",
            f"`import fedml` alone takes {above_torch(1)} MB",
            *(f"| {row['peak']:.0f} | {above_torch(place)} |"
              for place, row in enumerate(timing("device_memory")["rows"]) if place),
            f"The 9,000 others took {registered_mb():.0f} MB",
        ],
        "docs/equal_cost.md": [
            f"one is, FedEcover, by {lead(CIFAR_BUDGETS, 'FedEcover', SMALLEST).replace(' (', ' points (')}.",
            f"on CIFAR-10 {weakest_behind('FedEcover', SMALLEST)} points behind the smallest network",
            *(f"| {one} is ahead of {other} |{claimed(one, other)}" for one, other in CLAIMS),
            "| Leaving weak clients out is better than HeteroFL (DepthFL's paper) |"
            f"{claimed('the strong alone', 'HeteroFL')}",
            f"exits make a full model's round cost {of_round('DepthFL', 1)} of FedAvg's, and a pupil makes"
            f" `dapperfl_slim`'s cost {of_round('DapperFL-slim', 1)}. Its third level can use"
            f" {of_round('DapperFL-slim', 3)} alone, so the four levels spend {of_rounds('DapperFL-slim')}"
            f" on the mean, and HeteroFL's {of_rounds('HeteroFL')}.",
            f"FjORD's draws of widths spend {of_rounds('FjORD')}, DepthFL's depths {of_rounds('DepthFL')}, and NeFL,"
            f" which has sizes of its own and cuts the residual stream, {of_rounds('NeFL')}.",
            f"weakest level never trains, and the other three spend {of_rounds('ProFL')}.",
            f"full models have {apart(OFFICE, SMALLEST, dense)} points less than the smallest network on"
            f" Office-Caltech10, {apart(DIGITS_BUDGETS, SMALLEST, dense)} more on digits, and"
            f" {apart(CIFAR_BUDGETS, SMALLEST, dense)} less on CIFAR-10.",
            f"They cost full models {-entry(OFFICE, EXITS_FULL)['difference']['mean']:.1f} points on Office-Caltech10"
            f" and {-entry(DIGITS_BUDGETS, EXITS_FULL)['difference']['mean']:.1f} on digits, and gain"
            f" {lead(CIFAR_BUDGETS, EXITS_FULL, dense)} on CIFAR-10, in the last round alone"
            f" {lead_in_last_round(CIFAR_BUDGETS, EXITS_FULL)}.",
            f"nothing of that is shown: {lead(CIFAR_BUDGETS, 'DepthFL', dense)}.",
            f"when its network is whole, it is {lead_in_last_round(CIFAR_BUDGETS, 'ProFL')} from FedAvg.",
            f"ScaleFL has {in_seed_11('ScaleFL')} %, HeteroFL {in_seed_11('HeteroFL')} and full models on the strong"
            f" alone {in_seed_11('the strong alone')}, and in every other seed at least {in_others('ScaleFL')},"
            f" {in_others('HeteroFL')} and {in_others('the strong alone')}.",
            f"FedAvg still has {in_seed_11(dense)}, FjORD {in_seed_11('FjORD')}, FedMP {in_seed_11('FedMP')}, and"
            f" `dapperfl_slim` and DapperFL {in_seed_11('DapperFL')}.",
        ],
        "results/small/README.md": [
            f"{lead(CIFAR_BUDGETS, EXITS_FULL, dense).replace(' (', ' points of FedAvg (')} and"
            f" {lead(CIFAR_BUDGETS, EXITS_FULL, SMALLEST).replace(' (', ' of the smallest network (')}, and in the last"
            f" round alone {lead_in_last_round(CIFAR_BUDGETS, EXITS_FULL).replace(' (', ' of FedAvg (')}.",
            f"{lead(CIFAR_BUDGETS, 'FedEcover', dense).replace(' (', ' points of FedAvg (')} and"
            f" {lead(CIFAR_BUDGETS, 'FedEcover', SMALLEST).replace(' (', ' of the smallest network (')}.",
            f"own model is {weakest_behind('FedEcover', 'FedEcover')} points behind its global one, and"
            f" {weakest_behind('FedEcover', SMALLEST)} behind the smallest network.",
            f"level with FedAvg's full models ({lead(CIFAR_BUDGETS, SMALLEST, dense).replace(' (', ', ')}.",
            f"In the last round it is {lead_in_last_round(CIFAR_BUDGETS, 'ProFL').replace(' (', ' from FedAvg (')}.",
            f"costs {of_round('DepthFL', 1)} of FedAvg's with exits, and {of_round('DapperFL-slim', 1)} in"
            f" `dapperfl_slim`, whose third level spends {of_round('DapperFL-slim', 3)}.",
            *(budgets_row(bench, row["label"]) for bench in SUITES for row in summary(bench)["honest"]["rows"]),
            *(budgets_row(EXITS, row["label"]) for row in summary(EXITS)["honest"]["rows"]),
            f"is {apart(EXITS, EXITS_OURS, 'DapperFL-slim')} points ahead of `dapperfl_slim`, in every seed, and"
            f" {lead(EXITS, EXITS_OURS, dense)} ahead of FedAvg.",
            f"To full models with exits it is {lead(EXITS, EXITS_OURS, EXITS_FULL)}, over the seeds of both.",
            f"for {of_round(EXITS_NARROW, 1, EXITS)} of FedAvg's round, it is {lead(EXITS, EXITS_OURS, EXITS_NARROW)}."
            f" That one is {lead(EXITS, EXITS_NARROW, dense)} ahead of FedAvg",
            f"{of(EXITS_DIGITS, EXITS_OURS)}, which is {exits_on_digits()} from `dapperfl_slim`'s on the same seeds,"
            f" and {level(EXITS_DIGITS, EXITS_OURS, 4)} at the weakest level, where `dapperfl_slim` has"
            f" {level(EXITS_DIGITS, 'DapperFL-slim', 4)}.",
            f"has {level(EXITS, EXITS_OURS, 4)}, `dapperfl_slim`'s {level(EXITS, 'DapperFL-slim', 4)}: only there",
        ],
        "README.md": [
            f"{WEAK} (`digits_offline.yaml`), but the model that its weakest devices run scores"
            f" {float(DIGITS['5 (0.8)']):.0f} %.",
            f"20 rounds | {apart(DRAWN, 'DapperFL', dense)} |",
            f"100 rounds | {apart(LARGE_DRAWN, 'DapperFL', dense)}; with the public code's draw of domains"
            f" {apart(LARGE, 'DapperFL', dense)} |",
        ],
    }  # fmt: skip


def beside(name: str, row: Mapping[str, Any]) -> str:
    """What a simulator's round takes, and ours of that."""
    measured = f"{row['s']:.1f} s | {row['CPU s']:.1f} s | {row['peak MB'] / 1000:.1f} GB"
    if row["simulator"] == "ours":
        return f"| ours | {measured} |"
    shares = " | ".join(of_peer(name, row["simulator"], unit) for unit in ("s", "CPU s", "peak MB"))
    return f"| {row['simulator']} | {measured} | {shares} |"


def of_peer(name: str, simulator: str, unit: str = "s") -> str:
    """Ours as a share of another simulator's."""
    [found] = [row for row in timing(name)["rows"] if row["simulator"] == simulator]
    return f"{1 / found[f'{unit}, of ours']:.2f}"


def above_torch(row: int) -> str:
    """Peak of a process above that of bare torch, in MB."""
    return f"{timing('device_memory')['rows'][row]['above torch']:.0f}"


def registered_mb() -> float:
    """Memory of the server for devices that have called and are not there."""
    nobody, registered, *_ = (row["value"] for row in timing("devices")["rows"])
    found: float = registered - nobody
    return found


def of_memory(samples: str, scope: str) -> str:
    return recorded(MEMORY, samples_at_a_time=samples, scope=scope)["measured_mb"]


def by_workers(name: str) -> str:
    return timed("round_by_workers", "times as fast", round=f"{name}, workers")


def folded(how: str) -> dict[str, str]:
    return recorded("benchmarks/aggregate_by_waiting.csv", aggregation=f"ours, slim, {how}")


def bf16_on_xeon() -> float:
    """Seconds of a step of the full network in bf16, of those in fp32."""
    speed = {row["work"]: row["GMAC/s"] for row in timing("limits_xeon")["rows"]}
    found: float = speed["fp32 step, ratio 0.0"] / speed["bf16 step, ratio 0.0"]
    return found


OTHERS = {
    "docs/equal_cost.md": {
        "0.5": "of Dirichlet's distribution",
        "0.8": "a budget", "0.6": "a budget", "0.4": "a budget", "0.05": "a level of significance",
        "4.8": "of PACS, in docs/devices.md",
    },
    "docs/reproduction.md": {
        "0.9": "a setting", "0.01": "a setting", "0.8": "a ratio", "0.4": "a ratio", "0.6": "a ratio",
        "1.5": "published", "5.1": "published", "67.6": "published", "62.3": "published", "61.0": "published",
    },
    "docs/fleet.md": {
        "2.0": "a profile's speed", "14.8": "a profile's speed", "17.7": "a profile's speed",
        "2.9": "a profile's speed", "0.88": "a profile's speed", "0.31": "a profile's speed",
        "0.5": "a profile's memory", "3.4": "of FLASH",
    },
    "docs/devices.md": {
        "1.7139": "a constant",
        "2.7": "of MACs: 9.5 against 3.5 million, in results/small/README.md",
    },
    "docs/performance.md": {
        "1.6": "an aim", "2.4": "an aim", "3.4": "an aim", "2.7": "an aim", "3.8": "an aim", "0.15": "an aim",
        "0.25": "an aim", "1.2": "an aim", "1.5": "an aim", "2.5": "an aim", "0.6": "the mean of five levels",
        "1.47": "reckoned there", "0.23": "one round under a profiler, in results/benchmarks/README.md",
        "0.31": "FedAvg's seconds once more", "0.3": "the least of four methods' seconds", "0.4": "their most",
        "5.2": "of 38a39ae", "5.5": "of 38a39ae", "4.7": "of 38a39ae",
    },
}  # fmt: skip
"""Page -> decimal figures that come from elsewhere -> from where."""


def plain(page: str) -> str:
    """A page's text in one line, without blocks of code, links' targets and bold type."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    return " ".join(re.sub(r"\]\([^)]*\)", "]", text).replace("**", "").split())


@pytest.mark.parametrize("page", said())
def test_what_a_page_says_is_what_came_out(page: str) -> None:
    text = plain(page)
    missing = [sentence for sentence in said()[page] if " ".join(sentence.split()) not in text]
    assert missing == [], f"{page} does not say:\n" + "\n".join(missing)


def test_what_is_ahead_of_fedavg_or_of_the_smallest_network_at_equal_budgets() -> None:
    for bench in (OFFICE, DIGITS_BUDGETS):
        assert [label for label, points in told_apart(bench, SMALLEST).items() if points > 0] == []
        assert [label for label, points in told_apart(bench, "FedAvg").items() if points > 0] == []
    for reference in (SMALLEST, "FedAvg"):
        ahead = [label for label, points in told_apart(CIFAR_BUDGETS, reference).items() if points > 0]
        assert sorted(ahead) == [EXITS_FULL, "FedEcover"]
    for bench in SUITES:
        assert SMALLEST not in told_apart(bench, "FedAvg")
    assert "NeFL" in told_apart(OFFICE, "FedAvg")
    assert not {"NeFL", "FedMP"} & {*told_apart(DIGITS_BUDGETS, "FedAvg"), *told_apart(CIFAR_BUDGETS, "FedAvg")}


def test_slim_networks_with_exits_gain_in_every_seed() -> None:
    ours, slim = by_seed(EXITS, EXITS_OURS), by_seed(EXITS, "DapperFL-slim")
    assert len(ours) == len(slim) == 5
    assert all(ours[seed] > slim[seed] for seed in slim)


@pytest.mark.parametrize("page", OTHERS)
def test_every_decimal_figure_has_its_source(page: str) -> None:
    text = plain(page)
    for sentence in said()[page]:
        text = text.replace(sentence, "")
    figures = re.findall(r"(?<![\w.])\d+\.\d+(?![\w.]*\d)", re.sub(r"`[^`]*`", "", text))
    assert sorted(set(figures) - set(OTHERS[page])) == []
    assert sorted(set(OTHERS[page]) - set(figures)) == [], "no longer there"
