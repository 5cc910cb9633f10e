"""The programs that a plan can be made for: what each can run, and how a plan is brought into its form."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner import decisions
from planner.actions import Action
from planner.batch_problem import BatchProblem, Question, candidates_of
from planner.decisions.choices import closed_but
from planner.errors import InfeasibleProblemError
from planner.execute.table.layout import make_layout
from planner.export import deepspeed, megatron, torchtitan, torchtitan_copies
from planner.export.dual_pipe_v import as_dual_pipe_v
from planner.export.looped_pipelines import as_looped, require_some_loop
from planner.export.model_parts import Cut, require_contiguous
from planner.export.samples import require_known_shares
from planner.export.torch_table import render_torch_table
from planner.option_values import TargetName
from planner.plan import Plan
from planner.problem import Options, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One program."""

    name: TargetName
    """Value of `--target`."""
    runs: str
    """What it can run, for people."""
    decisions: frozenset[str]
    """The freedoms that it knows of, by their options; others are closed."""
    limits: Mapping[str, Any]
    """Other options that hold for every plan it can run."""
    fit: Callable[[Problem, Plan], Plan]
    """The same plan as the target writes it, or the nearest that has the same stages. Raises ValueError with the reason
    why there is none."""
    require: Callable[[Problem, Cut], object] | None = None
    """Raises ValueError with the reason where no plan with these layers in its stages, or, where they are one stage, no
    plan at all can be fitted; None: it takes any."""
    is_looped: bool = False
    """Whether it runs stages in a loop in the order of 1F1B, interleaved or not, and nothing else."""
    takes_sizes: bool = False
    """Whether it runs microbatches that differ."""
    most_chunks: int | None = None
    """Stages per device that are looked at where nobody says how many there may be."""

    @property
    def restrictions(self) -> dict[str, Any]:
        """Options that hold for every plan it can run."""
        return {**closed_but(self.decisions), **self.limits}


def _fit_executor(problem: Problem, plan: Plan) -> Plan:
    require_known_shares(problem, plan, what="the executor")
    make_layout(plan)
    return plan


def _fit_torch(problem: Problem, plan: Plan) -> Plan:
    plan = renumbered(plan)
    render_torch_table(problem, plan)
    return plan


def _fit_torchtitan(problem: Problem, plan: Plan) -> Plan:
    torchtitan_copies.require_whole_state(plan)
    torchtitan.assumed_settings(problem, plan)
    plan = renumbered(plan)
    if torchtitan.is_data_parallel(plan):
        torchtitan.make_data_parallel(problem, plan)
        return plan
    torchtitan_copies.render_pipeline_table(problem, plan)
    torchtitan.make_parallelism(problem, plan)
    return plan


def _fit_megatron(problem: Problem, plan: Plan) -> Plan:
    megatron.require_expressible(problem, plan)
    return as_looped(problem, plan, has_widths=True)


def _fit_deepspeed(problem: Problem, plan: Plan) -> Plan:
    deepspeed.require_expressible(problem, plan)
    return as_looped(problem, plan)


def _fit_dual_pipe_v(problem: Problem, plan: Plan) -> Plan:
    plan = as_dual_pipe_v(problem, plan)
    deepspeed.require_expressible(problem, plan)
    return plan


def renumbered(plan: Plan) -> Plan:
    """Microbatches numbered as the last stage takes them; they are all alike, so nothing else changes."""
    last = len(plan.stages) - 1
    order = plan.schedule[plan.stages[last].replicas[0][0]]
    number = {action.microbatch: place for place, action in enumerate(a for a in order if a[:2] == ("F", last))}
    schedule = {
        device: tuple(Action(kind, stage, number[microbatch]) for kind, stage, microbatch in order)
        for device, order in plan.schedule.items()
    }
    return replace(plan, schedule=schedule)


MOST_CHUNKS = 12
"""Virtual stages per rank that are looked at for Megatron-LM; published layouts have up to eight."""

