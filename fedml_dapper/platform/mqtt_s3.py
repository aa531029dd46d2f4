"""FedML's MQTT with payloads in an object store, with its faults mended.

These are the faults: Sending a message puts the object's key in the model's place, so that a message that is sent again
carries the key. A message whose object is gone, or a store that is away, ends the process. Objects are never deleted.
A broker that refuses the user is asked again for ever, without a word. The store's region is left out where its
endpoint is given.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Collection
from typing import Any

import boto3
from boto3.exceptions import Boto3Error
from botocore.client import Config
from botocore.exceptions import BotoCoreError, ClientError
from fedml.arguments import Arguments
from fedml.core.distributed.communication.message import Message
from fedml.core.distributed.communication.mqtt_s3.mqtt_s3_multi_clients_comm_manager import (
    MqttS3MultiClientsCommManager,
)

from fedml_dapper.errors import ConfigError
from fedml_dapper.secure_grpc import Backoff, reason_of

LOGGER = logging.getLogger(__name__)
_FIRST_PAUSE_SECONDS = 0.5
_LAST_PAUSE_SECONDS = 10.0
_GONE = frozenset({"404", "403", "NoSuchKey"})
"""What a store answers where there is no such object; 403 without the right to list the bucket."""
_REFUSED = {
    1: "does not speak this version of MQTT",
    2: "refuses the client's name",
    4: "refuses this user or password; mend MQTT_USER and MQTT_PWD",
    5: "does not let this user in; mend MQTT_USER and MQTT_PWD, or the broker's list",
}
"""Reasons for which a broker refuses a connection, by MQTT's return code, where asking again does not help."""
_STORE_ERRORS = (ClientError, BotoCoreError, Boto3Error)


class MqttS3Transport(MqttS3MultiClientsCommManager):  # type: ignore[misc]  # fedml is untyped
    """FedML's MQTT with payloads in an object store, which survives outages of either and deletes its objects.

    Args:
        args: FedML's arguments.
        rank: The rank of this process.
        num_clients: The number of ranks without the server's.

    Raises:
        OSError: The broker is not there.
    """

    def __init__(self, args: Arguments, rank: int, num_clients: int) -> None:
        mqtt, s3 = args.customized_training_mqtt_config, args.customized_training_s3_config
        self._broker = f"{mqtt['BROKER_HOST']}:{mqtt['BROKER_PORT']}"
        self._patience_s = float(mqtt["MQTT_KEEPALIVE"])  # while this thread waits, the broker hears nothing of us
        self._keeps_objects = False
        super().__init__(mqtt, s3, topic=str(args.run_id), client_rank=rank, client_num=num_clients, args=args)
        self.s3_storage.aws_s3_client = boto3.client(
            "s3",
            endpoint_url=s3["CN_S3_ENDPOINT"],
            region_name=s3["CN_REGION_NAME"],
            aws_access_key_id=s3["CN_S3_AKI"],
            aws_secret_access_key=s3["CN_S3_SAK"],
            config=Config(signature_version="s3v4"),
        )
        self.mqtt_mgr._client.on_connect = self._answered  # the answer comes in the loop, which has not begun

    def _answered(self, client: Any, userdata: Any, flags: Any, code: int) -> None:
        """Raise :class:`ConfigError` where the broker refuses for good; the loop's thread hands it on."""
        if code in _REFUSED:
            raise ConfigError(f"the MQTT broker at {self._broker} {_REFUSED[code]}")
        self.mqtt_mgr.on_connect(client, userdata, flags, code)

    def send_message(self, msg: Message, wait_for_publish: bool = False) -> bool:
        sent = copy.copy(msg)
        sent.init(dict(msg.get_params()))
        return bool(super().send_message(sent, wait_for_publish))

    def _on_message(self, msg: Any) -> None:
        """Read a message and its object; drop it where there is none, or the store stays away."""
        until = time.monotonic() + self._patience_s
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS)
        while True:
            try:
                self._on_message_impl(msg)
            except _STORE_ERRORS as error:
                if isinstance(error, ClientError) and error.response["Error"]["Code"] in _GONE:
                    LOGGER.warning("a message's object is gone: the round it belonged to is over")
                    return
                problem = reason_of(error)
            else:
                return
            pause = backoff.pause()
            if time.monotonic() + pause > until:
                LOGGER.warning("a message is lost, as the object store cannot be read: %s", problem)
                return
            LOGGER.info("the object store cannot be read (%s); trying again in %.1f s", problem, pause)
            time.sleep(pause)

    def forget_finished_rounds(self, busy: Collection[int] = ()) -> None:
        """Delete all objects of this run but those from and to ``busy`` ranks, where the store lets us.

        Call it between rounds, when all other objects belong to finished ones.
        """
        try:
            self._delete_all_but_of(busy)
        except _STORE_ERRORS as error:
            if not self._keeps_objects:
                self._keeps_objects = True
                LOGGER.warning(
                    "models stay in the object store, as they cannot be listed and deleted there (%s); the key needs"
                    " s3:ListBucket and s3:DeleteObject",
                    reason_of(error),
                )

    def _delete_all_but_of(self, busy: Collection[int]) -> None:
        storage = self.s3_storage.aws_s3_client
        bucket = self.s3_storage.bucket_name
        # Topics of the messages from a busy rank, and of those to it.
        kept = tuple(f"{self._topic}{sides}_" for rank in busy for sides in (rank, f"{self.server_id}_{rank}"))
        for page in storage.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=self._topic):
            keys = [{"Key": item["Key"]} for item in page.get("Contents", []) if not item["Key"].startswith(kept)]
            if keys:
                storage.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})

    def delivered(self) -> int:
        """Return 0: a message arrives whole or not at all."""
        return 0
