"""Every step of two production jobs, replayed under the contract: `docs/benchmarks/traces.md`."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from api.advising import advise_on
from benchmarks.report import describe_commit
from benchmarks.step_picture import draw_step
from planner.dealing import Durations
from planner.fidelity.advice import cut_anew
from planner.fidelity.placed_anew import place_anew
from planner.fidelity.redealt import deal_anew, order_1f1b
from planner.fidelity.run_pipelines import find_shape
from planner.fidelity.run_replay import replay_ends_ns, replay_ns
from planner.planning.annealed_hands import CompiledAnnealing
from profiles.importers.straggler import Key, RunStep, Seat, read_straggler_trace

HERE = Path(__file__).parent / "traces"

DOCS = Path(__file__).parents[1] / "docs"

TARGET, PICTURE = DOCS / "benchmarks" / "traces.md", DOCS / "images" / "trace-st-replay.svg"

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


FIGURES = {
    "all as it was, over all ideal": lambda told: told["tori"] / told["tideal"],
    "all as it was, over the last stage ideal": lambda told: told["tori"] / told["trem"],
    "part that vanishes with the last stage ideal": lambda told: told["Ms"],
    "the last stage alone as it was, over all ideal": lambda told: told["tadd"] / told["tideal"],
    "part that the last stage alone brings": lambda told: told["add"],
}
"""What the authors published, from the numbers of their files; ideal: as on average."""


def straggling(steps: Sequence[RunStep], *, around: Mapping[int, Around] | None = None) -> tuple[float, ...]:
    """What all, or the last stage, cost by not being as on average, in the order of `FIGURES`."""
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
    alone = mean_ns(lambda stage: stage != last)
    whole = own - ideal
    return own / ideal, own / without, (own - without) / whole, alone / ideal, (alone - ideal) / whole


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
        alone, around = straggling(steps), straggling(steps, around=read_around(path))
        for (what, published), pipeline, whole in zip(FIGURES.items(), alone, around, strict=True):
            told = published(theirs)
            rows.append(
                f"| {job} | {what} | {told:.4f} | {whole:.4f} | {whole / told - 1:+.2%} | "
                f"{pipeline:.4f} | {pipeline / told - 1:+.2%} |"
            )
    return [
        "",
        "## Stragglers, beside the published analysis",
        "",
        "Ideal: every action at the mean of its kind and every transfer at the median, of all stages or of some. The",
        "published figures are from the authors' own analysis (`ms-*.json`), whose steps include the collectives and",
        "the optimizer around the pipeline and idealise these too. Around our replay they are played as well: each",
        "waits for all who take part, then takes what it took. The last two columns are the pipeline by itself.",
        "",
        "| job | | published | replayed | | pipeline alone | |",
        "|---|---|---|---|---|---|---|",
        *rows,
    ]


def render_dealing() -> list[str]:
    """Every step of the job whose microbatches differ, dealt anew."""
    steps = read_straggler_trace(HERE / "trace-SE.parquet")
    measured = [step.measured_ns for step in steps]
    anew, seconds = [], []
    for step in steps:
        begin = time.process_time()
        again, dealing = deal_anew(step)
        seconds.append(time.process_time() - begin)
        anew.append((replay_ns(again), dealing))
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
        f"{max(dealing.gap for _, dealing in anew):.1%} at worst. Processor time of a dealing with its bound:",
        f"{statistics.median(seconds) * 1e3:.0f} ms in the median step, {max(seconds) * 1e3:.0f} ms at worst "
        "(target: 100 ms).",
        "",
        "| | median s | longest step s |",
        "|---|---|---|",
        *(f"| {name} | {statistics.median(row) / 1e9:.3f} | {max(row) / 1e9:.3f} |" for name, row in columns),
    ]


def render_cuts() -> list[str]:
    """Every step of the same job, cut and dealt anew."""
    steps = read_straggler_trace(HERE / "trace-SE.parquet")
    CompiledAnnealing(trials=1)([[0]], microbatches=[Durations(forward_ns=(1, 1), backward_ns=(1, 1))], transfer_ns=0)
    found, seconds = [], []
    for step in steps:
        begin = time.process_time()
        other = cut_anew(step, blocks_per_stage=8, annealing=CompiledAnnealing())
        seconds.append(time.process_time() - begin)
        assert other is not None, step.number
        found.append((replay_ns(other.step), other.lower_bound_ns))
    gaps = [1 - bound / time for time, bound in found]
    columns = [
        ("cut and dealt anew, replayed", [time for time, _ in found]),
        ("none ends before", [b for _, b in found]),
    ]
    return [
        "",
        "## Cut anew, and dealt anew",
        "",
        f"SE, all {len(steps)} steps: a stage is 8 equal blocks, any number is left on the last, dealings annealed.",
        f"Gap: median {statistics.median(gaps):.1%}, worst of all steps {max(gaps):.1%} (target: 5 %). Processor",
        f"time of a step, all its cuts with their bounds: median {statistics.median(seconds):.1f} s, "
        f"worst {max(seconds):.1f} s.",
        "",
        "| | median s | longest step s |",
        "|---|---|---|",
        *(f"| {name} | {statistics.median(row) / 1e9:.3f} | {max(row) / 1e9:.3f} |" for name, row in columns),
    ]


def render_placing() -> list[str]:
    """Every step of the same job, devices placed anew."""
    steps = read_straggler_trace(HERE / "trace-SE.parquet")
    found, seconds = [], []
    for step in steps:
        begin, shape = time.process_time(), find_shape(step)
        placed = None if shape is None else place_anew(steps, step, shape=shape, order=order_1f1b)
        assert placed is not None, step.number
        found.append(placed)
        seconds.append(time.process_time() - begin)
    gaps = [1 - one.lower_bound_ns / one.makespan_ns for one in found]
    return [
        "",
        "## Placed anew",
        "",
        f"SE, all {len(steps)} steps: any device at any place, pipelines in the order as run or 1F1B in another order",
        f"of their microbatches. Gap: median {statistics.median(gaps):.1%}, worst of all steps {max(gaps):.1%} "
        "(target: 5 %). Devices that",
        f"stand elsewhere: {sum(one.num_moved for one in found)}, for chance explains what they differ by. Processor "
        "time of a",
        f"step: median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s.",
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
        "assumed. Devices at other places, and pipelines in another order where that ends sooner: the bound allows any",
        "order within a pipeline. A device that chance may have made slow counts as its peers (docs/bounds.md).",
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


READER = """\
import re, sys
from pathlib import Path
from profiles.importers.trace_summary import summarise_traces
summary = summarise_traces([Path(sys.argv[1])])
peak = re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]
print(sum(each.count for each in summary.cells.values()), int(peak) * 1024)
"""
"""A process of its own, whose peak is that of reading (`ru_maxrss` would count its parent's)."""


def render_reading(copies: int) -> list[str]:
    """What importing the larger job takes, so many times in one file, uncompressed."""
    import pyarrow
    from pyarrow import parquet

    whole = parquet.read_table(HERE / "trace-SE.parquet")
    wide = {"optype": pyarrow.string(), "start_ts": pyarrow.float64(), "duration": pyarrow.float64()}
    whole = whole.cast(pyarrow.schema([field.with_type(wide.get(field.name, field.type)) for field in whole.schema]))
    steps, place = whole.column("step"), whole.column_names.index("step")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "many.parquet")
        with parquet.ParquetWriter(path, whole.schema, compression="none", use_dictionary=False) as writer:
            for number in range(copies):
                moved = pyarrow.array([step + 10**6 * number for step in steps.to_pylist()], type=steps.type)
                writer.write_table(whole.set_column(place, whole.schema.field(place), moved))
        size = path.stat().st_size
        done = subprocess.run([sys.executable, "-c", READER, str(path)], capture_output=True, text=True, check=True)
    actions, peak = map(int, done.stdout.split())
    return [
        f"`pipeplan import trace` read a file of {size / 2**30:.2f} GiB ({copies * whole.num_rows:,} operations: SE "
        f"{copies} times,",
        f"uncompressed; {actions:,} of them forwards and backwards) with at most {peak / 2**20:.0f} MiB resident.",
    ]


def percent(values: list[float]) -> str:
    return f"{statistics.median(values):+.2%} | {max(values, key=abs):+.2%}"


def render(copies: int) -> str:
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
        "",
        f"![The median step of ST as run, and replayed](../images/{PICTURE.name})",
        *render_straggling(),
        *render_dealing(),
        *render_cuts(),
        *render_placing(),
        *render_advice(),
        "",
        f"Commit: {describe_commit()}.",
        "",
        "## Reading",
        "",
        *render_reading(copies),
        "A transfer takes from when both ends were ready until it had arrived, as traced.",
        "The traces and their licence are in `benchmarks/traces`.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=100, help="of SE in the large file: a hundred are 1 GiB")
    steps = sorted(read_straggler_trace(HERE / "trace-ST.parquet"), key=lambda step: step.measured_ns)
    step = steps[(len(steps) - 1) // 2]
    PICTURE.write_text(draw_step(step, title=f"ST, step {step.number}"), encoding="utf-8")
    TARGET.write_text(render(parser.parse_args().copies), encoding="utf-8")
    print(TARGET.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
