"""The benchmark of the store measures what it says, on a small store."""

import pytest

from benchmarks import store


def test_a_small_store_is_measured(monkeypatch: pytest.MonkeyPatch):
    """Tests that every job is submitted and expires, and that each row is three times or a number."""
    monkeypatch.setattr(store, "LOOKS", 5)
    rows = dict(store.measure_engine("sqlite", count=12, size=3000))
    assert "expire 17 jobs and give the room back, s" in rows
    assert len(rows["submit"].split(" / ")) == 3
    assert float(rows["GB on the disk afterwards"]) <= float(rows["GB on the disk, full"])


def test_texts_are_different_and_of_one_size():
    """Tests that requests have the size that is asked for and are all different."""
    source = store.texts(500)
    texts = [next(source) for _ in range(20)]
    assert {len(text) for text in texts} == {500}
    assert len(set(texts)) == 20
