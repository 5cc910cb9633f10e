"""Traces of torch's profiler without marks: actions by sequence numbers, stages by messages; or one message."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profiles.importers.trace_summary import TraceSummary, make_traced_workload, summarise_traces
from profiles.importers.unmarked_actions import UnmarkedRank, find_stages

Events = list[dict[str, Any]]
ORDERS = ("F0 F1 B0 B1", "F0 B0 F1 B1")


def event(name: str, start: float, length: float, *, category: str = "cpu_op", tid: int = 1, **told: Any) -> Events:
    return [{"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "tid": tid, "args": told}]


def message(way: str, start: float, peer: int | None) -> Events:
    """As gloo records it: the peer among the operator's inputs, if shapes are recorded."""
    given = {} if peer is None else {"Concrete Inputs": ["", "", str(peer), "0"]}
    return event("c10d::send" if way == "S" else "c10d::recv_", start, 1, **{"Sequence number": 0}, **given)


SPLIT = (
    "F0@20 S@31 F1@120 S@131 R@140 B0@320 R@341 B1@720",
    "R@1 F0@70 B0@170 W0@191 S@202 R@203 F1@370 B1@470 S@491 W1@495",
)
"""As ZB-H1 runs, in microseconds: the first stage has whole backwards, the second gradients of weights apart."""


def split_trace(folder: Path) -> Path:
    for rank, order in enumerate(SPLIT):
        events: Events = []
        for step in range(2):
            now = 1000.0 * step
            events += event(f"ProfilerStep#{step}", now, 999, category="user_annotation")
            for text, start in ((text, now + int(at)) for text, at in (each.split("@") for each in order.split())):
                if text in "SR":
                    events += message(text, start, 1 - rank)
                else:
                    number, kind = 2 * step + int(text[1]), text.replace("W", "B")
                    events += action(kind, start, rank=rank, number=number)[: 2 if text[0] == "W" else 4]
        text = json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": events})
        (folder / f"{rank}.json").write_text(text)
    return folder


def test_split_backwards_are_told(tmp_path: Path):
    """Tests that a second walk through a forward's operators is the gradient of its weights, adjacent or not."""
    summary = summarise_traces([split_trace(tmp_path)])
    assert summary.orders["rank1"] == ("1F0", "1I0", "1W0", "1F1", "1I1", "1W1")
    assert summary.orders["rank0"] == ("0F0", "0F1", "0B0", "0B1")
    means = {cell: each.mean_ns for cell, each in summary.cells.items()}
    assert (means["rank1", 1, "I"], means["rank1", 1, "W"], means["rank0", 0, "B"]) == (20_000, 10_000, 20_000)
    costs = [layer.costs[0] for layer in make_traced_workload(summary).profile.layers]
    assert (costs[1].input_grad_ns, costs[1].weight_grad_ns) == (20_000, 10_000)


def with_collectives(_: int, events: Events) -> Events:
    """Tensor parallelism: a reduction within every forward and backward, on its thread and with its number."""
    more = [
        each | {"name": "c10d::allreduce_", "ts": each["ts"] + 4, "dur": 1}
        for each in events
        if each["name"] in ("aten::linear",) or each["name"].startswith("autograd")
    ]
    return events + more


def with_inner_messages(rank: int, events: Events) -> Events:
    """Context parallelism: a message within every backward, between its two pieces."""
    pieces = [each for each in events if each["name"].endswith("function: A")]
    moved = [each | {"ts": each["ts"] + 5} if each in pieces else each for each in events]
    return [*moved, *(one for each in pieces for one in message("S", each["ts"] + 2, 1 - rank))]


def test_collectives_within_a_stage_are_no_messages(tmp_path: Path):
    """Tests that reductions within forwards and backwards change nothing; messages there are refused by name."""
    require_figures(summarise_traces([trace(tmp_path, change=with_collectives)]))
    with pytest.raises(
        ValueError, match=r"2 forwards in an iteration 0 have one backward or its two halves \(4 pieces\)"
    ):
        summarise_traces([trace(tmp_path, change=with_inner_messages)])


