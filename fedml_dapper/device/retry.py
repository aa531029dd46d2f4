"""Sending of messages to a server that may be away for a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fedml_dapper.errors import DapperError
from fedml_dapper.secure_grpc import Backoff, reason_of
from fedml_dapper.secure_grpc.message import AnyMessage

LOGGER = logging.getLogger(__name__)
FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 10.0


class UnreachableError(DapperError):
    """The server was not reached in time, or got no more of a message."""


def send_with_retries(
    send: Callable[[AnyMessage], None],
    message: AnyMessage,
    rank: int,
    give_up_after_s: float,
    delivered: Callable[[], int],
) -> None:
    """Send a message, and try again with growing pauses while the server cannot be reached.

    Pauses and time begin anew whenever a large message has come further, on a line that breaks again and again.

    Args:
        send: Sends the message, or raises the transport's error.
        message: What is sent.
        rank: The sender, for errors.
        give_up_after_s: For how many seconds to try without any progress.
        delivered: Tells how many bytes of a large message are there.

    Raises:
        UnreachableError: The server was not reached in time, or no more of the message came there.
        DapperError: Trying again would not help.
    """
    end = time.monotonic() + give_up_after_s
    backoff = Backoff(FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS)
    arrived = None
    while True:
        before = delivered()
        try:
            send(message)
        except DapperError:  # trying again would not help
            raise
        except Exception as error:  # each transport has errors of its own
            if delivered() > before:
                arrived = delivered()
                end = time.monotonic() + give_up_after_s
                backoff.begin_anew()
            pause = backoff.pause()
            if time.monotonic() + pause > end:
                what = (
                    f"rank {rank} cannot reach the server"
                    if arrived is None
                    else f"the server has {arrived} bytes of a message of rank {rank}, and no more came in"
                    f" {give_up_after_s:g} s"
                )
                raise UnreachableError(f"{what}: {reason_of(error)}") from error
            LOGGER.info("the server is not there yet (%s); trying again in %.1f s", reason_of(error), pause)
            time.sleep(pause)
        else:
            return