_RECOMPUTED = frozenset({"recompute", "recompute_in_turn"})
_LOOPED = {"split_backward": False, "uneven_replication": False, "skip_edges": False, "shard_optimizer": "together"}
_TORCH = {"max_replicas": 1, "uneven_replication": False, "skip_edges": False}

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            name="executor",
            runs="any stages in any order, also with skip edges; backward whole or split, also over devices; "
            "recomputation per layer and microbatch; activations in host memory; any numbers of replicas, with equal "
            "or unequal shares; sharded optimizer; tensor-parallel groups",
            decisions=frozenset(option for option, _ in decisions.KNOWN.values()),
            limits={},
            fit=_fit_executor,
            takes_sizes=True,
        ),
        Target(
            name="torch",
            runs="a chain of stages, any number per device, in any order; backward whole or split; no replicas, "
            "no recomputation",
            decisions=frozenset(),
            limits=_TORCH,
            fit=_fit_torch,
        ),
        Target(
            name="torchtitan",
            runs="as torch, with equally many stages per device, in a loop or two of them in a V; groups of one width; "
            "copies of the whole pipeline, which may shard it (--max-active-stages 3); or one stage, fully sharded or "
            "copied (--fully-shard)",
            decisions=frozenset({"max_width", "fully_shard", "max_active_stages", "shard_optimizer"}),
            limits={"uneven_replication": False, "skip_edges": False},
            fit=_fit_torchtitan,
            require=torchtitan.module_names,
        ),
        Target(
            name="megatron",
            runs="any cut of a chain; 1F1B, or interleaved 1F1B with stages in a loop; whole backward; copies of the "
            "whole pipeline; one tensor-parallel degree; recomputation of all stages, of the first N blocks of each, "
            "or selective; sharded optimizer in all stages or none",
            decisions=_RECOMPUTED | {"recompute_layers", "shard_optimizer", "max_width"},
            limits={**_LOOPED, "order": "looped"},
            fit=_fit_megatron,
            require=megatron.require_parts,
            is_looped=True,
            most_chunks=MOST_CHUNKS,
        ),
        Target(
            name="deepspeed",
            runs="any cut of a chain; one stage per device; 1F1B; whole backward; copies of the whole pipeline; "
            "recomputation and sharded optimizer in all stages or none",
            decisions=_RECOMPUTED | {"shard_optimizer"},
            limits={**_LOOPED, "order": "looped", "max_stages_per_device": 1},
            fit=_fit_deepspeed,
            require=require_contiguous,
            is_looped=True,
        ),
        Target(
            name="deepspeed-dualpipev",
            runs="DeepSpeed 0.19.8's DualPipeV engine: two stages per device in a V, at least two microbatches per "
            "rank; otherwise as deepspeed",
            decisions=_RECOMPUTED | {"shard_optimizer"},
            limits={**_LOOPED, "max_stages_per_device": 2},
            fit=_fit_dual_pipe_v,
            require=require_contiguous,
            most_chunks=2,
        ),
    )
}
"""By name."""


def require_possible(question: Question, target: Target | None) -> None:
    """Raise InfeasibleProblemError where no search finds a plan that the target, or `order = looped`, can run.

    Looked at are the names of the layers, their order, and the stages and devices that are decided.
    """
    reasons = [_why_impossible(problem, target) for problem in candidates_of(question)]
    if all(reasons):
        what = "order = looped" if target is None else f"target {target.name}"
        raise InfeasibleProblemError(f"{what}: {reasons[0]}")


def _why_impossible(problem: Problem, target: Target | None) -> str:
    """The reason, if there is one; empty otherwise."""
    order = problem.profile.topological_order
    try:
        _require_sizes(problem, target)
        if target is not None and target.require is not None:
            target.require(problem, [sorted(stage, key=order.index) for stage in problem.options.partition or [order]])
        if problem.options.order == "looped":
            require_some_loop(problem)
    except ValueError as reason:
        return str(reason)
    return ""


def _require_sizes(problem: Problem, target: Target | None) -> None:
    """Raise ValueError where microbatches differ, and the target runs equal ones."""
    if target is not None and not target.takes_sizes:
        problem.require_alike(f"target {target.name}")


def restrict(options: Options, target: Target) -> Options:
    """The options under which every plan of the target is allowed; never wider than what was given.

    Raises ValueError where they ask for plans of a kind that the target does not know, such as gathered stages.
    """
    for each in decisions.asked(options):
        if each.decision.is_demand and each.option not in target.decisions:
            raise ValueError(
                f"target {target.name}: options ask for {each.stated}, which {target.name} does not know; leave it "
                "out, or plan with --target executor"
            )
    return replace(
        options, **{name: _narrower(getattr(options, name), limit) for name, limit in target.restrictions.items()}
    )


def restrict_problem(problem: Problem, target: Target) -> Problem:
    """The problem under whose options every plan of the target is allowed.

    No program can cut microbatches of unknown size: then no stage is replicated, nor may several devices share its I.
    Raises ValueError where layers were measured on wider groups only than the target has.
    """
    _require_sizes(problem, target)
    options = restrict(problem.options, target)
    if problem.profile.microbatch_size is None:
        options = replace(options, max_replicas=1)
    _require_widths(problem, options, target=target)
    return replace(problem, options=options)


def restrict_question(question: Question, target: Target) -> Question:
    """The same for a problem or a global batch, whose profile states the size of a microbatch."""
    if isinstance(question, BatchProblem):
        options = restrict(question.options, target)
        _require_widths(question, options, target=target)
        return replace(question, options=options)
    return restrict_problem(question, target)


def with_chunks(options: Options, target: Target) -> Options:
    """The options with as many stages per device as the target is looked at with, where the default stands."""
    is_open = options.max_stages_per_device == Options().max_stages_per_device and options.partition is None
    if target.most_chunks is None or not is_open:
        return options
    return replace(options, max_stages_per_device=target.most_chunks)


def _require_widths(question: Question, options: Options, *, target: Target) -> None:
    """Raise ValueError for a layer that only groups wider than the target's run, by what was measured."""
    for layer in question.profile.layers:
        widths = sorted({cost.width for cost in layer.costs})
        if widths[0] > options.max_width:
            raise ValueError(
                f"target {target.name}: layer {layer.name!r} was measured at width {', '.join(map(str, widths))} only, "
                f"and {target.name} is planned for with max_width = {options.max_width}; measure it at width "
                f"{options.max_width} or less, or plan for another program (pipeplan targets)"
            )


def _narrower(given: Any, limit: Any) -> Any:
    """The smaller one; None stands for no limit, False for the lack of an ability, `allow` and `any` for everything."""
    if isinstance(limit, str):
        return limit if given in ("allow", "any") else given
    return limit if given is None else min(given, limit)
