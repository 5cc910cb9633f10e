"""The traces of a job's ranks, one document for each, on one clock: tests of profiles/importers/rank_traces.py."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from api.reporting.traces import describe_trace, summarise_trace
from profiles.importers.rank_steps import read_run_steps
from profiles.importers.trace_summary import make_traced_workload, summarise_traces
from tests.profiles.importers.test_rank_messages import kernel, marked
from tests.profiles.importers.test_rank_steps import as_profiled, own


def one_stage(stage: int, *, count: int = 1) -> list[list[Any]]:
    return [[f"{stage}F{m}", m, m + 1] for m in range(count)] + [[f"{stage}B{m}", 9 + m, 10 + m] for m in range(count)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[["0F0", 0, 1], ["0B0", 1, 2], ["1F0", 2, 3]], one_stage(0)], "a device ran stages 0, another 0, 1"),
        ([[["0F0", 0, 1], ["0W0", 2, 3]]], "only a part; give a trace that is not cut off"),
        ([[["0F0", 0, 1], ["0I0", 1, 2], ["0W0", 2, 3], ["0W0", 3, 4]]], "only a part"),
        ([one_stage(0), one_stage(1), one_stage(1)], "which of 3 ranks form a pipeline of 2 stages"),
        ([one_stage(0, count=2), one_stage(1)], "stage 1 ran other microbatches than the first"),
    ],
)
def test_what_is_no_whole_pipeline_is_refused(tmp_path: Path, rows: list[list[list[Any]]], message: str):
    """Tests that stages shared in part, lost or doubled halves, odd ranks and lost actions are refused by name."""
    with pytest.raises(ValueError, match=message):
        read_run_steps([own(tmp_path, *rows)])


def test_pipelines_without_messages_are_refused(tmp_path: Path):
    """Tests that marked traces of two pipelines without a message are refused, and a log, which has no order."""
    for rank in range(4):
        events = [marked(f"PP:{rank % 2}F0", 10.0 * rank, 5), marked(f"PP:{rank % 2}B0", 50 - 10.0 * rank, 5)]
        (tmp_path / f"{rank}.json").write_text(as_profiled(events, rank))
    with pytest.raises(ValueError, match="which of 4 ranks form a pipeline of 2 stages"):
        read_run_steps([tmp_path])
    with pytest.raises(ValueError, match="a log states neither order nor transfers"):
        read_run_steps([tmp_path / "train.log"])


def stages_of_four(folder: Path, *, world: int | None = 4, less: tuple[int, ...] = ()) -> Path:
    """Marked traces of four stages, a rank each, two microbatches, three iterations."""
    for rank in {0, 1, 2, 3} - {*less}:
        events = [
            marked(f"PP:{rank}{kind}{m}", 1000.0 * step + (10 * rank if kind == "F" else 200 - 20 * rank) + 40 * m, 8)
            for step in range(3)
            for kind in "FB"
            for m in range(2)
        ]
        head = {"distributedInfo": {"rank": rank} | ({} if world is None else {"world_size": world})}
        (folder / f"rank{rank}.json").write_text(json.dumps(head | {"traceEvents": events}))
    return folder


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


@pytest.mark.parametrize("read", [read_run_steps, summarise_traces])
def test_a_stage_that_no_rank_ran_is_missed(tmp_path: Path, read: Callable[[Sequence[Path]], object]):
    """Tests that stages 0, 2 and 3 are no pipeline of three, for advice and for an import."""
    with pytest.raises(ValueError, match="no rank ran stage 1 of 4; give the traces of all ranks"):
        read([stages_of_four(tmp_path, less=(1,))])


@pytest.mark.parametrize("read", [read_run_steps, summarise_traces])
def test_traces_of_two_jobs_are_not_one(tmp_path: Path, read: Callable[[Sequence[Path]], object]):
    """Tests that a rank of a job of eight does not stand in for one of four."""
    edit(stages_of_four(tmp_path) / "rank2.json", lambda tree: tree["distributedInfo"].update(world_size=8))
    with pytest.raises(ValueError, match=r"is of 8 ranks, .*rank0\.json of 4; give the traces of one run"):
        read([tmp_path])


def test_fewer_ranks_than_the_job_had_are_said(tmp_path: Path):
    """Tests that without the last rank nobody can know that a stage is missing, but people and documents hear it."""
    summary = summarise_traces([stages_of_four(tmp_path, less=(3,))])
    assert "  3 of 4 ranks gave a trace; stages of others are not told" in describe_trace(summary)
    assert "Traces of 3 of 4 ranks were given." in make_traced_workload(summary).profile.provenance
    assert (summarise_trace(summary)["ranks"], summarise_trace(summary)["world_size"]) == (3, 4)


OF_RUN = {"run": 7, "world_size": 2, "num_stages": 2}


@pytest.mark.parametrize(
    ("read", "changes", "message"),
    [
        (read_run_steps, [{}], "no rank ran stage 1 of 2; give the traces of all ranks"),
        (summarise_traces, [{}], "no rank ran stage 1 of 2; give the traces of all ranks"),
        (read_run_steps, [{"world_size": 4}, {"world_size": 4}], "is of 4 ranks, but 2 were given; give the traces"),
        (summarise_traces, [{}, {"run": 8}], r"rank1\.json: is of another run than .*rank0\.json; give"),
        (summarise_traces, [{}, {"num_stages": 3}], r"rank1\.json: is of another run than .*rank0\.json; give"),
    ],
)
def test_ranks_of_our_own_that_miss_one_are_refused(
    tmp_path: Path, read: Callable[[Sequence[Path]], object], changes: list[dict[str, int]], message: str
):
    """Tests that the executor's documents of one run tell a missing last rank, and a rank that another run has left."""
    for rank, change in enumerate(changes):
        tree = {"rank": rank, "device": f"d{rank}", **OF_RUN, **change}
        actions = [[f"{rank}F0", rank * 10, rank * 10 + 5], [f"{rank}B0", 40 - rank * 10, 45 - rank * 10]]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(tree | {"iterations": [actions]}))
    with pytest.raises(ValueError, match=message):
        read([tmp_path])


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_last_stage_that_sends_further_is_not_the_last(tmp_path: Path, stages: int):
    """Tests that marked traces of some first stages of four are refused by the messages that their last one has."""
    folder = stages_of_four(tmp_path, less=tuple(range(stages, 4)))
    for rank in range(stages):
        kinds = [("send", peer) for peer in (rank - 1, rank + 1) if 0 <= peer < 4]
        messages = [kernel(name, 5.0 + 1000 * step, 1, peer=peer) for step in range(3) for name, peer in kinds]
        edit(folder / f"rank{rank}.json", lambda tree, more=messages: tree["traceEvents"].extend(more))  # type: ignore[misc]
    with pytest.raises(ValueError, match=f"ran stage {stages - 1}, the last that was given, but exchanges with ranks"):
        read_run_steps([folder])


