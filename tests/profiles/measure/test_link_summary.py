"""The link benchmark's tables by message size, and as they are shown."""

from pathlib import Path

import pytest

from api.cli import main
from profiles.measure.link_summary import summarise_links
from profiles.measure.links import Contention, LinkTables, PairTable, Place, dump_links

SIZES = (1_000, 10_000, 100_000, 1_000_000)
PLACES = tuple(Place(name=f"r{n}", host=f"h{n // 2}", type="gpu", memory_bytes=1) for n in range(4))


def pair(a: int, b: int, *, latency_ns: int, rate: int) -> PairTable:
    """Affine: its rate is half of the plateau where the bytes take as long as the latency."""
    return PairTable(a=a, b=b, one_way=tuple((size, latency_ns + size * 10**9 // rate) for size in SIZES))


TABLES = LinkTables(
    places=PLACES,
    pairs=(
        *(pair(a, a + 1, latency_ns=1_000, rate=10**10) for a in (0, 2)),
        *(pair(a, b, latency_ns=50_000, rate=10**9) for a in (0, 1) for b in (2, 3)),
    ),
    contention=(
        Contention(first=(0, 2), second=(1, 3), slowdown=1.9),
        Contention(first=(0, 3), second=(1, 2), slowdown=1.1),
    ),
)


def test_links_are_told_by_message_size():
    """Tests that latency, knee, plateau and sharing are those that the tables were made of, apart for each kind."""
    inside, across = summarise_links(TABLES)
    assert (inside.kind, inside.num_pairs, across.kind, across.num_pairs) == ("within a host", 2, "between hosts", 4)
    assert [size for size, _, _ in across.by_size] == list(SIZES)
    assert (across.latency_ns, across.knee_bytes) == (51_000, 100_000)
    assert across.plateau_bytes_per_s == pytest.approx(10**9 / 1.05, rel=1e-6)
    assert inside.knee_bytes == 10_000
    assert across.worst_error < 1e-4
    assert (across.num_together, across.num_sharing, across.slowdown) == (2, 1, pytest.approx(1.5))
    assert (inside.num_together, inside.slowdown) == (0, None)


def test_tables_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Tests that the command shows both kinds, and that a file without pairs is one message."""
    (tmp_path / "links.json").write_text(dump_links(TABLES))
    assert main(["cluster", "links", str(tmp_path / "links.json")]) == 0
    said = capsys.readouterr().out
    assert "within a host, 2 pairs: latency 1.1 us, knee " in said
    assert "between hosts, 4 pairs: latency 51.0 us" in said
    assert "two transfers at once take 1.50 times as long as one; 1 of 2 such pairs share a link" in said
    (tmp_path / "none.json").write_text(dump_links(LinkTables(places=PLACES)))
    assert main(["cluster", "links", str(tmp_path / "none.json")]) == 2
    assert "lists no pairs of devices" in capsys.readouterr().err
