"""Every step of two production jobs, replayed under the contract: `docs/benchmarks/traces.md`."""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from api.advising import advise_on
from benchmarks.report import describe_commit
from planner.fidelity.redealt import deal_anew
from planner.fidelity.run_replay import replay_ends_ns, replay_ns
from profiles.importers.straggler import Key, RunStep, Seat, read_straggler_trace

HERE = Path(__file__).parent / "traces"

TARGET = Path(__file__).parents[1] / "docs" / "benchmarks" / "traces.md"

JOBS = {
    "ST": "2 pipelines of 4 stages, loss on the last stage",
    "SE": "32 pipelines of 2 stages, sequence lengths differ",
}


def with_means(step: RunStep) -> dict[Key, int]:
    """Every action at the mean of its stage and kind: what a planner sees that takes microbatches for identical."""
    spans: dict[tuple[int, str], list[int]] = {}
    for (_, stage), row in step.actions.items():
        for action in row:
            spans.setdefault((stage, action.kind), []).append(action.duration_ns)
    return {
        (pipeline, stage, action.kind, action.microbatch): round(statistics.fmean(spans[stage, action.kind]))
        for (pipeline, stage), row in step.actions.items()
        for action in row
    }


COLLECTIVES = {
    "params-all-gather": ("stage",),
    "grads-reduce-scatter": ("stage",),
    "layernorm-grads-all-reduce": ("rank",),
    "embedding-grads-all-reduce": ("dp_rank",),
    "optimizer-clip-main-grad": (),
    "optimizer": ("rank",),
}
"""What runs around the pipeline, one after the other, and who takes part in one of each; the first before it."""

Around = dict[str, dict[tuple[Any, ...], dict[Seat, float]]]
"""Of a step: by operation, then group, what each member takes from when all are ready."""


def read_around(path: Path) -> dict[int, Around]:
    """By step what runs around its pipelines, in ns."""
    from pyarrow import parquet

    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in parquet.read_table(path).to_pylist():
        if (members := COLLECTIVES.get(row["optype"])) is not None:
            groups.setdefault((row["step"], row["optype"], *(row[name] for name in members)), []).append(row)
    found: dict[int, Around] = {}
    for (step, name, *group), rows in groups.items():
        ready = max(row["start_ts"] for row in rows)
        spans = {
            (row["dp_rank"], row["stage"]): max(0.0, row["start_ts"] + row["duration"] - ready) * 1e9 for row in rows
        }
        found.setdefault(step, {}).setdefault(name, {})[tuple(group)] = spans
    return found


def usual_around(around: Iterable[Around]) -> dict[str, float]:
    """By operation what it takes as a rule: as the authors idealise it, means of computing and medians of the rest."""
    spans: dict[str, list[float]] = {}
    for step in around:
        for name, groups in step.items():
            spans.setdefault(name, []).extend(span for group in groups.values() for span in group.values())
    return {
        name: (statistics.fmean if name == "optimizer" else statistics.median)(each) for name, each in spans.items()
    }


def end_of_step(ends: Mapping[Seat, int], around: Around, *, ideal: Callable[[str, int], float | None]) -> float:
    """When a step's last operation ends, by when its pipelines do; `ideal`: another span of a stage's operation."""
    now = {seat: float(end) for seat, end in ends.items()}
    before, *after = COLLECTIVES
    for name in after:
        for group in around[name].values():
            ready = max(now[seat] for seat in group)
            for seat, span in group.items():
                other = ideal(name, seat[1])
                now[seat] = ready + (span if other is None else other)
    other = ideal(before, 0)
    spans = [span for group in around[before].values() for seat, span in group.items() if seat[1] == 0]
    return max(now.values()) + (max(spans) if other is None else other)


