"""The best of every kind of plan that people choose among, over all sizes of microbatches that may be chosen.

A kind is what runs at once: one process; copies of the model that take a share of the batch, at once or microbatch
after microbatch; the same with sharded weights; a pipeline; a pipeline some of whose stages have replicas.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Literal, get_args

from planner.baselines.applicability import DoesNotApplyError, require_choices
from planner.baselines.data_parallel import make_replicated_stage, make_single_stage_plan
from planner.baselines.fully_sharded import NAME as FULLY_SHARDED
from planner.baselines.fully_sharded import allowing_full_shards, make_fully_sharded_plan, recompute_choices
from planner.baselines.layouts import EVEN, GIVEN, ONE_EACH, SMALLEST_LARGEST, TRANSFERS_TOO
from planner.baselines.registry import METHODS, Baseline, all_methods, make_method_plan, play_baseline
from planner.baselines.spp.plans import make_spp_plan
from planner.batch_problem import batch_problem_of, candidates_of
from planner.clock import HasTime, always
from planner.errors import OutOfRangeError, PlanError
from planner.layout.costs import CostModel
from planner.layout.device_groups import listed_blocks, open_widths
from planner.plan import BaselineResult, DeviceGroup, Plan, Stage
from planner.problem import Problem
from profiles.field_rules import MAX_WIDTH

Kind = Literal[
    "one process", "data parallel at once", "data parallel, accumulating", "fully sharded", "pipeline", "mixed"
]
"""`at once`: one microbatch per replica and iteration; `mixed`: a pipeline that has stages with replicas."""

KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class KindResult:
    """The best plan of one kind."""

    kind: Kind
    row: BaselineResult
    """What it takes, with the name of the method that made it."""
    problem: Problem
    """At the size of microbatches that it has, with the option that its kind needs."""
    plan: Plan
    breaks: str = ""
    """The option that it does not keep to, in a phrase; empty if it keeps to all."""
    refused: str = ""
    """Why the program that the plan is for cannot run it; empty if it can."""

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Those that fit and may be run first, the fastest of them before all."""
        return not self.row.fits_memory, bool(self.breaks or self.refused), self.row.makespan_ns or 0


def kind_of_stages(stages: Sequence[Stage], *, num_microbatches: int) -> Kind:
    """What a plan with these stages is."""
    most = max(len(stage.replicas) for stage in stages)
    if any(stage.is_fully_sharded for stage in stages):
        return "fully sharded"
    if len(stages) > 1:
        return "mixed" if most > 1 else "pipeline"
    if most == 1:
        return "one process"
    return "data parallel at once" if num_microbatches == 1 else "data parallel, accumulating"


Fit = Callable[[Problem, Plan], Plan]
"""A plan as a program runs it; raises ValueError or PlanError with the reason where it cannot."""


def best_of_kinds(
    problem: Problem, plan: Plan, *, fit: Fit = lambda _, plan: plan, has_time: HasTime = always
) -> dict[Kind, KindResult]:
    """The plan, for its own kind, and the best of each other kind that was found; kinds without any are left out.

    What a program runs otherwise (`fit`) is played as it runs it.

    Looked at are the sizes of the problem's global batch, or its own, quickly: simple methods, and SPP for stages with
    replicas. Once `has_time` denies it, sizes are left out, the smallest first, and kinds that take long.
    """
    if problem.microbatches is not None or problem.only_wider:
        return {}
    own = kind_of_stages(plan.stages, num_microbatches=problem.num_microbatches)
    best = {own: KindResult(kind=own, row=own_row(problem, plan), problem=problem, plan=plan)}
    stated = _best_stated(problem, plan) if has_time() else ()
    for made in chain(stated, _all_found(problem, has_time=has_time)):
        found = made if made.kind == own else _as_run(made, fit)
        if found.kind != own and (found.kind not in best or found.rank < best[found.kind].rank):
            best[found.kind] = found
    return {kind: best[kind] for kind in KINDS if kind in best}


def _as_run(made: KindResult, fit: Fit) -> KindResult:
    try:
        plan = fit(made.problem, made.plan)
    except (ValueError, PlanError) as reason:
        return replace(made, refused=str(reason))
    if plan == made.plan:
        return made
    played = [*_played(CostModel(made.problem), plan, name=made.row.name)]
    return replace(made, plan=plan, row=played[0].row) if played else made


OWN, ONE_PROCESS = "this plan", "one process"
"""The names of two rows."""


def own_row(problem: Problem, plan: Plan) -> BaselineResult:
    """A finished plan among methods, by its evidence."""
    evidence = plan.evidence
    assert evidence is not None, "a finished plan carries its evidence"
    memory = problem.cluster.by_name
    parts = (size / max(1, memory[name].usable_bytes) for name, size in evidence.peak_bytes.items())
    return BaselineResult(
        name=OWN,
        makespan_ns=evidence.makespan_ns,
        span_ns=evidence.span_ns,
        bubble=evidence.bubble,
        peak_fraction=max(parts, default=None),
        fits_memory=True,
        note=evidence.source,
    )


def why_no_replicas(problem: Problem) -> str:
    """Why the whole model cannot be replicated at any size that may be chosen, in a phrase; empty where it can."""
    reason = ""
    for candidate in candidates_of(batch_problem_of(problem) or problem):
        costs = CostModel(candidate)
        try:
            require_choices(costs, make_replicated_stage(costs))
            return ""
        except DoesNotApplyError as found:
            reason = str(found)
    return reason


