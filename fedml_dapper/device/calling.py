"""A device that comes and goes (``training_type: cross_device``): it calls when it may, and trains when it is asked.

Its user decides when: by hours, and by a command that knows whether the device is on power, idle, or on a network that
costs nothing. A server that is away is called again, less and less often, until the device gives up.
"""

from __future__ import annotations

import logging
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import grpc

from fedml_dapper.config import MayCallArgs
from fedml_dapper.device.conversation import Conversation
from fedml_dapper.device.keeping import Keeping
from fedml_dapper.device.retry import UnreachableError
from fedml_dapper.errors import ConfigError, ProtocolError, printable
from fedml_dapper.federation import ClientSide, Codec, Experiment
from fedml_dapper.federation.wire import vocabulary as say
from fedml_dapper.secure_grpc import (
    AnyMessage,
    Backoff,
    Caller,
    Message,
    NotAwaitedError,
    PartsError,
    jittered,
    reason_of,
)

LOGGER = logging.getLogger(__name__)
FIRST_PAUSE_SECONDS = 1.0
LAST_PAUSE_SECONDS = 600.0
"""Pauses between calls of a server that is away, about; each is twice the one before."""
MOST_SECONDS = 24 * 3600.0
"""Longest time for which a server can send a device away."""
COMMAND_SECONDS = 60.0
"""How long the user's command may take to say whether the device may call."""


class CallingDevice:
    """A device that calls the server until the run is over.

    Args:
        experiment: What is run.
        clients: Memory and local updates of the device's client.
        codec: Encodes and decodes models.
        rank: The device.
        caller: Calls the server.
        keeping: What the device keeps of a round.
        sleep: Waits so many seconds.
    """

    def __init__(
        self,
        experiment: Experiment,
        clients: ClientSide,
        codec: Codec,
        rank: int,
        caller: Caller,
        keeping: Keeping,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._caller = caller
        self._sleep = sleep
        self._may_call = experiment.settings.silo_args.may_call or MayCallArgs()
        self._talk = Conversation(experiment, clients, codec, None, rank, self, Message, clients.update_own, keeping)

    def run(self) -> None:
        """Call until the server says that the run is over.

        Raises:
            UnreachableError: No server has answered for as long as ``silo_args.may_call`` allows.
            ConfigError: The server refuses this device, or its own command cannot be run.
            ProtocolError: The server says something that is none of this experiment.
        """
        backoff = Backoff(FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS)
        while True:
            self._wait_until_it_may_call()
            there = self._caller.there
            try:
                answer = self._caller.call(self._talk.status(say.ONLINE))
                if answer.get_type() == say.FINISH:
                    LOGGER.info("the run is over")
                    return
                self._deal_with(answer)
                backoff.begin_anew()
            except (grpc.RpcError, UnreachableError, PartsError) as error:
                if self._caller.there != there:  # a bad line, by which a model comes part by part
                    backoff.begin_anew()
                self._give_up_after(backoff.waited_s, error)
                pause = backoff.pause()
                LOGGER.info("the server does not answer (%s); calling again in %.0f s", reason_of(error), pause)
                self._sleep(pause)

    def send_message(self, message: AnyMessage) -> None:
        """Say ``message`` to the server; that it does not count goes to the log."""
        try:
            refused = self._caller.call(message).get(say.REFUSED)
        except NotAwaitedError as error:
            refused = str(error)
        if refused is not None:
            LOGGER.warning("the server does not count this answer: %s", printable(str(refused)))

    def queued(self, message_type: Any) -> Sequence[AnyMessage]:
        """Return nothing: the server says nothing unasked."""
        return ()

    def delivered(self) -> int:
        """Return how many bytes of the latest large upload the server has."""
        return self._caller.delivered()

    def _deal_with(self, answer: AnyMessage) -> None:
        kind = answer.get_type()
        if kind == say.SYNC_MODEL:
            self._talk.take_model(answer)
        elif kind == say.REFUSED:
            self._talk.take_refusal(answer)
        elif kind == say.COME_BACK:
            self._sleep(jittered(_seconds_in(answer)))
        else:
            LOGGER.warning("dropped an answer of unknown type %.60r", str(kind))
            self._sleep(jittered(LAST_PAUSE_SECONDS))

    def _give_up_after(self, waited_s: float, error: Exception) -> None:
        """Raise :class:`UnreachableError` where nobody has answered for so long that nobody will."""
        if waited_s >= self._may_call.give_up_after_s:
            raise UnreachableError(
                f"no server at {self._caller.address} for {waited_s:.0f} s of calling"
                f" ({reason_of(error)}), and this device gives up; if the run is not over yet, start it again"
            ) from error

    def _wait_until_it_may_call(self) -> None:
        has_waited = False
        while not (self._may_call.is_open_at(_minute_of_the_day()) and self._says_yes()):
            if not has_waited:
                LOGGER.info("silo_args.may_call says no; asking again every %g s", self._may_call.ask_again_s)
            has_waited = True
            self._sleep(self._may_call.ask_again_s)

    def _says_yes(self) -> bool:
        """Return whether the user's command says that the device may call.

        Raises:
            ConfigError: It cannot be run.
        """
        command = self._may_call.command
        if command is None:
            return True
        try:
            finished = subprocess.run(shlex.split(command), timeout=COMMAND_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            LOGGER.warning("silo_args.may_call.command took more than %.0f s, which counts as a no", COMMAND_SECONDS)
            return False
        except OSError as error:
            raise ConfigError(f"silo_args.may_call.command: `{command}` cannot be run: {error.strerror}") from error
        return finished.returncode == 0


def _seconds_in(answer: AnyMessage) -> float:
    """Return the seconds after which the server wants to be called again, at most :data:`MOST_SECONDS`.

    Raises:
        ProtocolError: It names none.
    """
    seconds = answer.get(say.COME_BACK)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0:
        raise ProtocolError(f"the server wants to be called again after {seconds!s:.20} seconds")
    return min(float(seconds), MOST_SECONDS)


def _minute_of_the_day() -> int:
    now = datetime.now()
    return 60 * now.hour + now.minute
