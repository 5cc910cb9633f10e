"""What would help a job, by its trace: figures of the library, a plan for what can be planned, both in words."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from api.inputs import make_problem, reading
from api.planning_run import Effort, run_plan
from planner.export.targets import MOST_CHUNKS, TARGETS, restrict_problem
from planner.fidelity.advice import FEWEST_PEERS, Advice, advise, make_block_workload
from planner.plan import Plan
from planner.planning.starts.annealed_deals import CompiledAnnealing
from planner.progress import Limits
from profiles.importers.rank_steps import read_run_steps

TARGET = "megatron"
"""The program for which a plan is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceResult:
    """Advice on a production trace, and the plan made for it."""

    advice: Advice
    """From the trace alone."""
    plan: Plan | None
    """For the blocks that are assumed; None where microbatches differ."""
    blocks_per_stage: int
    """So many are assumed."""


def advise_on(trace: str, *, blocks_per_stage: int, time_limit_s: float, console: Console) -> AdviceResult:
    """Read, replay, and plan where all microbatches are alike."""
    with reading():
        steps = read_run_steps([Path(trace)])
        advice = advise(steps, blocks_per_stage=blocks_per_stage, annealing=CompiledAnnealing())
        if not advice.is_alike:
            return AdviceResult(advice=advice, plan=None, blocks_per_stage=blocks_per_stage)
        workload = make_block_workload(steps, blocks_per_stage=blocks_per_stage, name=Path(trace).name)
    problem = make_problem(workload, changes={"max_stages_per_device": MOST_CHUNKS})
    effort = Effort(limits=Limits(time_limit_s=time_limit_s), style="quiet")
    program = TARGETS[TARGET]
    plan, _ = run_plan(restrict_problem(problem, program), effort, console=console, target=program)
    return AdviceResult(advice=advice, plan=plan, blocks_per_stage=blocks_per_stage)


def summarise_advice(said: AdviceResult) -> dict[str, Any]:
    """The advice as JSON-ready data."""
    evidence = None if said.plan is None else said.plan.evidence
    planned = None
    if evidence is not None:
        planned = {"makespan_ns": evidence.makespan_ns, "lower_bound_ns": evidence.lower_bound_ns, "target": TARGET}
    return {**asdict(said.advice), "plan": planned, "blocks_per_stage": said.blocks_per_stage}


def describe_advice(said: AdviceResult) -> list[str]:
    """The advice for people, line by line."""
    advice = said.advice
    lines = [
        f"measured  {advice.measured_ns / 1e6:,.1f} ms (median step; pipelines: {advice.num_pipelines}, stages: "
        f"{advice.num_stages}); replayed {advice.replayed_ns / 1e6:,.1f} "
        f"({advice.replayed_ns / advice.measured_ns - 1:+.2%})",
        f"busiest   stage {advice.busiest_stage}: its busiest device computes {advice.busy:.1%} of the step",
    ]
    lines += [
        f"slow      {slow.what}: {slow.factor:.2f} times its peers; as fast as they are, the step "
        f"would take {slow.effect_ns / 1e6:,.1f} ms less"
        for slow in advice.slow[:8]
    ] or ["slow      no stage, device or link stands out"]
    if advice.num_pipelines < FEWEST_PEERS:
        lines.append(
            "devices   none can be named: in a single pipeline no two devices do the same"
            if advice.num_pipelines == 1
            else "devices   none can be named: where two do the same and differ, either may be the unusual one; "
            f"give a trace of {FEWEST_PEERS} pipelines"
        )
    if not advice.is_plain and len(advice.remedies) == 1:
        lines.append(
            "remedies  other orders only: other assignments, placements and partitions need pipelines whose devices "
            "have the same stages, with microbatches that run through all of them"
        )
    for remedy in advice.remedies:
        lines.append(
            f"would be  {_against(remedy.makespan_ns, advice)}: {remedy.what}; none ends before "
            f"{remedy.lower_bound_ns / 1e6:,.1f} ms"
        )
    evidence = None if said.plan is None else said.plan.evidence
    if evidence is None:
        lines.append("planned   nothing: microbatches differ, and such plans need equal ones")
    else:
        lines.append(
            f"would be  {_against(evidence.makespan_ns, advice)}: planned for Megatron (1F1B or interleaved; assumes "
            f"that a stage is {said.blocks_per_stage} equal blocks and that what the last takes longer is one layer); "
            f"no plan ends before {evidence.lower_bound_ns / 1e6:,.1f} ms"
        )
    return lines


def _against(makespan_ns: int, advice: Advice) -> str:
    return f"{makespan_ns / 1e6:,.1f} ms ({makespan_ns / advice.measured_ns - 1:+.1%})"
