"""Iterations of a job out of its ranks' traces: the same advice whatever form they have, the replay that of the run."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from planner.dealing import pipeline_actions
from planner.fidelity.advice import advise
from planner.fidelity.run_replay import replay_ends_ns, replay_ns
from planner.plan import Plan
from planner.problem import Problem
from planner.simulate import simulate
from profiles.importers.rank_steps import read_run_steps
from profiles.importers.straggler import RunAction, RunStep, read_straggler_trace
from tests.long_runs import examples
from tests.planner.replanning.slowed_runs import random_chain, random_running_plan, traces
from tests.profiles.test_chakra_nodes import linked
from tests.profiles.test_rank_messages import kernel, marked

TRACES = Path(__file__).parents[2] / "benchmarks" / "traces"


def rendered(steps: tuple[RunStep, ...], *, with_messages: bool) -> dict[int, list[dict[str, Any]]]:
    """By rank the events that torch's profiler would have: marks, and NCCL's kernels for messages."""
    last = max(stage for _, stage in steps[0].actions)
    rank = {seat: seat[0] * (last + 1) + seat[1] for seat in steps[0].actions}
    events: dict[int, list[dict[str, Any]]] = {number: [] for number in rank.values()}
    for place, step in enumerate(steps):
        begin = 100e6 * place
        for seat, row in step.actions.items():
            events[rank[seat]] += [
                marked(
                    f"PP:{seat[1]}{action.kind}{action.microbatch}",
                    begin + action.start_ns / 1e3,
                    action.duration_ns / 1e3,
                )
                for action in row
            ]
        for (pipeline, stage, way, number), lag in step.transfers_ns.items() if with_messages else ():
            ends = (pipeline, stage), (pipeline, stage + (1 if way == "F" else -1))
            for end, name, peer in ((ends[0], "send", ends[1]), (ends[1], "recv", ends[0])):
                events[rank[end]].append(kernel(name, begin + number, lag / 1e3, peer=rank[peer]))
    return events


def as_profiled(events: list[dict[str, Any]], rank: int) -> str:
    return json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": events})


def as_linked(events: list[dict[str, Any]], _: int) -> str:
    """As Chakra's linker writes it; the format has no names of peers, so that messages are left out."""
    nodes = [linked({"args": {}, "tid": 1, **event}, number) for number, event in enumerate(events, start=2)]
    return json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": nodes})


def as_own(events: list[dict[str, Any]], rank: int) -> str:
    """As our executor writes it."""
    rows: dict[int, list[tuple[str, int, int]]] = {}
    for event in events:
        place, start = divmod(round(event["ts"] * 1e3), 10**11)
        rows.setdefault(place, []).append(
            (event["name"].removeprefix("PP:"), place * 10**11 + start, round((event["ts"] + event["dur"]) * 1e3))
        )
    return json.dumps({"rank": rank, "device": f"d{rank}", "iterations": [rows[place] for place in sorted(rows)]})


@pytest.mark.parametrize("render", [as_profiled, as_own])
def test_the_advice_is_that_on_the_parquet(tmp_path: Path, render: Callable[[list[dict[str, Any]], int], str]):
    """Tests that a production job gives the same advice as marked traces of the profiler, and as our executor's.

    Ours have no messages: transfers take what they were seen to take, so that links differ a little there.
    """
    pytest.importorskip("pyarrow")
    steps = read_straggler_trace(TRACES / "trace-ST.parquet")
    for rank, events in rendered(steps, with_messages=render is as_profiled).items():
        (tmp_path / f"rank{rank}.json").write_text(render(events, rank))
    mine, theirs = (advise(each, blocks_per_stage=8) for each in (read_run_steps([tmp_path]), steps[1:]))
    assert (mine.measured_ns, mine.busiest_stage, mine.num_pipelines) == (theirs.measured_ns, theirs.busiest_stage, 2)
    if render is as_profiled:
        assert asdict(mine) == asdict(theirs)
    assert mine.replayed_ns == pytest.approx(theirs.replayed_ns, rel=0.002)
    assert [each.what for each in mine.remedies] == [each.what for each in theirs.remedies]
    for one, other in zip(mine.remedies, theirs.remedies, strict=True):
        assert (one.makespan_ns, one.lower_bound_ns) == (
            pytest.approx(other.makespan_ns, rel=0.005),
            pytest.approx(other.lower_bound_ns, rel=0.005),
        )


