import pytest

from fedml_dapper.evaluation.units import duration, quantity, scale_of, share


@pytest.mark.parametrize(
    ("largest", "usual", "scale"),
    [
        (4_900_000, "M", (1e6, "M")),
        (100_000, "M", (1e6, "M")),
        (99_999, "M", (1e3, "k")),
        (2_000, "M", (1e3, "k")),
        (99, "M", (1.0, "")),
        (0, "M", (1.0, "")),
        (5_000_000, "G", (1e6, "M")),
    ],
)
def test_a_column_of_small_numbers_has_a_smaller_unit(largest, usual, scale):
    assert scale_of(largest, usual) == scale


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "B", "0 B"),
        (7, "", "7"),
        (999, "B", "999 B"),
        (999.7, "B", "1.00 kB"),
        (4_903_242, "", "4.90 M"),
        (19_633_000, "B", "19.6 MB"),
        (254_170_112, "", "254 M"),
        (999_600_000, "B", "1.00 GB"),
        (5e15, "B", "5000 TB"),
    ],
)
def test_quantity_keeps_three_digits(value, unit, text):
    assert quantity(value, unit).replace("\xa0", " ") == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (59.9, "59.9 s"),
        (59.99, "1 min 00 s"),
        (245, "4 min 05 s"),
        (3599.9, "1 h 00 min"),
        (7620, "2 h 07 min"),
    ],
)
def test_duration_uses_two_units(seconds, text):
    assert duration(seconds).replace("\xa0", " ") == text


def test_share_is_percent():
    assert share(3_961_674, 4_903_242, digits=2).replace("\xa0", " ") == "80.80 %"


def test_there_is_no_share_of_nothing():
    assert share(0, 0) == "\N{EN DASH}"
