"""A silo's side of secure sums: it keeps each round's upload, and answers the steps of its sum."""

from __future__ import annotations

import hashlib
import logging
from functools import partial
from pathlib import Path
from typing import Any

from fedml_dapper.device.certificate_signatures import IdentityFiles
from fedml_dapper.federation import (
    Declined,
    Experiment,
    MaskedUpload,
    Ready,
    SharedSettings,
    SumCodec,
    SumMessage,
)
from fedml_dapper.federation.privacy.promises import Promises
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.secure_sum import Revealed

LOGGER = logging.getLogger(__name__)


class SiloInSums:
    """The silo of this ``rank`` in secure sums; it writes down in ``folder`` what it signs.

    Raises:
        ConfigError: The silo's certificates are missing or unusable.
    """

    def __init__(self, experiment: Experiment, codec: SumCodec, rank: int, folder: Path) -> None:
        settings = experiment.settings
        config = settings.comm_args.dapper_grpc
        assert config is not None, "sums in secret are for silos that have certificates"
        self._experiment = experiment
        self._codec = codec
        self._identities = IdentityFiles(config, rank, settings.silo_args.known)
        self._promises = Promises(folder, rank)
        self._experiment_digest = SharedSettings.of_experiment(experiment).digest
        """Digest of the experiment from this silo's own settings, since a server could claim another: what earlier
        versions named rounds by."""
        self._seed = settings.common_args.random_seed
        self._masked: MaskedUpload | None = None
        """The latest upload; None where its sum is over for this silo."""
        self._signed_round = 0
        """Last round in whose sum this process has signed a list of survivors."""

    def passes_over(self, downlink: Downlink) -> bytes | None:
        """Return the answer to the model of a round in whose sum this silo takes no part; None for other rounds.

        It takes no part in rounds whose sum may have been opened before and, under differential privacy, in rounds
        after the last one that epsilon accounts for.
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
        """Keep ``upload``, and return the message that this silo is ready for its sum."""
        identity = self._identities.read()
        earlier = self._earlier_key(upload.round)
        promise = partial(self._promises.keep, self._key(upload.round), earlier_key=earlier)
        self._masked = MaskedUpload(self._experiment, self._codec, upload, downlink, identity, promise)
        return self._codec.encode(self._masked.ready())

    def _key(self, round_: int) -> bytes:
        """Return the key of a round in the file of promises.

        It goes by the seed alone: a setting that does not touch training, such as ``frequency_of_the_test``, leaves the
        silo's change as it was to the last bit, and a second sum would give it away.
        """
        return hashlib.sha256(f"seed {self._seed}, round {round_}".encode()).digest()

    def _earlier_key(self, round_: int) -> bytes:
        """Return the key by which earlier versions noted the round."""
        return hashlib.sha256(f"{self._experiment_digest} {round_}".encode()).digest()

    def answer(self, data: Any) -> bytes:
        """Answer a step of the sum of the latest upload.

        Raises:
            ProtocolError: ``data`` is no message of a sum of this experiment.
        """
        request = self._codec.decode(data if isinstance(data, bytes) else b"")
        if self._masked is None:
            reason = Declined("it was started again, or has told all that it tells in this round")
            answer = SumMessage(request.round, request.client_id, request.sum_id, reason)
        else:
            answer = self._masked.answer(request)
            if self._masked.has_signed:
                self._signed_round = max(self._signed_round, self._masked.round)
        if isinstance(answer.content, Declined):
            LOGGER.warning("round %d: this client leaves the sum: %s", request.round, answer.content.reason)
        if isinstance(answer.content, Revealed):
            self._masked = None
        return self._codec.encode(answer)
