"""Traces of all ranks: parquet, torch's profiler, our executor's; read into figures and a workload, or refused."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from api.reporting.traces import describe_trace
from planner.problem import Options, Problem
from profiles.importers.trace_summary import MAX_KEPT, Spread, make_traced_workload, summarise_traces

TRACES = Path(__file__).parents[3] / "benchmarks" / "traces"


def kineto(path: Path, *actions: tuple[str, float, float], rank: int = 0, category: str = "user_annotation") -> Path:
    """Marked actions as (name, start, duration) in microseconds, each followed by an operator."""
    events: list[dict[str, Any]] = []
    for name, start, length in actions:
        events.append({"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "args": {"x": "]}"}})
        events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": start, "dur": length / 2})
    text = json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": events}, indent=1)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


FIRST = (("PP:0F0", 0.0, 10.0), ("PP:0B0", 40.0, 20.0), ("PP:0F0", 100.0, 12.0), ("PP:0B0", 140.0, 20.0))
SECOND = (("PP:1F0", 10.0, 10.0), ("PP:1B0", 20.0, 20.0), ("PP:1F0", 110.0, 10.0), ("PP:1B0", 120.0, 20.0))


def test_production_traces_become_workloads():
    """Tests that a job's parquet gives its means, spreads and order, and a workload that can be planned."""
    pytest.importorskip("pyarrow")
    summary = summarise_traces([TRACES / "trace-ST.parquet"])
    assert (summary.num_pipelines, summary.stages, summary.num_microbatches) == (2, (0, 1, 2, 3), 4)
    assert len(summary.iterations_ns) == 32
    assert summary.num_other_orders == 0
    assert summary.orders["pipeline0-stage3"] == ("3F0", "3B0", "3F1", "3B1", "3F2", "3B2", "3F3", "3B3")
    assert sum(each.count for each in summary.cells.values()) == 2048
    workload = make_traced_workload(summary)
    assert workload.cluster is not None
    assert [layer.costs[0].forward_ns // 10**6 for layer in workload.profile.layers] == [66, 67, 67, 139]
    assert len([each for each in workload.profile.measurements if each.what == "duration"]) == 16
    Problem(profile=workload.profile, cluster=workload.cluster, num_microbatches=4, options=Options())


def test_times_on_the_gpu_count(tmp_path: Path):
    """Tests that of an action that the host and the GPU report the GPU's time is taken."""
    path = kineto(tmp_path / "t.json", *FIRST[:2])
    plain = json.loads(path.read_text())
    plain["traceEvents"] += [
        {"ph": "X", "cat": "gpu_user_annotation", "name": name, "ts": start + 5, "dur": length * 3}
        for name, start, length in FIRST[:2]
    ]
    path.write_text(json.dumps(plain))
    assert summarise_traces([path]).cells["rank0", 0, "F"].mean_ns == 30_000


def test_the_executors_documents_are_read(tmp_path: Path):
    """Tests that a folder of the executor's --trace is read, both halves of the backward apart."""
    rows = [[["0F0", 0, 10], ["0I0", 30, 40], ["0W0", 40, 45]]] * 3
    (tmp_path / "rank0.json").write_text(json.dumps({"device": "a", "iterations": rows}))
    rows = [[["1F0", 10, 20], ["1I0", 20, 30], ["1W0", 30, 37]]] * 3
    (tmp_path / "rank1.json").write_text(json.dumps({"device": "b", "iterations": rows}))
    workload = make_traced_workload(summarise_traces([tmp_path]))
    assert [layer.costs[0].weight_grad_ns for layer in workload.profile.layers] == [5, 7]
    assert workload.options == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no traceEvents"),
        ('{"other": 1}', "has no traceEvents"),
        ('{"traceEvents": []}', "holds no events, but no marked action"),
        (
            '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 1}]}',
            "1 kernel, but no marked",
        ),
        ('{"traceEvents": [{"ph": "X", "name": "PP:0F0", "ts": 1, "dur": 1}, {"ph": "X"', "is cut off or broken"),
        ('{"traceEvents": [{"ph": "X", "name": "PP:0F0", "ts": 1, "dur": -1}]}', "takes -1.0 us"),
        ('{"traceEvents": [{"ph": "X", "name": "PP:0F0", "ts": 1}]}', "has no times"),
        ('{"traceEvents": [7]}', "has 7 for an event; give a trace of"),
        ('{"device": "a", "iterations": [[["0F0", 5, 3]]]}', "lasts from 5 to 3"),
        ('{"device": "a", "iterations": [[["0F0", 5', "is cut off or broken"),
        ('{"device": "a", "iterations": [[["0F0", 5, 36893488147419103232]]]}', "is cut off or broken"),
        ('{"device": "a", "iterations": [[["0F0", 5, 6]]], "times": [{"begin_ns": 1}', "is cut off or broken"),
        ('{"device": "a", "iterations": []}', "contains no iteration"),
    ],
)
def test_broken_traces_are_refused(tmp_path: Path, text: str, message: str):
    """Tests that what is empty, unmarked, cut off or impossible is refused with the file and the remedy."""
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        summarise_traces([path])
    assert str(path) in str(caught.value)