def test_ranks_packed_and_not_are_read_together(tmp_path: Path):
    """Tests that of a folder in which one rank's trace is compressed no rank is left out."""
    plain = stages_of_four(tmp_path) / "rank1.json"
    (tmp_path / "rank1.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert summarise_traces([tmp_path]).stages == (0, 1, 2, 3)


def test_a_byte_order_mark_is_no_part_of_a_trace(tmp_path: Path):
    """Tests that it is read over, in a list of events and in our executor's documents."""
    events = json.loads((stages_of_four(tmp_path) / "rank0.json").read_text())["traceEvents"]
    for name, tree in {"list.json": events, "own.json": {"device": "a", "iterations": [one_stage(0)] * 2}}.items():
        (tmp_path / name).write_text(json.dumps(tree), encoding="utf-8-sig")
        assert summarise_traces([tmp_path / name]).stages == (0,)


LOST: dict[str, tuple[Callable[[list[dict[str, Any]]], object], str]] = {
    "once": (lambda events: events.pop(0), "2F0 ran 2 times, others 3; give a trace of whole iterations"),
    "twice": (lambda events: events.append(events[1] | {"ts": 9000}), "2F0 ran 3 times, others 4; give a trace of"),
    "forwards": (
        lambda events: events.__setitem__(slice(None), [each for each in events if each["name"] != "PP:2F1"]),
        "stage 2 has no forward of microbatch 1, which others ran; give traces that are not cut off",
    ),
    "microbatch": (
        lambda events: events.__setitem__(slice(None), [each for each in events if each["name"][-1] == "0"]),
        "stage 2 has no backward of microbatch 1, which others ran",
    ),
    "digits": (
        lambda events: [each.update(name=each["name"].replace("2F", "\u0662F")) for each in events],
        "stage 2 has no forward of microbatch 0",
    ),
    "halves": (
        lambda events: events[0].update(ph="B"),
        r"action PP:2F0 begins and ends in two events \(ph B, E\); export it as one \(ph X\)",
    ),
}


@pytest.mark.parametrize("lost", LOST)
def test_actions_that_some_iterations_lack_are_missed(tmp_path: Path, lost: str):
    """Tests that the n-th event of an action is not taken for iteration n where one was lost, or written otherwise."""
    change, message = LOST[lost]
    edit(stages_of_four(tmp_path) / "rank2.json", lambda tree: change(tree["traceEvents"]))
    with pytest.raises(ValueError, match=message):
        summarise_traces([tmp_path])
