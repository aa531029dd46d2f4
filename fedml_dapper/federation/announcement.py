"""What silos with data of their own tell the server: what they hold when they join, and how a model does on it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.wire import MAX_SAMPLES, first_mistake
from fedml_dapper.fleet import DeviceProfile
from fedml_dapper.pruning import Device
from fedml_dapper.tasks import Metric

MAX_LETTERS = 2**16
"""Of an announcement; a profile with many sources has a few thousand."""
_Count = Annotated[int, Field(ge=0, lt=MAX_SAMPLES)]
_TEXTS = TypeAdapter(dict[int, str])


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def as_text(self) -> str:
        """For a message."""
        return self.model_dump_json(exclude_defaults=True)


class Announcement(_Told):
    """A silo's own data, in numbers; no image and no path."""

    domain: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    num_train: Annotated[int, Field(ge=2, lt=MAX_SAMPLES)]
    num_test: _Count = 0
    level: Annotated[int, Field(ge=1, lt=1000)] | None = None
    profile: DeviceProfile | None = None
    """Of its device, where the server is to choose the level."""

    def device(self, client_id: int) -> Device:
        """The silo as level rules see it."""
        return Device(client_id, self.domain, self.num_train, self.level)


class Measurement(_Told):
    """How the model that a silo was sent does on its own test samples."""

    num_samples: _Count
    headline: float = 0.0
    """The task's figure, such as Top-1 accuracy in percent."""
    loss: float = 0.0


def read_announcement(text: object, levels: int) -> Announcement:
    """An announcement out of a message; raises :class:`ProtocolError` for what is none, in words for its sender."""
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
    """A measurement by ``metric`` out of a message; raises :class:`ProtocolError` for what is none."""
    try:
        measurement = Measurement.model_validate_json(text if isinstance(text, str) else "")
    except ValidationError as error:
        raise ProtocolError(f"its measurement is malformed at {first_mistake(error)}") from error
    if not metric.can_be(measurement.headline):
        raise ProtocolError(f"its {metric.title} is {measurement.headline}, outside 0..100")
    return measurement


def read_measurements(text: object) -> dict[int, str]:
    """By rank of its silos, what an edge passes on, to be read by :func:`read_measurement`; raises
    :class:`ProtocolError`."""
    try:
        return _TEXTS.validate_json(text if isinstance(text, str) else "")
    except ValidationError as error:
        raise ProtocolError("an edge passes on no measurements by silo") from error