def test_other_tools_files_are_refused(tmp_path: Path):
    """Tests that databases and empty folders are refused with all that is read, not as broken traces."""
    path = tmp_path / "report.sqlite"
    path.write_bytes(b"SQLite format 3\x00\xd2\x01")
    with pytest.raises(ValueError, match=r"is no text, as Nsight's databases .*; give a trace of torch's profiler"):
        summarise_traces([path])
    with pytest.raises(ValueError, match=r"contains no traces; give a trace of torch's profiler .*Chakra.*\.parquet"):
        summarise_traces([tmp_path])


def test_traces_of_several_runs_are_refused(tmp_path: Path):
    """Tests that ranks with other numbers of iterations, a rank given twice, and an empty folder are refused."""
    files = [kineto(tmp_path / "a.json", *FIRST), kineto(tmp_path / "b.json", *SECOND[:2], rank=1)]
    with pytest.raises(ValueError, match="'rank1' has 1 iterations and 'rank0' 2"):
        summarise_traces(files)
    with pytest.raises(ValueError, match="was given before"):
        summarise_traces([files[0], files[0]])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="contains no traces"):
        summarise_traces([tmp_path / "empty"])
    (tmp_path / "empty" / "rank0.et").write_bytes(b"\x08")
    with pytest.raises(ValueError, match=r"rank0\.et: is cut off or broken"):
        summarise_traces([tmp_path / "empty"])
    (tmp_path / "logs").mkdir()
    for name in ("a.log", "b.log"):
        (tmp_path / "logs" / name).write_text(megatron_log())
    with pytest.raises(ValueError, match=r"a\.log: one log holds all ranks; give one file at a time"):
        summarise_traces([tmp_path / "logs"])
    (tmp_path / "logs" / "b.log").unlink()
    assert summarise_traces([tmp_path / "logs"]).form == "Megatron's timers"


def test_spreads_take_constant_room():
    """Tests that mean and count are those of all durations, the quartiles close, and no more are kept than allowed."""
    spread = Spread()
    for value in range(20_000):
        spread.add(value)
    assert (spread.count, spread.mean_ns, len(spread.kept)) == (20_000, 10_000, MAX_KEPT)
    assert all(
        abs(found - true) < 600 for found, true in zip(spread.quartiles_ns, (5_000, 10_000, 15_000), strict=True)
    )


def megatron_log(*, ranks: int = 4, intervals: int = 2) -> str:
    """As Megatron prints it: two stages of two ranks, four microbatches."""
    told = {"data_parallel_size": 2, "global_batch_size": 16, "micro_batch_size": 2}
    told |= {"pipeline_model_parallel_size": 2, "world_size": 4}
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in told.items()]
    for number in range(intervals):
        lines.append(
            f" iteration {number + 1:8d}/ 500 | elapsed time per iteration (ms): 120.5 | learning rate: 1.0E-4 |"
        )
        lines.append("times across ranks (ms):")
        for name, base in (("forward-backward", 100), ("forward-compute", 40), ("backward-compute", 80)):
            lines.append(f"  {name}:")
            lines += [f"     rank {rank:2d}: {base + 4 * rank:.2f}" for rank in range(ranks)]
    return "\n".join(lines) + "\n"


def test_megatrons_timers_are_read(tmp_path: Path):
    """Tests that a log gives every rank's means per microbatch, its stage, and a workload that can be planned."""
    path = tmp_path / "train.log"
    path.write_text(megatron_log())
    summary = summarise_traces([path])
    found = {cell: each.mean_ns for cell, each in summary.cells.items()}
    assert found["rank0", 0, "F"] == 10_000_000
    assert found["rank3", 1, "B"] == 23_000_000
    assert len(found) == 8
    assert (summary.num_microbatches, summary.num_pipelines) == (4, 2)
    assert summary.iterations_ns == [120_500_000] * 2
    assert [layer.costs[0].forward_ns for layer in make_traced_workload(summary).profile.layers] == [10500000, 12500000]
    assert describe_trace(summary)[-1] == "  order: not in the trace"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not state world_size"),
        (megatron_log(ranks=3), "forward-compute of 3 ranks, but 4 ran"),
        (megatron_log()[:-40], "is cut off"),
    ],
)
def test_broken_timers_are_refused(tmp_path: Path, text: str, message: str):
    """Tests that a log without sizes, without all ranks or cut off is refused with one message."""
    path = tmp_path / "train.log"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        summarise_traces([path])
    assert str(path) in str(caught.value)


def test_neighbouring_stages_on_one_device_need_no_link(tmp_path: Path):
    """Tests that a schedule in the shape of a V, where a device holds two stages in a row, becomes a workload."""
    actions = [(f"PP:{stage}{kind}0", 50.0 * step, 10.0) for step, (stage, kind) in enumerate(("0F", "1F", "1B", "0B"))]
    workload = make_traced_workload(summarise_traces([kineto(tmp_path / "t.json", *actions)]))
    assert workload.cluster is not None
    assert (len(workload.profile.layers), len(workload.cluster.devices), workload.cluster.links) == (2, 1, ())


def test_a_trace_without_backwards_is_no_workload(tmp_path: Path):
    """Tests that forwards alone are not taken for a training whose backwards take no time."""
    with pytest.raises(ValueError, match="stage 0 has no backward; give a trace of training"):
        make_traced_workload(summarise_traces([kineto(tmp_path / "t.json", FIRST[0])]))
