"""Hashes of what is stored: tests of api/jobs/stores/hashes.py."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.jobs.stores.hashes import hash_of_row, is_row_of, is_sha256, sha256_of

VALUES = st.lists(st.none() | st.booleans() | st.integers() | st.text(), max_size=4)


def test_texts_are_hashed_as_utf_8():
    """Tests that a text beyond ASCII is hashed as UTF-8, and that hashes are known by their form."""
    assert sha256_of("é") == hashlib.sha256(b"\xc3\xa9").hexdigest()
    assert is_sha256(sha256_of(""))


@pytest.mark.parametrize("text", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "\n", "\u0661" * 64, None, 7])
def test_what_is_no_hash(text: object):
    """Tests that length, letters, digits of other scripts and other types are told apart."""
    assert not is_sha256(text)


@given(VALUES, VALUES)
def test_rows_that_differ_have_other_hashes(one: list[object], other: list[object]):
    """Tests that a row has its own hash and no other's, types counted; rows of an earlier release state none."""
    assert is_row_of(hash_of_row(one), one)
    assert is_row_of(None, one)
    is_same = list(map(repr, one)) == list(map(repr, other))
    assert is_row_of(hash_of_row(one), other) == is_same
