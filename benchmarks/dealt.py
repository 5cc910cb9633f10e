"""A production step whose microbatches differ, as a workload: `docs/benchmarks/dealt.md`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

from benchmarks.report import describe_commit
from planner.actions import Action
from planner.batch_problem import question_of_workload
from planner.dealing import Dealing, Durations, deal_durations, pipeline_actions
from planner.evidence.check_evidence import rederive
from planner.fidelity.advice import microbatches_of
from planner.fidelity.balance_advice import transfer_of
from planner.plan import Plan, Stage
from planner.planning import Limits, make_plan
from planner.problem import Options, Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.cluster import Cluster, Device, Link
from profiles.documents.validation import validate
from profiles.field_rules import MAX_BYTES
from profiles.importers.straggler import RunStep, read_straggler_trace
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from profiles.workload import Workload

HERE = Path(__file__).parent / "traces"

TARGET = Path(__file__).parents[1] / "docs" / "benchmarks" / "dealt.md"

BLOCKS = 8
"""Equal blocks that a stage is taken for."""

SECONDS = 300.0
"""Of planning."""

NAMES = ("rest", *(f"block{number}" for number in range(2 * BLOCKS)), "head")
"""Of the layers."""

AS_RUN = NAMES[: BLOCKS + 1], NAMES[BLOCKS + 1 :]
"""The stages of the job."""


def make_listed_workload(step: RunStep) -> Workload:
    """A step of SE: 64 devices, 256 microbatches, each with its own times for 16 equal blocks and what is beside them.

    The trace does not say how long sequences are: the size of a microbatch is what it took in all, in microseconds.
    What the first stage takes beyond 8 blocks is a layer before them, what the last does one behind them.
    """
    hands = microbatches_of(step)
    microbatches = [one for hand in hands.values() for one in hand]
    sizes = _distinct([sum(one.forward_ns + one.backward_ns) // 1000 for one in microbatches])
    rows = [_layer_times(one) for one in microbatches]
    layers = tuple(
        Layer(
            name=name,
            frozen=True,  # what follows the step's last action is not in it
            costs=tuple(
                LayerCost(
                    device_type="traced",
                    microbatch_size=size,
                    forward_ns=row[number][0],
                    input_grad_ns=row[number][1],
                    weight_grad_ns=0,
                )
                for size, row in sorted(zip(sizes, rows, strict=True))
            ),
        )
        for number, name in enumerate(NAMES)
    )
    devices = [f"p{pipeline:02}s{stage}" for pipeline in range(len(hands)) for stage in range(2)]
    lag = transfer_of(step)
    return Workload(
        profile=ModelProfile(
            name=f"SE, step {step.number}",
            layers=layers,
            edges=tuple(Edge(producer=a, consumer=b, bytes=0) for a, b in pairwise(NAMES)),
            microbatch_size=min(sizes),
            scaling="measured",
            provenance="benchmarks/traces/trace-SE.parquet; a stage is taken for 8 equal blocks. Memory unknown.",
        ),
        cluster=Cluster(
            name="SE",
            devices=tuple(Device(name=name, type="traced", memory_bytes=MAX_BYTES) for name in devices),
            links=tuple(
                Link(a=a, b=b, bandwidth_bytes_per_s=10**12, latency_ns=lag) for a, b in combinations(devices, 2)
            ),
        ),
        microbatches=tuple(sizes),
        options={"split_backward": False, "max_stages_per_device": 1, "max_replicas": len(hands)},
    )


def _distinct(sizes: Sequence[int]) -> list[int]:
    """The sizes, those that occur again a little larger."""
    known: set[int] = set()
    found = []
    for size in sizes:
        while size in known:
            size += 1
        known.add(size)
        found.append(size)
    return found


def _layer_times(one: Durations) -> list[tuple[int, int]]:
    """Of every layer forward and backward: the rest, the blocks, the head."""
    columns = []
    for first, last in (one.forward_ns, one.backward_ns):
        block = min(first, last) // BLOCKS
        columns.append([first - BLOCKS * block, *[block] * 2 * BLOCKS, last - BLOCKS * block])
    return list(zip(*columns, strict=True))


def as_plan(problem: Problem, dealing: Dealing) -> Plan:
    """A dealing as a plan: the stages of the job, 1F1B."""
    pipelines = range(len(dealing.pipelines))
    stages = tuple(
        Stage(layers=layers, replicas=tuple((f"p{pipeline:02}s{number}",) for pipeline in pipelines))
        for number, layers in enumerate(AS_RUN)
    )
    words: dict[str, list[Action]] = {}
    for pipeline, hand in enumerate(dealing.pipelines):
        for stage, place, is_forward in pipeline_actions(2, len(hand)):
            action = Action("F" if is_forward else "I", stage, hand[place])
            words.setdefault(f"p{pipeline:02}s{stage}", []).append(action)
    schedule = {device: tuple(word) for device, word in words.items()}
    return Plan(problem=problem.reference(), stages=stages, schedule=schedule, dealing=dealing.pipelines)


def render_rows(step: RunStep) -> Iterator[str]:
    """What the step takes as run, dealt anew, and as planned: with the job's stages, and with any."""
    workload = make_listed_workload(step)
    problem = question_of_workload(workload, validate(Options, workload.options, source="options"))
    yield f"| as run, measured | {step.measured_ns / 1e9:.3f} | | |"
    everything = [one for hand in microbatches_of(step).values() for one in hand]
    dealing = deal_durations(everything, len(microbatches_of(step)), transfer_ns=transfer_of(step))
    plan = as_plan(problem, dealing)
    assert verify(problem, plan).passed
    time, bound = simulate(problem, plan).makespan_ns, dealing.lower_bound_ns
    figures = f"{time / 1e9:.3f} | {bound / 1e9:.3f} | {1 - bound / time:.1%}"
    yield f"| dealt by `planner.dealing`, as a judged plan | {figures} |"
    as_cut = replace(problem, options=replace(problem.options, partition=AS_RUN))
    for name, question in (("planned, stages as run", as_cut), ("planned, any stages", problem)):
        plan = make_plan(question, limits=Limits(time_limit_s=SECONDS))
        assert plan.evidence is not None
        assert rederive(question, plan, with_baselines=False).passed
        cut = " + ".join(f"{len(stage.layers)} layers x {len(stage.replicas)}" for stage in plan.stages)
        evidence = plan.evidence
        figures = f"{evidence.makespan_ns / 1e9:.3f} | {evidence.lower_bound_ns / 1e9:.3f} | {evidence.gap:.1%}"
        yield f"| {name}: {cut} | {figures} |"


def render() -> str:
    steps = read_straggler_trace(HERE / "trace-SE.parquet")
    step = sorted(steps, key=lambda each: each.measured_ns)[(len(steps) - 1) // 2]
    lines = [
        "# Microbatches that differ",
        "",
        "`python -m benchmarks.dealt` makes this page. The median step of SE (benchmarks/traces) as a workload that",
        "lists its 256 microbatches, on 64 devices, with at most 32 replicas and one stage per device. Each microbatch",
        "has its own times. A stage is taken for 8 equal blocks; what the first takes beyond them is a layer before",
        "them, what the last does one behind them. Memory is not in the trace. Bounds hold for any number of",
        f"pipelines, any cut where stages are free, and any order. Planned for {SECONDS:g} s.",
        "",
        "| | s | no plan is below, s | gap |",
        "|---|---|---|---|",
        *render_rows(step),
        "",
        f"Commit: {describe_commit()}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
    print(TARGET.read_text(encoding="utf-8"))
