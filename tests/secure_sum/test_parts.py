"""Numbers, shares, keys and masks, one by one."""

from __future__ import annotations

import os
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import isprime

from fedml_dapper.errors import ProtocolError
from fedml_dapper.secure_sum import FixedPoint
from fedml_dapper.secure_sum.cells import Places
from fedml_dapper.secure_sum.fixed_point import as_numbers, as_words
from fedml_dapper.secure_sum.keys import KeyPair
from fedml_dapper.secure_sum.keystream import ChaCha20Stream, Given, add
from fedml_dapper.secure_sum.shamir import PRIME, Recombination, split


@settings(deadline=None)
@given(st.integers(1, 10_000), st.floats(1e-6, 1e6))
def test_no_sum_wraps_and_the_rounding_error_is_what_is_said(summands: int, largest: float) -> None:
    code = FixedPoint(largest, summands)
    most = int(code.encode(np.array([largest * 9]))[0])
    assert summands * most <= 2**31 - 1
    assert code.scale * largest * summands > 2**29  # no more room is wasted than a factor of 4
    values = np.random.default_rng(1).uniform(-largest, largest, 100)
    assert np.abs(code.decode(code.encode(values).astype(np.int64)) - values).max() <= 0.5 / code.scale


def test_what_is_too_large_is_cut() -> None:
    code = FixedPoint(1.0, 10)
    found = code.decode(code.encode(np.array([5.0, -5.0, np.inf, -np.inf])).astype(np.int64))
    assert found.tolist() == [1, -1, 1, -1]
    assert code.scale == 2**27
    numbers = np.array([-(2**31), -1, 0, 2**31 - 1], dtype=np.int32)
    assert as_numbers(as_words(numbers)).tolist() == numbers.tolist()


@settings(deadline=None)
@given(st.data())
def test_any_threshold_of_shares_gives_the_secret(data: st.DataObject) -> None:
    points = sorted(data.draw(st.sets(st.integers(1, 10**6), min_size=1, max_size=9)))
    threshold = data.draw(st.integers(1, len(points)))
    secret = data.draw(st.binary(min_size=32, max_size=32))
    shares = dict(zip(points, split(secret, threshold, points, os.urandom), strict=True))
    chosen = data.draw(st.permutations(points))[:threshold]
    assert Recombination(chosen).secret({point: shares[point] for point in chosen}) == secret


def test_fewer_shares_say_nothing() -> None:
    """Whatever the secret is, there is one polynomial through it and the shares that are known."""
    assert isprime(PRIME)
    secret, points = os.urandom(32), [1, 2, 3]
    shares = dict(zip(points, split(secret, 3, points, os.urandom), strict=True))
    with suppress(ProtocolError):  # a number that is no secret
        assert Recombination([1, 2]).secret({1: shares[1], 2: shares[2]}) != secret
    assert len(set(split(secret, 3, points, os.urandom)) & set(shares.values())) == 0


def test_two_clients_agree_on_a_key_for_each_purpose() -> None:
    mine, theirs = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))
    assert mine.agreed(theirs.public, b"a") == theirs.agreed(mine.public, b"a") != mine.agreed(theirs.public, b"b")
    for wrong in (bytes(32), b"short"):
        with pytest.raises(ProtocolError, match="public key"):
            mine.agreed(wrong, b"a")


@pytest.mark.parametrize("cells", [3, 20_000])
def test_a_mask_is_added_where_its_cells_lie_and_comes_off_in_another_vector(cells: int) -> None:
    """Also where there are so many runs of cells that they are gone through at once."""
    generator = np.random.default_rng(cells)
    sizes = generator.integers(0, 200_000 // cells, cells)
    chosen = generator.random(cells) < 0.5
    places = Places(sizes, chosen)
    vector = np.zeros(int(sizes.sum()), dtype=np.uint32)
    add(vector, places, ChaCha20Stream(bytes(32)))
    expected = np.zeros_like(vector)
    expected[np.repeat(chosen, sizes)] = ChaCha20Stream(bytes(32)).take(places.count)
    assert np.array_equal(vector, expected)
    alone = Places(np.where(chosen, sizes, 0), chosen)
    packed = vector[places.mask()]
    add(packed, alone, ChaCha20Stream(bytes(32)), subtract=True)
    assert not packed.any()
    add(vector, places, Given(vector[places.mask()].copy()), subtract=True)
    assert not vector.any()
