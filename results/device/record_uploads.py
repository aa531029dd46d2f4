"""``dapper-device`` that also keeps each round's upload in the folder UPLOADS, to be compared."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors.torch import save_file

from fedml_dapper.datasets import ClientData
from fedml_dapper.device.entry import main
from fedml_dapper.federation import ClientSide
from fedml_dapper.methods import Downlink, Upload

train = ClientSide.update


def train_and_keep(clients: ClientSide, downlink: Downlink, data: ClientData) -> Upload:
    """Train, and write the upload's weights to ``client_ID_round_ROUND.safetensors``."""
    upload = train(clients, downlink, data)
    folder = Path(os.environ["UPLOADS"])
    folder.mkdir(parents=True, exist_ok=True)
    name = f"client_{upload.client_id}_round_{upload.round}.safetensors"
    weights = {key: tensor.contiguous() for key, tensor in upload.weights.items()}
    save_file(weights, folder / name, {"loss": repr(upload.metrics.loss), "plan": repr(upload.plan)})
    return upload


if __name__ == "__main__":
    ClientSide.update = train_and_keep  # type: ignore[method-assign]
    main()
