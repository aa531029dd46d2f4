"""Figures of a run on its fleet's virtual clock."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedml_dapper.evaluation.spending import time_unit
from fedml_dapper.evaluation.style import PALETTE, panel
from fedml_dapper.federation import RoundRecord, RunRecord
from fedml_dapper.federation.run_folder.records import ClientRecord, ClientSummary

_EARLIER = "since an earlier round"
_COLOURS = {
    "download": PALETTE[0],
    "training": PALETTE[1],
    "upload": PALETTE[2],
    _EARLIER: PALETTE[3],
    "waiting": "0.88",
}


def timeline(run: RunRecord, record: RoundRecord) -> Figure:
    """Draw what every client at work did in one round, and how long it waited for the round to close."""
    assert record.clock is not None
    clock = record.clock
    levels: dict[int, ClientSummary | ClientRecord] = {client.client: client for client in run.clients}
    levels |= {client.client: client for client in record.clients}  # a rule may give others in each round
    rows: dict[int, tuple[str, dict[str, float]]] = {}
    for one in clock.clients:
        outcome = "" if one.outcome == "in time" else f", {one.outcome}"
        rows[one.client] = outcome, {"download": one.download_s, "training": one.training_s, "upload": one.upload_s}
    for earlier in (*clock.arrived, *clock.under_way):
        left_s = max(0.0, earlier.arrives_s - (clock.elapsed_s - clock.round_s))
        rows.setdefault(earlier.client, (f", since round {earlier.begun}", {_EARLIER: left_s}))
    scale, unit = time_unit(max([clock.round_s, *(sum(spans.values()) for _, spans in rows.values())]))
    figure, axes = panel(2.2 + 0.3 * len(rows))
    names = []
    for place, (client_id, (outcome, spans)) in enumerate(sorted(rows.items())):
        begins = 0.0
        for part, span in {**spans, "waiting": max(0.0, clock.round_s - sum(spans.values()))}.items():
            axes.barh(place, span / scale, left=begins / scale, height=0.7, color=_COLOURS[part])
            begins += span
        client = levels[client_id]
        names.append(f"{client_id} ({client.domain}, {client.level}{outcome})")
    axes.axvline(clock.round_s / scale, color="black", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_ylabel("client (domain, level)")
    axes.set_xlabel(f"virtual time since the round began ({unit})")
    drawn = {part for _, spans in rows.values() for part in spans} | {"waiting"}
    patches = [Patch(color=colour, label=part) for part, colour in _COLOURS.items() if part in drawn]
    figure.legend(handles=patches, loc="outside lower center", ncols=2, frameon=False)
    return figure
