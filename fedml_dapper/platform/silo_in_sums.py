"""A silo's side of secure sums: each round's upload goes under masks, and leaves in the steps of a sum."""

from __future__ import annotations

import hashlib
import logging
from functools import partial
from pathlib import Path
from typing import Any

from fedml_dapper.federation import (
    Declined,
    Experiment,
    MaskedUpload,
    Ready,
    SharedSettings,
    SumCodec,
    SumMessage,
)
from fedml_dapper.federation.promises import Promises
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.platform.certified import IdentityFiles
from fedml_dapper.secure_sum import Revealed

LOGGER = logging.getLogger(__name__)


class SiloInSums:
    """The silo of this ``rank``, which writes down in ``folder`` what it signs.

    Raises :class:`ConfigError` for certificates that are of no use.
    """

    def __init__(self, experiment: Experiment, codec: SumCodec, rank: int, folder: Path) -> None:
        settings = experiment.settings
        config = settings.comm_args.dapper_grpc
        assert config is not None, "sums in secret are for silos that have certificates"
        self._experiment = experiment
        self._codec = codec
        self._identities = IdentityFiles(config, rank, settings.silo_args.known)
        self._promises = Promises(folder, rank)
        self._of_experiment = SharedSettings.of_experiment(experiment).digest
        """By this silo's own file: what the server calls the experiment is the server's word."""
        self._masked: MaskedUpload | None = None
        """The latest upload."""
        self._signed_round = 0
        """The last round of whose sum this process has signed a list of survivors."""

    def passes_over(self, downlink: Downlink) -> bytes | None:
        """What it answers to the model of a round in whose sum it takes no part; None for any other.

        Such are rounds that may have been opened before and, where noise is counted, those after the last one that is.
        """
        last = self._experiment.settings.train_args.comm_round
        if downlink.round <= self._signed_round:
            LOGGER.warning("round %d may have been opened before, and is not opened again", downlink.round)
        elif self._experiment.method.problem.privacy is not None and downlink.round > last:
            LOGGER.warning("round %d is not summed: epsilon counts %d (train_args.comm_round)", downlink.round, last)
        else:
            return None
        return self._codec.encode(SumMessage(downlink.round, downlink.client_id, "", Ready(None, 0)))

    def ready(self, upload: Upload, downlink: Downlink) -> bytes:
        """In place of ``upload``, which follows under masks once the server says whom it is summed with."""
        identity = self._identities.read()
        promise = partial(self._promises.keep, self._key(upload.round))
        self._masked = MaskedUpload(self._experiment, self._codec, upload, downlink, identity, promise)
        return self._codec.encode(self._masked.ready())

    def _key(self, round_: int) -> bytes:
        """Of a round of this experiment, among promises."""
        return hashlib.sha256(f"{self._of_experiment} {round_}".encode()).digest()

    def answer(self, data: Any) -> bytes:
        """To a step of the sum that the latest upload is for. Raises :class:`ProtocolError` for what is no step."""
        asked = self._codec.decode(data if isinstance(data, bytes) else b"")
        if self._masked is None:
            reason = Declined("it was started again, or has told all that it tells in this round")
            told = SumMessage(asked.round, asked.client_id, asked.sum_id, reason)
        else:
            told = self._masked.answer(asked)
            if self._masked.has_signed:
                self._signed_round = max(self._signed_round, self._masked.round)
        if isinstance(told.content, Declined):
            LOGGER.warning("round %d: this client leaves the sum: %s", asked.round, told.content.reason)
        if isinstance(told.content, Revealed):
            self._masked = None
        return self._codec.encode(told)