def action(text: str, start: float, *, rank: int, number: int, has_kernels: bool = False) -> Events:
    """Two operators of a forward, or their gradients on autograd's thread; 10 and 20 us."""
    kind, first = text[0], 10 * number
    names = [("aten::linear", first), ("aten::relu", first + 3)] if kind == "F" else []
    if kind == "B":
        names = [(f"autograd::engine::evaluate_function: {name}", first + n) for name, n in (("R", 3), ("A", 1))]
    length, tid = (5, 1) if kind == "F" else (10, 2)
    events: Events = []
    for place, (name, sequence) in enumerate(names):
        begin = start + place * length
        told = {"Sequence number": sequence, "Fwd thread id": int(kind == "B")}
        events += event(name, begin, length, tid=tid, **told)
        events += event("aten::mm", begin + 1, 2, tid=tid, **{"Sequence number": sequence, "Fwd thread id": 0})
        if has_kernels:
            key = round(begin * 10) + rank
            events += event("cudaLaunchKernel", begin + 1, 1, category="cuda_runtime", tid=tid, correlation=key)
            events += event("gemm", begin + 100, 4, category="kernel", tid=7, correlation=key)
    return events


def trace(
    folder: Path,
    *,
    peers: Callable[[int, int], int | None] = lambda _, peer: peer,
    change: Callable[[int, Events], Events] = lambda _, events: events,
    has_kernels: bool = False,
) -> Path:
    """Two stages, two microbatches, three iterations, each rank's document in `folder`."""
    for rank, order in enumerate(ORDERS):
        events: Events = []
        for step in range(3):
            now = 1000.0 * step
            events += event(f"ProfilerStep#{step}", now, 999, category="user_annotation")
            events += event("aten::randn", now, 2)
            for place, text in enumerate(order.split()):
                start = now + 20 + 100 * place + 30 * rank + 100 * (text[0] == "B" and rank == 0)
                number, length = 2 * step + int(text[1]), 10 if text[0] == "F" else 20
                if (text[0] == "F") == (rank == 1):
                    events += message("R", start - 2, peers(rank, 1 - rank))
                events += action(text, start, rank=rank, number=number, has_kernels=has_kernels)
                if (text[0] == "F") == (rank == 0):
                    events += message("S", start + length + 1, peers(rank, 1 - rank))
        events = change(rank, events)
        text = json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": events})
        (folder / f"{rank}.json").write_text(text)
    return folder


def require_figures(summary: TraceSummary, *, forward: int = 10_000, backward: int = 20_000) -> None:
    """Both stages, the order as run, and the durations that were written."""
    assert summary.orders == {"rank0": ("0F0", "0F1", "0B0", "0B1"), "rank1": ("1F0", "1B0", "1F1", "1B1")}
    wanted = {("rank0", 0, "F"): forward, ("rank0", 0, "B"): backward}
    wanted |= {("rank1", 1, "F"): forward, ("rank1", 1, "B"): backward}
    assert {cell: each.mean_ns for cell, each in summary.cells.items()} == wanted
    assert (summary.num_microbatches, len(summary.iterations_ns)) == (2, 2)


def test_actions_are_told_without_marks(tmp_path: Path):
    """Tests that kinds, stages, microbatches, order and durations come from sequence numbers and messages alone."""
    summary = summarise_traces([trace(tmp_path)])
    require_figures(summary)
    assert summary.form == "torch's profiler, actions not marked"
    assert [layer.costs[0].forward_ns for layer in make_traced_workload(summary).profile.layers] == [10_000] * 2


def test_two_ranks_need_no_peers(tmp_path: Path):
    """Tests that the first stage is told by what it never receives where shapes were not recorded."""
    require_figures(summarise_traces([trace(tmp_path, peers=lambda *_: None)]))


def test_kernels_count_where_there_are_any(tmp_path: Path):
    """Tests that an action lasts from its first kernel's begin to its last one's end."""
    require_figures(summarise_traces([trace(tmp_path, has_kernels=True)]), forward=9_000, backward=14_000)


def without(name: str) -> Callable[[int, Events], Events]:
    return lambda _, events: [each for each in events if not each["name"].startswith(name)]


