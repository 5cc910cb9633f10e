"""Plans to candidates of the search and back."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from planner.layout.device_groups import has_listed_groups
from planner.lowering import make_candidate_arrays, make_orders, make_plan_from_orders, make_stages, modes_of
from planner.plan import Plan, Stage
from planner.problem import Problem
from solver_models.instance import Integers
from solver_models.local_search.search import STANDARD_POLICY_PARAMS, Candidate, Searcher


def plan_of(problem: Problem, searcher: Searcher, *, candidate: Candidate) -> Plan:
    """A plan with names, from a candidate with numbers of stages, devices and microbatches."""
    device_orders, _ = searcher.device_orders(candidate)
    return make_plan_from_orders(problem, stages_of(problem, candidate), device_orders=device_orders)


def stages_of(problem: Problem, candidate: Candidate) -> tuple[Stage, ...]:
    """A search candidate's stages, as a plan states them."""
    return make_stages(problem, candidate.stage_of, groups=candidate.groups, modes=candidate.modes)


def rate(
    problem: Problem,
    searcher: Searcher,
    *,
    stages: tuple[Stage, ...],
    policies: Sequence[Integers] = STANDARD_POLICY_PARAMS,
) -> Candidate:
    """Stages as a candidate, with the best of the policies, the standard ones mostly."""
    stage_of, groups = make_candidate_arrays(problem, stages)
    return searcher.rate(stage_of, groups, modes=modes_of(stages), policies=policies)


def candidate_of(problem: Problem, searcher: Searcher, *, plan: Plan) -> Candidate:
    """A plan with its orders as the search sees it."""
    rated = rate(problem, searcher, stages=plan.stages)
    return searcher.play(replace(rated, device_orders=make_orders(problem, plan)))


def played_candidates(problem: Problem, searcher: Searcher, *, plans: Iterable[Plan]) -> Iterator[Candidate]:
    """Plans on single devices, and groups that are listed, with their device orders, as the search sees them."""
    for plan in plans:
        if has_listed_groups(problem, plan.stages):
            yield candidate_of(problem, searcher, plan=plan)


def is_laid_out(plan: Plan, stages: tuple[Stage, ...]) -> bool:
    """Whether a plan has exactly these stages, on single devices."""
    return plan.stages == stages and all(len(group) == 1 for stage in stages for group in stage.replicas)