def test_linked_traces_of_chakra_are_replayed(tmp_path: Path):
    """Tests that one pipeline's marks in Chakra's linked form replay as the run that they were made from."""
    pytest.importorskip("pyarrow")
    steps = read_straggler_trace(TRACES / "trace-ST.parquet")[:4]
    for rank, events in rendered(steps, with_messages=False).items():
        if rank < 4:
            (tmp_path / f"linked_{rank}.json").write_text(as_linked(events, rank))
    for mine, theirs in zip(read_run_steps([tmp_path]), steps[1:], strict=True):
        assert {seat: [(a.kind, a.microbatch, a.duration_ns) for a in row] for seat, row in mine.actions.items()} == {
            seat: [(a.kind, a.microbatch, a.duration_ns) for a in row]
            for seat, row in theirs.actions.items()
            if seat[0] == 0
        }
        assert replay_ns(mine) == pytest.approx(mine.measured_ns, rel=0.005)


def running(seed: int) -> tuple[Problem, Plan]:
    """A problem and a plan of one device per stage, or with as many replicas everywhere."""
    rng = Random(seed)
    while True:
        problem = random_chain(rng, num_devices=(count := rng.randint(2, 6)), num_layers=2 * count)
        problem = replace(problem, options=replace(problem.options, split_backward=False))
        plan = random_running_plan(rng, problem)
        held = [device for stage in plan.stages for (device,) in stage.replicas]
        if len({len(stage.replicas) for stage in plan.stages}) == 1 and len(held) == len(set(held)):
            return problem, plan


@pytest.mark.parametrize("seed", range(examples(60)))
def test_the_replay_of_a_run_is_the_simulators(tmp_path: Path, seed: int):
    """Tests that the traces of a simulated run, read and replayed, give the simulator's makespan, queues included."""
    problem, plan = running(seed)
    timeline = simulate(problem, plan)
    documents = dict(traces(problem, plan))
    replica = {group[0]: index for stage in plan.stages for index, group in enumerate(stage.replicas)}
    stage_of = {group[0]: number for number, stage in enumerate(plan.stages) for group in stage.replicas}
    order = sorted(documents.values(), key=lambda text: (replica[device_of(text)], stage_of[device_of(text)]))
    for rank, text in enumerate(order):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(json.loads(text) | {"rank": rank}))
    steps = read_run_steps([tmp_path])
    ends = [row[-1].end_ns for row in timeline.actions.values()]
    for step in steps:
        assert step.measured_ns == max(ends)
        assert replay_ns(step) == max(ends)


def device_of(text: str) -> str:
    return str(json.loads(text)["device"])


@pytest.mark.parametrize("seed", range(examples(60)))
def test_the_replay_is_the_simulation_of_the_same_plan(seed: int):
    """Tests that with durations and latencies of a problem, not of a run, the replay plays as the simulator does.

    Latencies are shorter than every action, so that no transfer has to wait for its link.
    """
    rng = Random(seed)
    problem, plan = running(seed)
    latency = rng.randint(0, 50_000)
    links = tuple(replace(link, bandwidth_bytes_per_s=10**15, latency_ns=latency) for link in problem.cluster.links)
    problem = replace(problem, cluster=replace(problem.cluster, links=links))
    timeline = simulate(problem, plan)
    actions: dict[tuple[int, int], tuple[RunAction, ...]] = {}
    for number, stage in enumerate(plan.stages):
        for pipeline, (device,) in enumerate(stage.replicas):
            actions[pipeline, number] = tuple(
                RunAction(
                    kind=timed.action.kind,
                    microbatch=timed.action.microbatch,
                    start_ns=0,
                    duration_ns=timed.end_ns - timed.start_ns,
                )
                for timed in timeline.actions[device]
            )
    lags = {(sent.from_stage, sent.direction[0].upper()): sent.end_ns - sent.start_ns for sent in timeline.transfers}
    transfers = {
        (*seat, way, number): lags.get((seat[1], way), 0)
        for seat in actions
        for way in ("F", "B")
        for number in range(problem.num_microbatches)
    }
    ends = replay_ends_ns(RunStep(number=0, actions=actions, transfers_ns=transfers))
    for number, stage in enumerate(plan.stages):
        for pipeline, (device,) in enumerate(stage.replicas):
            for timed in timeline.actions[device]:
                assert ends[pipeline, number, timed.action.kind, timed.action.microbatch] == timed.end_ns


