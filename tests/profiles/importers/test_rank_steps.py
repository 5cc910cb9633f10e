"""Iterations of a job out of its ranks' traces: the same advice whatever form they have, the replay that of the run."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from planner.dealing import pipeline_actions
from planner.fidelity.advice import advise
from planner.fidelity.run_replay import replay_ends_ns, replay_ns
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.simulation.timeline import Timeline
from profiles.importers.rank_steps import read_run_steps
from profiles.importers.straggler import Key, RunAction, RunStep, read_straggler_trace
from tests.long_runs import examples
from tests.planner.replanning.slowed_runs import random_chain, random_running_plan, traces
from tests.profiles.importers.test_chakra_nodes import linked
from tests.profiles.importers.test_rank_messages import kernel, marked

TRACES = Path(__file__).parents[3] / "benchmarks" / "traces"


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
    """A problem and a plan of one or two stages per device, backwards whole or halved, or of equally many replicas."""
    rng = Random(seed)
    while True:
        problem = random_chain(rng, num_devices=(count := rng.randint(2, 6)), num_layers=2 * count)
        plan = random_running_plan(rng, problem)
        if len({len(stage.replicas) for stage in plan.stages}) == 1:
            return problem, plan


def run_order(step: RunStep) -> dict[tuple[int, int], list[str]]:
    """By pipeline and place what a device ran."""
    return {
        seat: [f"{action.stage}{action.kind}{action.microbatch}" for action in row]
        for seat, row in step.actions.items()
    }


@pytest.mark.parametrize("seed", range(examples(60)))
def test_the_replay_of_a_run_is_the_simulators(tmp_path: Path, seed: int):
    """Tests that the traces of a simulated run, read and replayed, give its makespan, stages, halves and order."""
    problem, plan = running(seed)
    timeline = simulate(problem, plan)
    documents = dict(traces(problem, plan))
    replica = {group[0]: index for stage in plan.stages for index, group in enumerate(stage.replicas)}
    stage_of = {group[0]: number for number, stage in reversed([*enumerate(plan.stages)]) for group in stage.replicas}
    order = sorted(documents.values(), key=lambda text: (replica[device_of(text)], stage_of[device_of(text)]))
    for rank, text in enumerate(order):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(json.loads(text) | {"rank": rank}))
    steps = read_run_steps([tmp_path])
    ends = [row[-1].end_ns for row in timeline.actions.values()]
    for step in steps:
        assert step.measured_ns == max(ends)
        assert replay_ns(step) == max(ends)
        assert run_order(step) == {
            (replica[device], place): [str(timed.action) for timed in timeline.actions[device]]
            for pipeline in range(len(plan.stages[0].replicas))
            for place, device in enumerate(
                dict.fromkeys(group[0] for stage in plan.stages for group in [stage.replicas[pipeline]])
            )
        }


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
    step = as_run_step(plan, timeline)
    ends = replay_ends_ns(step)
    for (pipeline, _), row in step.actions.items():
        for action in row:
            end = ends[pipeline, action.stage, action.kind, action.microbatch]
            assert end == action.start_ns + action.duration_ns


def as_run_step(plan: Plan, timeline: Timeline) -> RunStep:
    """A simulated plan as a trace tells it, every transfer with its own time on the link."""
    places = {
        device: place for place, device in enumerate(dict.fromkeys(g[0] for s in plan.stages for g in s.replicas))
    }
    actions = {
        (pipeline, places[device]): tuple(
            RunAction(
                kind=timed.action.kind,
                stage=timed.action.stage,
                microbatch=timed.action.microbatch,
                start_ns=timed.start_ns,
                duration_ns=timed.end_ns - timed.start_ns,
            )
            for timed in timeline.actions[device]
        )
        for stage in plan.stages
        for pipeline, (device,) in enumerate(stage.replicas)
    }
    lags = {(sent.from_stage, sent.direction[0].upper()): sent.end_ns - sent.start_ns for sent in timeline.transfers}
    count = 1 + max(action.microbatch for row in actions.values() for action in row)
    transfers: dict[Key, int] = {
        (pipeline, stage, way, number): lags.get((stage, way), 0)
        for pipeline in {pipeline for pipeline, _ in actions}
        for stage in range(len(plan.stages))
        for way in ("F", "B")
        for number in range(count)
    }
    return RunStep(number=0, actions=actions, transfers_ns=transfers)


def chunks_and_halves() -> tuple[Problem, Plan, RunStep]:
    """Two chunks on each of three devices, I and W apart, in some order, with latencies shorter than actions."""
    for seed in count():
        rng = Random(seed)
        problem = random_chain(rng, num_devices=3, num_layers=6)
        links = tuple(replace(link, bandwidth_bytes_per_s=10**15, latency_ns=40_000) for link in problem.cluster.links)
        problem = replace(problem, cluster=replace(problem.cluster, links=links))
        plan = random_running_plan(rng, problem)
        if problem.options.split_backward and len(plan.stages) == 6:
            return problem, plan, as_run_step(plan, simulate(problem, plan))
    raise AssertionError


def profiled(step: RunStep, *, place: int) -> dict[int, list[dict[str, Any]]]:
    """By rank marks, and NCCL's kernels for what goes from one device to another: a microsecond more per microbatch."""
    devices, last = step.of_stages(), max(stage for _, stage in step.of_stages())
    begin = 100e6 * place
    events: dict[int, list[dict[str, Any]]] = {rank: [] for _, rank in step.actions}
    for (_, stage, kind, number), action in step.keyed():
        rank = devices[0, stage][1]
        start, end = begin + action.start_ns / 1e3, begin + (action.start_ns + action.duration_ns) / 1e3
        events[rank].append(marked(f"PP:{stage}{kind}{number}", start, end - start))
        to = stage + 1 if kind == "F" else stage - 1
        if kind != "W" and 0 <= to <= last and (peer := devices[0, to][1]) != rank:
            lag = step.transfers_ns[0, stage, "F" if kind == "F" else "B", 0] / 1e3 + number
            events[rank].append(kernel("send", end, lag, peer=peer))
            events[peer].append(kernel("recv", end, lag, peer=rank))
    return {rank: sorted(row, key=lambda event: event["ts"]) for rank, row in events.items()}


