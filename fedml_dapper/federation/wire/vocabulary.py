"""Types of the messages between server and clients, and keys in them. FedML's own have FedML's values."""

from __future__ import annotations

CONNECTION_IS_READY = 0
"""Type by which a transport tells its own process that it is connected."""
SYNC_MODEL = 2
"""Type of the server's message with a round's model."""
SEND_UPLOAD = 3
"""Type of a client's answer to a round's model."""
CLIENT_STATUS = 5
"""Type of a client's message that it is online, or goes."""
CHECK_STATUS = 6
"""Type of the server's question whether a client is online."""
FINISH = 7
"""Type of the server's message that the run is over."""

MODEL = "model_params"
"""Key of an encoded downlink or upload."""
NUM_SAMPLES = "num_samples"
"""Key of an upload's number of samples, which FedML expects beside it; secure sums do not disclose it."""
STATUS = "client_status"
"""Key of :data:`ONLINE` or :data:`FINISHED`, in a status."""
ONLINE = "ONLINE"
FINISHED = "FINISHED"

LIFE = "life"
"""Key of a random number that a client's process draws when it starts. The status carries it, so that the server
notices a restart."""
TICKET = "ticket"
"""Key of a random number that the server draws for each model it sends, and that the answer carries back."""
HOLDS = "holds"
"""Key of the announcement of a silo with data of its own, in its status."""
SILO = "silo"
"""Key of the rank of an edge's silo, in messages that the edge passes on."""
MEASURE = "measure"
"""Key of the flag that a model is to be measured on the silo's own test samples, not trained."""
MEASURED = "dapper_measured"
"""Type of the message with a measurement, and key of the measurement in it."""
REFUSED_BEFORE = "refused_before"
"""Key of the reason why the receiver's last upload was refused, in the message with a round's model."""
REFUSED = "dapper_refused"
"""Type of the server's message to a silo that cannot take part, and key of the reason in it."""
COME_BACK = "dapper_come_back"
"""Type of the server's answer to a device for which there is no task, and key of the seconds until it calls again."""
TAKEN = "dapper_taken"
"""Type of the server's answer to a device's upload; with :data:`REFUSED` in it, the upload does not count."""
SUM = "dapper_sum"
"""Type of the messages of a secure sum, in both directions, and key of their content."""