def own(folder: Path, *rows: list[list[Any]]) -> Path:
    for rank, row in enumerate(rows):
        (folder / f"rank{rank}.json").write_text(json.dumps({"rank": rank, "device": f"d{rank}", "iterations": [row]}))
    return folder


def one_stage(stage: int, *, count: int = 1) -> list[list[Any]]:
    return [[f"{stage}F{m}", m, m + 1] for m in range(count)] + [[f"{stage}B{m}", 9 + m, 10 + m] for m in range(count)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[["0F0", 0, 1], ["1F0", 1, 2]]], "'d0' ran 2 stages; iterations are replayed of one stage per device"),
        ([[["0F0", 0, 1], ["0I0", 1, 2], ["0W0", 2, 3]]], "backwards are run in halves"),
        ([one_stage(0), one_stage(1), one_stage(1)], "which of 3 ranks make a pipeline of 2 stages is not told"),
        ([one_stage(0, count=2), one_stage(1)], "stage 1 ran other microbatches than the first"),
    ],
)
def test_what_is_no_pipeline_of_whole_stages_is_refused(tmp_path: Path, rows: list[list[list[Any]]], message: str):
    """Tests that several stages on a device, halves of backwards, odd ranks and lost actions are refused by name."""
    with pytest.raises(ValueError, match=message):
        read_run_steps([own(tmp_path, *rows)])


def test_pipelines_without_messages_are_refused(tmp_path: Path):
    """Tests that marked traces of two pipelines without a message are refused, and a log, which has no order."""
    for rank in range(4):
        events = [marked(f"PP:{rank % 2}F0", 10.0 * rank, 5), marked(f"PP:{rank % 2}B0", 50 - 10.0 * rank, 5)]
        (tmp_path / f"{rank}.json").write_text(as_profiled(events, rank))
    with pytest.raises(ValueError, match="which of 4 ranks make a pipeline of 2 stages is not told"):
        read_run_steps([tmp_path])
    with pytest.raises(ValueError, match="a log tells neither order nor transfers"):
        read_run_steps([tmp_path / "train.log"])


def test_1f1b_is_replayed_by_ranks_of_our_own(tmp_path: Path):
    """Tests that ranks of the executor that follow one another are a pipeline: the second one is twice as slow."""
    rows = []
    for pipeline in (1, 2):
        at, made = [0, 0], dict[tuple[int, int, bool], int]()
        mine: list[list[list[Any]]] = [[], []]
        left = [[(p, f) for s, p, f in pipeline_actions(2, 3) if s == stage] for stage in (0, 1)]
        while any(left):
            for stage in (0, 1):
                while left[stage]:
                    place, is_forward = left[stage][0]
                    source = (0, place, True) if is_forward and stage else (1, place, False)
                    if stage == 1 and not is_forward:
                        source = (1, place, True)
                    if not (is_forward and stage == 0) and source not in made:
                        break
                    start = max(at[stage], made.get(source, 0) + 3 * (source[0] != stage) * (source in made))
                    at[stage] = made[stage, place, is_forward] = start + 10 * pipeline
                    mine[stage].append([f"{stage}{'FB'[not is_forward]}{place}", start, at[stage]])
                    left[stage].pop(0)
        rows += mine
    (step,) = read_run_steps([own(tmp_path, *rows)])
    assert step.measured_ns == replay_ns(step) == max(end for row in rows for _, _, end in row)
    assert {pipeline for pipeline, _ in step.actions} == {0, 1}
    assert [step.actions[pipeline, 0][0].duration_ns for pipeline in (0, 1)] == [10, 20]