def shifted(rank: int, events: Events) -> Events:
    return [each | {"ts": each["ts"] - 90_000 * rank} for each in events]


def drifting(rank: int, events: Events) -> Events:
    """The last rank's clock is 90 ms behind and runs twice as fast within every step: no offset helps."""
    return [each | {"ts": each["ts"] + rank * (each["ts"] % 1000 - 90_000)} for each in events]


def test_clocks_that_differ_are_set(tmp_path: Path):
    """Tests that a rank whose clock is 90 ms behind is set right within its window, and all figures stay."""
    plain = summarise_traces([trace(tmp_path)])
    summary = summarise_traces([trace(tmp_path, change=shifted)])
    require_figures(summary)
    window = summary.clocks["rank1"]
    assert window.low_ns <= 90_000_000 <= window.high_ns
    assert summary.clocks.keys() == {"rank1"}
    assert max(abs(a - b) for a, b in zip(summary.iterations_ns, plain.iterations_ns, strict=True)) <= (
        window.high_ns - window.low_ns
    )
    assert "Clocks set: rank1." in make_traced_workload(summary).profile.provenance


def cut_off(_: int, events: Events) -> Events:
    return events[:-8]


REFUSED: dict[str, tuple[Callable[[int, Events], Events], str]] = {
    "no backward": (without("autograd"), "has no sequence numbers that link backwards"),
    "no steps": (without("ProfilerStep"), "shows no iteration"),
    "no messages": (without("c10d"), "shows no message between stages"),
    "drifting clocks": (drifting, r"'rank1' is at least 89\.9 ms behind 'rank0', by the other at most 89\.[67]"),
    "cut off": (cut_off, "1 to 2 forwards that have a backward; give whole iterations"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_told_is_refused(tmp_path: Path, name: str):
    """Tests that each trace that does not tell its actions ends in one message with file and remedy."""
    change, said = REFUSED[name]
    with pytest.raises(ValueError, match=said) as caught:
        summarise_traces([trace(tmp_path, change=change)])
    assert str(tmp_path) in str(caught.value)


def test_other_pipelines_are_refused(tmp_path: Path):
    """Tests that a ring of messages (several stages on a device) and a missing rank are refused."""
    folder = trace(tmp_path, peers=lambda rank, _: 5 + rank)
    with pytest.raises(ValueError, match="do not form whole pipelines"):
        summarise_traces([folder])
    with pytest.raises(ValueError, match="do not form whole pipelines"):
        summarise_traces([trace(tmp_path) / "0.json"])


def ends(*pairs: tuple[int | None, int | None]) -> dict[int, UnmarkedRank]:
    """Ranks with who is before and behind each."""
    sets = [tuple(frozenset(() if each is None else (each,)) for each in pair) for pair in pairs]
    return {
        rank: UnmarkedRank(source="t.json", iterations=(), before=before, behind=behind)
        for rank, (before, behind) in enumerate(sets)
    }


def test_stages_come_from_peers():
    """Tests that ranks of the job, ranks of groups, and ranks that name no peers give the stages."""
    job = ends((None, 2), (None, 3), (0, 4), (1, 5), (2, None), (3, None))
    assert find_stages(job) == dict(enumerate((0, 0, 1, 1, 2, 2)))
    groups = ends((None, 1), (None, 1), (0, 2), (0, 2), (1, None), (1, None))
    assert find_stages(groups) == dict(enumerate((0, 0, 1, 1, 2, 2)))
    assert find_stages(ends((None, -1), (-1, -1), (-1, None))) == {0: 0, 1: 1, 2: 2}


@pytest.mark.parametrize(
    "pairs",
    [((None, 1), (0, 2)), ((1, 2), (2, 0), (0, 1)), ((None, -1), (-1, -1), (-1, -1), (-1, None)), ((None, 1), (0, 1))],
)
def test_no_stages_come_from_parts_and_rings(pairs: tuple[tuple[int | None, int | None], ...]):
    """Tests that a missing last stage, a ring, and middles that nobody can order are refused."""
    with pytest.raises(ValueError, match=r"t\.json: the messages of . ranks do not form whole pipelines"):
        find_stages(ends(*pairs))
