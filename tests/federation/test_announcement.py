"""What silos say of their own data and of models, as anybody might have written it."""

from __future__ import annotations

import math

import pytest

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import Announcement, Measurement, read_announcement, read_measurement
from fedml_dapper.tasks import TOP_1, Metric

HELD = Announcement(domain="north", num_train=12, num_test=3, level=2)


def test_what_is_said_is_what_is_heard() -> None:
    assert read_announcement(HELD.as_text(), levels=5) == HELD
    measured = Measurement(num_samples=3, headline=66.7, loss=0.4)
    assert read_measurement(measured.as_text(), TOP_1) == measured
    assert read_measurement(Measurement(num_samples=3, headline=1e4).as_text(), Metric("MAE", "mm")).headline == 1e4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "it did not say what data it holds; start it with the same partition as the server: own"),
        ("[]", "what it says of its data does not fit"),
        ('{"domain": "", "num_train": 5}', "`domain`"),
        ('{"domain": "a", "num_train": 1}', "`num_train`"),
        ('{"domain": "a", "num_train": 5, "path": "/home"}', "`path`"),
        ('{"domain": "a\\u0007", "num_train": 5}', "characters that cannot be printed"),
        ('{"domain": "a", "num_train": 5, "level": 6}', "silo_args.level is 6, but dapper_args.levels.ratios has 5"),
    ],
)
def test_what_cannot_be_is_refused_in_words_for_its_sender(text: str | None, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        read_announcement(text, levels=5)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_model_that_diverged_is_measured_as_it_is(loss: float) -> None:
    said = Measurement(num_samples=3, headline=10.0, loss=loss).as_text()
    assert math.isnan(read_measurement(said, TOP_1).loss)
    assert math.isnan(read_measurement('{"num_samples": 3, "headline": NaN}', Metric("MAE", "mm")).headline)


@pytest.mark.parametrize("text", [None, "", "{}", '{"num_samples": -1}'])
def test_measurements_that_are_none(text: str | None) -> None:
    with pytest.raises(ProtocolError, match="its measurement is malformed"):
        read_measurement(text, TOP_1)


@pytest.mark.parametrize(("said", "told"), [("1e30", r"1e\+30"), ("NaN", "nan")])
def test_a_share_beyond_all(said: str, told: str) -> None:
    with pytest.raises(ProtocolError, match=rf"its Top-1 accuracy \(%\) is {told}, outside 0..100"):
        read_measurement(f'{{"num_samples": 3, "headline": {said}}}', TOP_1)
