"""Messages of silos with data of their own: what data they hold, and how well a model does on their test samples."""

from __future__ import annotations

from math import isfinite, nan
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.wire.codec import MAX_SAMPLES, first_mistake
from fedml_dapper.fleet import DeviceProfile
from fedml_dapper.pruning import Device
from fedml_dapper.tasks import Metric

MAX_LETTERS = 2**16
"""Longest announcement, in letters; one whose device profile has many sources has a few thousand."""
_Count = Annotated[int, Field(ge=0, lt=MAX_SAMPLES)]
_TEXTS = TypeAdapter(dict[int, str])


class _Statement(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def as_text(self) -> str:
        """Return the JSON text that a message carries."""
        return self.model_dump_json(exclude_defaults=True)


class Announcement(_Statement):
    """What a silo tells the server of its data when it joins: numbers alone, no image and no path."""

    domain: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    num_train: Annotated[int, Field(ge=2, lt=MAX_SAMPLES)]
    num_test: _Count = 0
    level: Annotated[int, Field(ge=1, lt=1000)] | None = None
    profile: DeviceProfile | None = None
    """Profile of the silo's device, where the server is to choose the level."""

    def device(self, client_id: int) -> Device:
        """Return the silo as rules for capability levels see it."""
        return Device(client_id, self.domain, self.num_train, self.level)


class Measurement(_Statement):
    """Figures of the model that a silo was sent, on the silo's own test samples; of one that diverged they are NaN."""

    model_config = ConfigDict(allow_inf_nan=True, ser_json_inf_nan="constants")

    num_samples: _Count
    headline: float = 0.0
    """The task's headline figure, such as Top-1 accuracy in percent."""
    loss: float = 0.0


def read_announcement(text: object, levels: int) -> Announcement:
    """Read an announcement from the text of a message.

    Args:
        text: What the message carries.
        levels: How many capability levels the experiment has.

    Raises:
        ProtocolError: The text is no announcement; the error tells its sender why.
    """
    if not isinstance(text, str):
        raise ProtocolError("it did not say what data it holds; start it with the same partition as the server: own")
    if len(text) > MAX_LETTERS:
        raise ProtocolError(f"what it says of itself has {len(text)} letters; {MAX_LETTERS} are allowed")
    try:
        announcement = Announcement.model_validate_json(text)
    except ValidationError as error:
        raise ProtocolError(f"what it says of its data does not fit: {first_mistake(error)}") from error
    if not announcement.domain.isprintable():
        raise ProtocolError("the name of its domain holds characters that cannot be printed")
    if announcement.level is not None and announcement.level > levels:
        raise ProtocolError(
            f"its silo_args.level is {announcement.level}, but dapper_args.levels.ratios has {levels} levels"
        )
    return announcement


def read_measurement(text: object, metric: Metric) -> Measurement:
    """Read a measurement from the text of a message.

    Raises:
        ProtocolError: The text is no measurement, or its headline is out of the range of ``metric``.
    """
    try:
        measurement = Measurement.model_validate_json(text if isinstance(text, str) else "")
    except ValidationError as error:
        raise ProtocolError(f"its measurement is malformed at {first_mistake(error)}") from error
    if not metric.can_be(measurement.headline):
        raise ProtocolError(f"its {metric.title} is {measurement.headline}, outside 0..100")
    figures = {"headline": measurement.headline, "loss": measurement.loss}
    # infinities of both signs have no mean
    return measurement.model_copy(update={name: nan for name, value in figures.items() if not isfinite(value)})


def read_measurements(text: object) -> dict[int, str]:
    """Split what an edge passes on into the text of each silo, by rank, for :func:`read_measurement`.

    Raises:
        ProtocolError: The text holds no texts by rank.
    """
    try:
        return _TEXTS.validate_json(text if isinstance(text, str) else "")
    except ValidationError as error:
        raise ProtocolError("an edge passes on no measurements by silo") from error