def as_told(step: RunStep) -> dict[Key, int]:
    """What `profiled` tells of transfers, in the order in which they are used."""
    devices, last = step.of_stages(), max(stage for _, stage in step.of_stages())
    found: dict[Key, int] = {}
    counts = Counter[tuple[int, str]]()
    for (_, stage, kind, number), _ in step.keyed():
        maker, way = (stage - 1, "F") if kind == "F" else (stage + 1, "B")
        if kind != "W" and 0 <= maker <= last and devices[0, maker] != devices[0, stage]:
            key: Key = (0, maker, "F" if way == "F" else "B", counts[maker, way])
            found[key] = step.transfers_ns[*key[:3], 0] + 1000 * number
            counts[maker, way] += 1
    return found


@pytest.mark.parametrize("form", ["profiler", "chakra"])
def test_chunks_and_halves_are_read_from_marked_traces(tmp_path: Path, form: str):
    """Tests that marked traces of two chunks per device, I and W apart, are replayed as they ran, in their order."""
    *_, step = chunks_and_halves()
    for rank in range(3):
        events = [event for place in range(2) for event in profiled(step, place=place)[rank]]
        if form == "chakra":
            marks = [event for event in events if event["name"].startswith("PP:")]
            (tmp_path / f"linked_{rank}.json").write_text(as_linked(marks, rank))
        else:
            (tmp_path / f"{rank}.json").write_text(as_profiled(events, rank))
    (mine,) = read_run_steps([tmp_path])
    assert run_order(mine) == run_order(step)
    assert mine.measured_ns == pytest.approx(step.measured_ns, rel=1e-6)
    assert replay_ns(mine) == pytest.approx(mine.measured_ns, rel=0.005)
    if form == "profiler":
        assert mine.transfers_ns == as_told(step)


def own(folder: Path, *rows: list[list[Any]]) -> Path:
    for rank, row in enumerate(rows):
        (folder / f"rank{rank}.json").write_text(json.dumps({"rank": rank, "device": f"d{rank}", "iterations": [row]}))
    return folder


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


def job(folder: Path, peers: dict[int, list[int]], *, stage_of: list[int], **told: int) -> Path:
    """Three iterations of a microbatch per stage; every rank also exchanges with these others."""
    for rank in peers:
        events = []
        for step in range(3):
            for kind, start in (("F", 20 * (stage := stage_of[rank])), ("B", 200 - 20 * stage)):
                begin = 1000.0 * step + start
                events.append(marked(f"PP:{stage}{kind}0", begin, 15))
                for peer in peers[rank]:
                    is_sent = (kind == "F") == (rank < peer)
                    events.append(
                        kernel("send" if is_sent else "recv", begin + (15.5 if is_sent else -3), 1, peer=peer)
                    )
        document = json.dumps({"distributedInfo": {"rank": rank, **told}, "traceEvents": events})
        (folder / f"rank{rank}.json").write_text(document)
    return folder


SKIP = {0: [1, 2], 1: [0, 2], 2: [0, 1]}


@pytest.mark.parametrize("told", [{}, {"world_size": 3}])
def test_a_last_stage_may_receive_from_several(tmp_path: Path, told: dict[str, int]):
    """Tests that a skip connection, sent straight to a later stage, is read where all ranks are given."""
    steps = read_run_steps([job(tmp_path, SKIP, stage_of=[0, 1, 2], **told)])
    assert [sorted(step.actions) for step in steps] == [[(0, 0), (0, 1), (0, 2)]] * 2


@pytest.mark.parametrize("told", [{}, {"world_size": 4}])
def test_a_skip_connection_hides_no_missing_rank(tmp_path: Path, told: dict[str, int]):
    """Tests that only the ranks that were not given are named."""
    with pytest.raises(ValueError, match=r"exchanges with ranks 3, which were not; give the traces of all ranks$"):
        read_run_steps([job(tmp_path, SKIP | {2: [0, 1, 3]}, stage_of=[0, 1, 2], **told)])


def test_ranks_that_share_a_stages_samples_are_refused_for_that(tmp_path: Path):
    """Tests that context parallel ranks, which exchange within their stage, are not said to lack traces of others."""
    peers = {0: [1, 2], 1: [0, 3], 2: [0, 3], 3: [1, 2]}
    with pytest.raises(ValueError, match="do not show which of 4 ranks form a pipeline of 2 stages"):
        read_run_steps([job(tmp_path, peers, stage_of=[0, 0, 1, 1], world_size=4)])
