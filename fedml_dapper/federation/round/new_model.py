"""Makes the new global model of a round, or keeps the one before where the uploads would ruin it."""

from __future__ import annotations

import logging

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.round.open_round import OpenRound
from fedml_dapper.federation.round.update_norm import UpdateNorms, is_finite, recorded_norms, usual_norms
from fedml_dapper.federation.run_folder.records import ClientRecord
from fedml_dapper.methods import ServerState
from fedml_dapper.process.profiling import part
from fedml_dapper.pruning import ChannelLayout

LOGGER = logging.getLogger(__name__)


def make_model(
    opened: OpenRound, state: ServerState, layout: ChannelLayout, times_median: float | None, is_simulation: bool
) -> str | None:
    """Finish the aggregation of a round's uploads, and write the new global model into ``state``.

    Outliers are looked for once more here, since in the first round uploads' usual size is known only when all are in.
    In a simulation, where clients run our own code, a model that is not finite is a result and is kept.

    Args:
        opened: The round, with all uploads folded.
        state: The server's, with the model of the round before.
        layout: The network's.
        times_median: How many times the usual size an upload may have; None for any.
        is_simulation: Whether clients run our own code.

    Returns:
        Why ``state`` keeps the model of the round before; None where it has the new one.
    """
    outliers = {} if times_median is None else _outliers(opened.records, opened.usual, times_median)
    if outliers:
        for client_id, reason in outliers.items():
            opened.note_refusal(client_id, reason)
        opened.records = [record for record in opened.records if record.client not in outliers]
        return f"what clients {sorted(outliers)} sent is out of all proportion"
    if opened.has_nothing:
        return "no client's upload counts"
    weights = dict(state.weights)  # to go back to, since closing the aggregation writes into the state
    memory = state.memory.snapshot()
    with part("aggregation"):
        opened.aggregation.close()
        layout.unify(state.weights)
    if is_simulation or is_finite((*state.weights.values(), *state.memory.tensors.values())):
        return None
    state.weights = weights
    state.memory = memory
    senders = sorted(record.client for record in opened.records)
    return f"the model made of what clients {senders} sent is not finite"


def _outliers(records: list[ClientRecord], known: UpdateNorms, times: float) -> dict[int, str]:
    """Return why folded uploads are out of proportion, by client id, in figures whose usual size was not known before.

    Uploads that exceed the usual size as ``known`` when they came have been refused already.
    """
    usual = usual_norms(records).without(known)
    outliers = {}
    for record in records:
        try:
            recorded_norms(record).check(usual, times)
        except ProtocolError as error:
            outliers[record.client] = str(error)
    return outliers


def judged(record: ClientRecord, state: ServerState) -> ClientRecord:
    """Return ``record`` with the defence's verdict on the upload, where there is one."""
    verdict = state.verdicts.get(record.client)
    if verdict is None:
        return record
    if verdict.counted == 0:
        agreement = verdict.agreement
        found = "it is not finite" if agreement is None else f"it agrees by {agreement:.3g} with the others"
        LOGGER.warning("round %d: upload of client %d left out: %s", state.round, record.client, found)
    update = {"agreement": verdict.agreement, "length": verdict.length, "counted": verdict.counted}
    return record.model_copy(update=update)
