"""The programs that a plan can be made for: what each can run, and how a plan is brought into its form."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.actions import Action
from planner.batch_problem import BatchProblem, Question
from planner.execute.layout import make_layout
from planner.export import deepspeed, megatron, torchtitan
from planner.export.looped_pipelines import as_looped
from planner.export.samples import require_known_shares
from planner.export.torch_table import render_torch_table
from planner.plan import Plan
from planner.problem import Options, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One program."""

    name: str
    """How it is asked for."""
    runs: str
    """What it can run, for people."""
    limits: Mapping[str, Any]
    """Options that hold for every plan it can run; others are the user's."""
    fit: Callable[[Problem, Plan], Plan]
    """The same plan as the target writes it, or the nearest that has the same stages. Raises ValueError with the reason
    why there is none."""
    is_looped: bool = False
    """Whether it runs stages in a loop in the order of 1F1B, interleaved or not, and nothing else."""
    most_chunks: int | None = None
    """Stages per device that are looked at where nobody says how many there may be."""


def _fit_executor(problem: Problem, plan: Plan) -> Plan:
    require_known_shares(problem, plan, what="the executor")
    make_layout(plan)
    return plan


def _fit_torch(problem: Problem, plan: Plan) -> Plan:
    plan = renumbered(plan)
    render_torch_table(problem, plan)
    return plan


def _fit_torchtitan(problem: Problem, plan: Plan) -> Plan:
    torchtitan.require_whole_state(plan)
    plan = _fit_torch(problem, plan)
    torchtitan.make_parallelism(problem, plan)
    return plan


def _fit_megatron(problem: Problem, plan: Plan) -> Plan:
    megatron.require_expressible(problem, plan)
    return as_looped(problem, plan)


def _fit_deepspeed(problem: Problem, plan: Plan) -> Plan:
    deepspeed.require_expressible(problem, plan)
    return as_looped(problem, plan)


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

_SINGLE = {"max_width": 1, "split_placement": False, "unequal_shares": False, "skip_edges": False}
_KEPT = {"recompute": False, "recompute_layers": False}
_LOOPED = {"split_backward": False, "uneven_replication": False, "shard_optimizer": "together", "order": "looped"}

TARGETS = {
    target.name: target
    for target in (
        Target(
            name="executor",
            runs="any chunks and order, I and W apart, or on other devices than F (split placement), full "
            "recomputation per layer, any replicas, with equal or unequal shares of the samples, with optimizer state "
            "sharded or not, skip edges; groups of devices (tensor-parallel) of a width that divides heads and units",
            limits={},
            fit=_fit_executor,
        ),
        Target(
            name="torch",
            runs="any chunks and order on a chain of stages, I and W apart; no replicas, no recomputation",
            limits={**_SINGLE, **_KEPT, "max_replicas": 1, "uneven_replication": False},
            fit=_fit_torch,
        ),
        Target(
            name="torchtitan",
            runs="as torch; equally many chunks on every rank, in a loop or (two of them) in a V",
            limits={**_SINGLE, **_KEPT, "max_replicas": 1, "uneven_replication": False},
            fit=_fit_torchtitan,
        ),
        Target(
            name="megatron",
            runs="any cut of a chain; chunks in a loop; 1F1B or interleaved; whole backward; replicas of whole "
            "pipelines; recomputation, and sharded optimizer state, in all stages or none",
            limits={**_SINGLE, **_LOOPED},
            fit=_fit_megatron,
            is_looped=True,
            most_chunks=MOST_CHUNKS,
        ),
        Target(
            name="deepspeed",
            runs="any cut of a chain; one stage per device; 1F1B; whole backward; replicas of whole pipelines; "
            "recomputation, and sharded optimizer state, in all stages or none",
            limits={**_SINGLE, **_LOOPED, "max_stages_per_device": 1, "recompute_layers": False},
            fit=_fit_deepspeed,
            is_looped=True,
        ),
    )
}
"""By name."""


def fitted(problem: Problem, plan: Plan, *, target: Target) -> Plan | None:
    """The plan as the target runs it, or None if it cannot."""
    try:
        return target.fit(problem, plan)
    except ValueError:
        return None


def restrict(options: Options, target: Target) -> Options:
    """The options under which every plan of the target is allowed; never wider than what was given."""
    narrowed = {name: _narrower(getattr(options, name), limit) for name, limit in target.limits.items()}
    return replace(options, **narrowed)


def restrict_problem(problem: Problem, target: Target) -> Problem:
    """The problem under whose options every plan of the target is allowed.

    No program can cut microbatches of unknown size: then no stage is replicated.
    """
    options = restrict(problem.options, target)
    if problem.profile.microbatch_size is None:
        options = replace(options, max_replicas=1)
    return replace(problem, options=options)


def restrict_question(question: Question, target: Target) -> Question:
    """The same for a problem or a global batch, whose profile states the size of a microbatch."""
    if isinstance(question, BatchProblem):
        return replace(question, options=restrict(question.options, target))
    return restrict_problem(question, target)


def with_chunks(options: Options, target: Target) -> Options:
    """The options with as many stages per device as the target is looked at with, where the default stands."""
    is_open = options.max_stages_per_device == Options().max_stages_per_device and options.partition is None
    if target.most_chunks is None or not is_open:
        return options
    return replace(options, max_stages_per_device=target.most_chunks)


def _narrower(given: Any, limit: Any) -> Any:
    """The smaller one; None stands for no limit, False for the lack of an ability, `allow` and `any` for everything."""
    if isinstance(limit, str):
        return limit if given in ("allow", "any") else given
    return limit if given is None else min(given, limit)
