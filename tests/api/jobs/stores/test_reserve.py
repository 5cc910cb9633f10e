"""Room on a disk that is kept for when it is full: tests of api/jobs/stores/reserve.py."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from api.jobs.stores import reserve
from api.jobs.stores.reserve import MOST_BYTES, SHARE, Reserve


@pytest.mark.parametrize(
    ("total", "size"),
    [(2 * 2**20, 2**18), (SHARE * MOST_BYTES, MOST_BYTES), (2**40, MOST_BYTES)],
)
def test_the_reserve_fits_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int, size: int):
    """Tests that so much is kept, made whole as there is room, given up once, and missed when it is gone."""
    usage = SimpleNamespace(total=total, free=0)
    monkeypatch.setattr(reserve.shutil, "disk_usage", lambda _: usage)
    kept = Reserve(tmp_path)
    kept.keep()
    assert not kept.give_up()
    for free, held in ((size - 5, size - 5), (0, size - 5), (3, size - 2), (size, size), (2 * size, size)):
        usage.free = free
        kept.keep()
        assert (tmp_path / "reserve").stat().st_size == held
        assert kept.is_short() == (held < size)
    usage.free = size - 1
    assert kept.is_short()
    assert kept.give_up()
    assert not kept.give_up()
    usage.free = 2 * size
    assert kept.is_short()
