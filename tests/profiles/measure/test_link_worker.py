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