def straggling(steps: Sequence[RunStep], *, around: Mapping[int, Around] | None = None) -> tuple[float, ...]:
    """Slowdown by all that is not as on average, that by the last stage alone, and its part of the whole."""
    last = max(stage for _, stage in steps[0].actions)
    lags: dict[str, list[int]] = {"F": [], "B": []}
    for step in steps:
        for (_, _, kind, _), lag in step.transfers_ns.items():
            lags[kind].append(lag)
    middle = {kind: round(statistics.median(each)) for kind, each in lags.items()}
    usual = usual_around(around.values()) if around else {}

    def mean_ns(is_ideal: Callable[[int], bool]) -> float:
        """With actions of some stages, and what these send and receive, as on average."""
        return statistics.fmean(play(step, is_ideal) for step in steps)

    def play(step: RunStep, is_ideal: Callable[[int], bool]) -> float:
        transfers = {
            key: middle[key[2]] if is_ideal(key[1]) or is_ideal(key[1] + (1 if key[2] == "F" else -1)) else lag
            for key, lag in step.transfers_ns.items()
        }
        played = replay_ends_ns(replace(step, transfers_ns=transfers), durations_ns=idealised(step, is_ideal))
        ends: dict[Seat, int] = {}
        for (pipeline, stage, _, _), end in played.items():
            ends[pipeline, stage] = max(end, ends.get((pipeline, stage), 0))
        if around is None:
            return max(ends.values())
        return end_of_step(
            ends, around[step.number], ideal=lambda name, stage: usual[name] if is_ideal(stage) else None
        )

    own, ideal, without = mean_ns(lambda _: False), mean_ns(lambda _: True), mean_ns(lambda stage: stage == last)
    return own / ideal, own / without, (own - without) / (own - ideal)


def idealised(step: RunStep, is_ideal: Callable[[int], bool]) -> dict[Key, int]:
    """Actions of some stages at the mean of their kind over the step."""
    spans: dict[str, list[int]] = {"F": [], "B": []}
    for row in step.actions.values():
        for action in row:
            spans[action.kind].append(action.duration_ns)
    return {
        (*seat, action.kind, action.microbatch): round(statistics.fmean(spans[action.kind]))
        for seat, row in step.actions.items()
        for action in row
        if is_ideal(seat[1])
    }


def render_straggling() -> list[str]:
    rows = []
    for job in JOBS:
        path = HERE / f"trace-{job}.parquet"
        steps = read_straggler_trace(path)
        theirs = json.loads((HERE / f"ms-{job}.json").read_text(encoding="utf-8"))
        published = theirs["tori"] / theirs["tideal"], theirs["tori"] / theirs["trem"], theirs["Ms"]
        for what, around in (("pipeline alone", None), ("with what runs around it", read_around(path))):
            ours = straggling(steps, around=around)
            cells = " | ".join(f"{a:.4f} | {b:.4f} | {a / b - 1:+.2%}" for a, b in zip(ours, published, strict=True))
            rows.append(f"| {job} | {what} | {cells} |")
    return [
        "",
        "## Stragglers, beside the published analysis",
        "",
        "Slowdown: replay over the replay with every action at the mean of its kind and every transfer at the",
        "median; over the replay with the last stage alone like that; and the part of the first difference that",
        "vanishes then. Published: `tori / tideal`, `tori / trem` and `Ms` of the authors' own analysis, whose steps",
        "include the collectives and the optimizer around the pipeline and idealise these too. In the second row of",
        "a job they are played around our replay: each waits for all who take part, then takes what it took.",
        "",
        "| job | | slowdown | published | | by the last stage | published | | its part | published | |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *rows,
    ]


def render_dealing() -> list[str]:
    """Every step of the job whose microbatches differ, dealt anew."""
    steps = read_straggler_trace(HERE / "trace-SE.parquet")
    measured = [step.measured_ns for step in steps]
    anew = [(replay_ns(again), dealing) for again, dealing in map(deal_anew, steps)]
    columns = [
        ("as run, measured", measured),
        ("longest first onto the least loaded", [dealing.longest_first_ns for _, dealing in anew]),
        ("dealt by `planner.dealing`, replayed", [time for time, _ in anew]),
        ("no dealing ends before", [dealing.lower_bound_ns for _, dealing in anew]),
    ]
    return [
        "",
        "## Microbatches dealt anew",
        "",
        "SE: 256 microbatches of uneven length on 32 pipelines of 2 stages, layers left where they are; each",
        "microbatch keeps its own durations, pipelines run 1F1B, transfers take the step's median.",
        f"Gap: {statistics.median(dealing.gap for _, dealing in anew):.1%} in the median step, "
        f"{max(dealing.gap for _, dealing in anew):.1%} at worst.",
        "",
        "| | median s | longest step s |",
        "|---|---|---|",
        *(f"| {name} | {statistics.median(row) / 1e9:.3f} | {max(row) / 1e9:.3f} |" for name, row in columns),
    ]


