"""One process of a link measurement: tests of profiles/measure/link_worker.py."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from profiles.measure import link_worker  # noqa: E402


def test_messages_are_made_before_they_are_timed(monkeypatch: pytest.MonkeyPatch):
    """Tests that no allocation is timed with a transfer, and that accelerators are measured up to 256 MiB."""
    monkeypatch.setattr(link_worker.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(link_worker.distributed, "get_world_size", lambda: 2)
    options = link_worker._parser().parse_args(["links.json", "--device", "cuda"])
    assert link_worker.LinkSweep(options).sizes[-1] == 1 << 28
    options = link_worker._parser().parse_args(["links.json", "--repetitions", "3"])
    sweep = link_worker.LinkSweep(options)
    assert sweep.sizes[-1] == 1 << 24
    made: list[int] = []
    seen: list[tuple[int, Any]] = []
    monkeypatch.setattr(sweep, "_tensor", lambda count: made.append(count) or torch.zeros(count, dtype=torch.uint8))
    sweep._repeat(lambda: seen.append((len(made), sweep.buffers[0].numel())), 64, who=(0, 1))
    assert seen == [(2, 64)] * 5


@pytest.mark.parametrize(("slower", "expected"), [(0, 0), (1, 250), (4, 1000), (9, 1000), (-1, 0)])
def test_computing_beside_an_all_reduce_says_what_that_occupies(
    slower: int, expected: int, monkeypatch: pytest.MonkeyPatch
):
    """Tests that the time lost beside an all-reduce counts in parts of what that takes alone, of all places the most.

    A product takes 1, an all-reduce 4; both together so much more than the products alone.
    """
    monkeypatch.setattr(link_worker.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(link_worker.distributed, "get_world_size", lambda: 2)
    sweep = link_worker.LinkSweep(link_worker._parser().parse_args(["links.json", "--repetitions", "3"]))
    monkeypatch.setattr(sweep, "_gather", lambda value: [value, 0])
    monkeypatch.setattr(sweep, "_timed", lambda start, count, **_: 4 if not count else count + (slower if start else 0))
    assert sweep._occupancy() == expected


def test_accelerators_and_single_places_are_not_occupied(monkeypatch: pytest.MonkeyPatch):
    """Tests that nothing is measured where nobody is beside, nor on accelerators."""
    for world, device in ((1, "cpu"), (2, "cuda")):
        monkeypatch.setattr(link_worker.distributed, "get_rank", lambda: 0)
        monkeypatch.setattr(link_worker.distributed, "get_world_size", lambda world=world: world)
        sweep = link_worker.LinkSweep(link_worker._parser().parse_args(["links.json", "--device", device]))
        assert sweep._occupancy() == 0