def _best_stated(problem: Problem, plan: Plan) -> Iterator[KindResult]:
    """The fastest pipeline among the baselines of the plan's evidence, which come by more methods and cuts."""
    assert plan.evidence is not None, "a finished plan carries its evidence"
    rows = {row.name: row for row in plan.evidence.baselines if row.fits_memory and row.makespan_ns is not None}
    makers = {
        f"{method.name} ({cut.name})": partial(make_method_plan, method=method, cut=cut)
        for method in all_methods(problem)
        for cut in (EVEN, SMALLEST_LARGEST, TRANSFERS_TOO, GIVEN)
    }
    known = sorted(rows.keys() & makers.keys(), key=lambda name: (rows[name].makespan_ns or 0, name))
    for name in known[:1]:
        costs = CostModel(problem)
        yield from _played(costs, makers[name](costs), name=name)


def _all_found(problem: Problem, *, has_time: HasTime) -> Iterator[KindResult]:
    question = batch_problem_of(problem) or problem
    for candidate in sorted(candidates_of(question), key=lambda each: each.num_microbatches):
        if has_time():
            yield from _found_at(CostModel(candidate), has_time=has_time)


def _found_at(costs: CostModel, *, has_time: HasTime) -> Iterator[KindResult]:
    """What simple methods make of one size."""
    for name, make in _makers(costs, has_time=has_time):
        try:
            plan = make() if has_time() else None
        except (DoesNotApplyError, OutOfRangeError):
            plan = None
        if plan is not None:
            yield from _played(costs, plan, name=name)
    for find in (_one_process, _fully_sharded):
        if has_time():
            yield from find(costs.problem)


def _one_process(problem: Problem) -> Iterator[KindResult]:
    """The quickest that fits of a device alone, and of groups of one host that all layers were measured on: threads of
    a process, or tensor parallelism. Whether or not the options ask for groups.
    """
    wide = replace(problem, options=replace(problem.options, max_width=MAX_WIDTH))
    costs, found = CostModel(wide), list[KindResult]()
    for group in ((_fastest(costs),), *_host_groups(wide)):
        stage, width = Stage(layers=problem.profile.topological_order, replicas=(group,)), len(group)
        try:
            plan = make_single_stage_plan(costs, (stage,))
        except (ValueError, OutOfRangeError):  # a layer was not measured so wide
            continue
        for each in _played(costs, plan, name=ONE_PROCESS if width == 1 else f"{ONE_PROCESS} on {width} devices"):
            needs = f"needs --max-width {width}" if width > problem.options.max_width else each.breaks
            found.append(replace(each, breaks=needs))
    yield from sorted(found, key=lambda each: (not each.row.fits_memory, each.row.makespan_ns))[:1]


def _host_groups(problem: Problem) -> Iterator[DeviceGroup]:
    """The first of each width and type within a host."""
    devices, seen = problem.cluster.by_name, set[tuple[int, str]]()
    for width in open_widths(problem):
        for group in listed_blocks(problem, width):
            kind = width, devices[group[0]].type
            if kind not in seen and len({devices[name].host or name for name in group}) == 1:
                seen.add(kind)
                yield group


def _fully_sharded(problem: Problem) -> Iterator[KindResult]:
    """As it is, and with recomputation where it needs too much memory; whether or not the options ask for it."""
    try:
        costs = CostModel(allowing_full_shards(problem))
        for recompute in recompute_choices(problem):
            plan = make_fully_sharded_plan(costs, recompute=recompute)
            for found in _played(costs, plan, name=f"{FULLY_SHARDED}, recomputing" if recompute else FULLY_SHARDED):
                is_asked = problem.options.fully_shard
                yield found if is_asked else replace(found, breaks="needs --fully-shard")
                if found.row.fits_memory:
                    return
    except (ValueError, OutOfRangeError):  # where devices do not compute while they send, or cannot take equal shares
        return


def _makers(costs: CostModel, *, has_time: HasTime) -> Iterator[tuple[str, Callable[[], Plan]]]:
    """Methods by name; those of one stage per device are worth a look where they can fill more than one of them."""
    yield "data parallel", lambda: make_single_stage_plan(costs, make_replicated_stage(costs))
    for method in METHODS if costs.problem.num_microbatches > 1 else ():
        if method.placement is ONE_EACH and not method.is_slow and method.has_twins == method.is_always_played:
            for cut in (EVEN, SMALLEST_LARGEST):
                yield f"{method.name} ({cut.name})", partial(make_method_plan, costs, method, cut=cut)
    yield "SPP", partial(make_spp_plan, costs, within_memory=True, has_time=has_time)


def _fastest(costs: CostModel) -> str:
    """The device on which all layers take the least, the first of several."""
    took = {each: costs.model_ns(each) for each in costs.problem.cluster.device_types}
    return min(costs.problem.cluster.devices, key=lambda device: took[device.type]).name


def _played(costs: CostModel, plan: Plan, *, name: str) -> Iterator[KindResult]:
    problem = costs.problem
    row, timeline = play_baseline(problem, Baseline(name=name, plan=plan), costs=costs)
    if timeline is None or row.makespan_ns is None:
        return
    try:
        require_choices(costs, plan.stages)
        breaks = ""
    except DoesNotApplyError as reason:
        breaks = str(reason)
    kind = kind_of_stages(plan.stages, num_microbatches=problem.num_microbatches)
    yield KindResult(kind=kind, row=row, problem=problem, plan=plan, breaks=breaks)