def render_advice() -> list[str]:
    """The median step of either job, as `pipeplan advise` sees it, and a plan for Megatron."""
    lines = [
        "",
        "## Advice",
        "",
        "`pipeplan advise benchmarks/traces/trace-ST.parquet` and the same of SE, median steps. Other cuts assume",
        "that a stage is so many equal blocks, and that what the last stage takes longer (head and loss) stays",
        "there or is one layer; where microbatches differ, other cuts are annealed. The plan for Megatron (1F1B",
        "or interleaved) is for the trace's means, after 10 s of search. Bounds are certified for the durations as",
        "traced, with one stage per device and 1F1B for other cuts, and that of the plan for the blocks that are",
        "assumed. Devices at other places stay in the order as run; their bound allows any order within a pipeline,",
        "with the fastest device everywhere.",
        "",
        "| job | blocks per stage | change | s | against measured | no such change ends before, s | gap |",
        "|---|---|---|---|---|---|---|",
    ]
    for job, blocks in (("ST", 2), ("ST", 8), ("SE", 8)):
        said = advise_on(
            str(HERE / f"trace-{job}.parquet"), blocks_per_stage=blocks, time_limit_s=10, console=Console(stderr=True)
        )
        found = [(each.what.partition(" (")[0], each.makespan_ns, each.lower_bound_ns) for each in said.advice.remedies]
        if said.plan is not None and said.plan.evidence is not None:
            evidence = said.plan.evidence
            found.append(("planned for Megatron", evidence.makespan_ns, evidence.lower_bound_ns))
        lines += [
            f"| {job} | {blocks} | {what} | {time / 1e9:.3f} | "
            f"{time / said.advice.measured_ns - 1:+.1%} | {bound / 1e9:.3f} | {1 - bound / time:.1%} |"
            for what, time, bound in found
        ]
    return lines


def percent(values: list[float]) -> str:
    return f"{statistics.median(values):+.2%} | {max(values, key=abs):+.2%}"


def render() -> str:
    lines = [
        "# Production steps, replayed",
        "",
        "`python -m benchmarks.traces` makes this page. Each step is played in the order as run: an action starts when",
        "its device is free and its input has arrived. Measured: from the first start of an action to the last",
        "end of one; what follows (reduction, optimizer) is not replayed. Error = replay / measured - 1.",
        "",
        "| job | | steps | measured, median s | own durations: median | worst | means per stage: median | worst |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for job, about in JOBS.items():
        steps = read_straggler_trace(HERE / f"trace-{job}.parquet")
        own = [replay_ns(step) / step.measured_ns - 1 for step in steps]
        means = [replay_ns(step, durations_ns=with_means(step)) / step.measured_ns - 1 for step in steps]
        measured = statistics.median(step.measured_ns for step in steps) / 1e9
        lines.append(f"| {job} | {about} | {len(steps)} | {measured:.3f} | {percent(own)} | {percent(means)} |")
    lines += [
        *render_straggling(),
        *render_dealing(),
        *render_advice(),
        "",
        f"Commit: {describe_commit()}.",
        "",
        "## Reading",
        "",
        "`pipeplan import trace` read a file of 0.99 GiB (10.7 million operations: SE a hundred times,",
        "uncompressed) with at most 176 MiB resident, in six minutes on a busy core. `deal` takes 60 to 80 ms of a",
        "core for a step of SE.",
        "A transfer takes from when both ends were ready until it had arrived, as traced.",
        "The traces and their licence are in `benchmarks/traces`.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
    print(TARGET.read_text(encoding="utf-8"))
