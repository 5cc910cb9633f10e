"""Messages of torch's profiler: both ends found, sizes, times with and without a GPU; waits are no computing."""

import json
from pathlib import Path
from typing import Any

from profiles.importers.rank_messages import MessageColumns, MessageEnd, begin_with_input, pair_messages
from profiles.importers.trace_summary import make_traced_workload, summarise_traces

Events = list[dict[str, Any]]


def kernel(way: str, start: float, length: float, *, peer: int, count: int = 512) -> dict[str, Any]:
    """As Kineto writes a kernel of NCCL's."""
    told: dict[str, Any] = {
        "Collective name": way,
        "dtype": "BFloat16",
        "In msg nelems": count,
        "Out msg nelems": count,
    }
    told["Src Rank" if way == "recv" else "Dst Rank"] = peer
    return {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv(x)", "ts": start, "dur": length, "args": told}


def marked(name: str, start: float, length: float, *, category: str = "gpu_user_annotation") -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "tid": 1}


def write(folder: Path, *ranks: Events) -> Path:
    for rank, events in enumerate(ranks):
        (folder / f"{rank}.json").write_text(json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": events}))
    return folder


def on_gpus(*, iterations: int = 3, skew: float = 0) -> tuple[Events, Events]:
    """Two stages, a microbatch: 8 us forward and 6 us back, each after the other end has waited for 20 us."""
    first, second = [], []
    for number in range(iterations):
        now = 1000.0 * number
        first += [marked("PP:0F0", now, 10), kernel("send", now + 10, 8, peer=1)]
        second += [kernel("recv", now - 10 + skew, 28, peer=0), marked("PP:1F0", now + 18 + skew, 10)]
        second += [marked("PP:1B0", now + 28 + skew, 20), kernel("send", now + 48 + skew, 6, peer=0)]
        first += [kernel("recv", now + 28, 26, peer=1), marked("PP:0B0", now + 54, 20)]
    return first, second


def test_kernels_tell_sizes_and_times(tmp_path: Path):
    """Tests that a transfer takes what its later end took, without the first iteration's, whatever the clocks say."""
    for skew in (0, 0.7e6):
        summary = summarise_traces([write(tmp_path, *on_gpus(skew=skew))])
        assert {way: (each.count, each.mean_ns) for way, each in summary.transfers.items()} == {
            (0, 1): (2, 8_000),
            (1, 0): (2, 6_000),
        }
        assert summary.transfer_bytes == {(0, 1): 1024, (1, 0): 1024}
        assert bool(summary.clocks) == bool(skew)
    workload = make_traced_workload(summary)
    assert workload.cluster is not None
    (link,), (edge,) = workload.cluster.links, workload.profile.edges
    assert (edge.bytes, round(edge.bytes * 1e9 / link.bandwidth_bytes_per_s), link.latency_ns) == (1024, 7_000, 0)


def gloo(way: str, start: float, end: float, *, peer: int) -> Events:
    """The post and, within it, the record that lasts until somebody waited for it; 4 x 8 floats."""
    name = "c10d::send" if way == "send" else "c10d::recv_"
    post = {"Concrete Inputs": ["", "", str(peer), "0"], "Sequence number": 0}
    told = {"Input Dims": [[4, 8]], "Input type": ["float"]}
    return [
        {"ph": "X", "cat": "cpu_op", "name": name, "ts": start - 1, "dur": 2, "tid": 1, "args": post},
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"gloo:{way}",
            "ts": start,
            "dur": end - start,
            "tid": 1,
            "args": told,
        },
    ]


def test_waits_on_a_host_are_no_computing(tmp_path: Path):
    """Tests that an action starts when its last message is there, as torch's runtime waits within its marks.

    Of transfers those count whose receiver had nothing else to do: the backward's was there before it was asked for.
    """
    first, second = [], []
    for number in range(2):
        now = 1000.0 * number
        first += [marked("PP:0F0", now, 10, category="user_annotation"), *gloo("send", now + 12, now + 90, peer=1)]
        second += [*gloo("recv", now, now + 15, peer=0), marked("PP:1F0", now + 1, 30, category="user_annotation")]
        second += [
            marked("PP:1B0", now + 31, 20, category="user_annotation"),
            *gloo("send", now + 52, now + 80, peer=0),
        ]
        first += [*gloo("recv", now + 14, now + 84, peer=1), marked("PP:0B0", now + 60, 40, category="user_annotation")]
        first += [marked("PP:0W0", now + 40, 18, category="user_annotation")]
    summary = summarise_traces([write(tmp_path, first, second)])
    means = {cell: each.mean_ns for cell, each in summary.cells.items()}
    assert (means["rank1", 1, "F"], means["rank0", 0, "B"]) == (16_000, 16_000)
    assert {way: each.mean_ns for way, each in summary.transfers.items()} == {(0, 1): 3_000}
    assert summary.transfer_bytes == {(0, 1): 128}


def test_ends_that_do_not_match_are_left_out():
    """Tests that a pair whose sends and receives differ in number gives nothing, and two ranks need no peers."""
    sends = [MessageEnd(start, start + 5, True, -1, -1, True) for start in (0, 10, 20)]
    receives = [MessageEnd(start, start + 3, False, -1, 64, True) for start in (1, 11, 21)]
    ranks = {0: ("a", sends), 1: ("b", receives)}
    found = list(pair_messages(ranks, offsets={}, busy={}, num_iterations=1))
    assert [(one.source, one.target, one.duration_ns, one.num_bytes) for one in found] == [("a", "b", 3, 64)] * 3
    ranks = {0: ("a", sends[1:]), 1: ("b", receives)}
    assert not list(pair_messages(ranks, offsets={}, busy={}, num_iterations=1))


def test_records_that_say_little_are_kept_as_such():
    """Tests that unknown types and shapes give no size, that no times give no message, and other records nothing."""
    columns = MessageColumns()
    columns.take(kernel("allreduce", 0, 1, peer=1), thread=1)
    columns.take({"name": "gloo:send", "args": {}, "ts": "?", "dur": 1}, thread=1)
    columns.take({"name": "gloo:send"}, thread=1)
    odd = kernel("send", 0, 1, peer=1)
    odd["args"]["dtype"] = "Quaternion"
    columns.take(odd, thread=1)
    assert [(each.peer, each.num_bytes) for each in columns.finish()] == [(1, -1)]
    assert begin_with_input(10, 30, arrivals=[5, 20, 40]) == 20
    assert begin_with_input(10, 30, arrivals=[5]) == 10
