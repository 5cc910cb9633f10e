"""What can hold a stage replica: tests of solver_models/device_groups.py."""

from itertools import pairwise
from random import Random

from hypothesis import given

from planner.layout.costs import CostModel
from planner.layout.device_groups import list_groups
from planner.plan import Stage
from planner.problem import Problem
from planner.verify import verify
from tests.solver_models.nets import Case, random_policy_params
from tests.solver_models.starts.test_replica_groups import is_simple, random_wide_problem, randoms


def random_wide_stages(rng: Random, problem: Problem) -> tuple[Stage, ...]:
    """Random stages on any holders, equal or disjoint or not."""
    names = problem.profile.topological_order
    cuts = sorted(rng.sample(range(1, len(names)), rng.randint(0, len(names) - 1)))
    parts = [names[a:b] for a, b in pairwise([0, *cuts, len(names)])]
    holders = [*((d.name,) for d in problem.cluster.devices), *list_groups(problem)]
    return tuple(
        Stage(
            layers=part,
            replicas=tuple(rng.sample(holders, rng.choice([1, 1, 1, min(2, len(holders))]))),
            recompute=problem.options.recompute and rng.random() < 0.5,
        )
        for part in parts
    )


@given(randoms)
def test_rules_are_those_of_the_verifier(rng: Random):
    """Tests that what is allowed passes the verifier, and that of simple groups nothing else is refused."""
    problem = random_wide_problem(rng)
    for _ in range(6):
        stages = random_wide_stages(rng, problem)
        case = Case(problem, stages)
        candidate = case.candidate(policy_params=random_policy_params(rng))
        is_allowed = case.searcher.is_allowed(candidate)
        if not is_allowed and not is_simple(stages):
            continue
        if is_allowed:
            words, objective = case.searcher.device_orders(candidate)
            verdict = verify(problem, case.plan(words))
            assert verdict.passed
            assert verdict.timeline is not None
            assert verdict.timeline.objective_ns(problem.options.objective) == objective
            return
        costs = CostModel(problem)
        widths = [{len(group) for group in stage.replicas} for stage in stages]
        held = [group for stage in stages for group in stage.replicas]
        breaks = (
            any(len(found) > 1 for found in widths)
            or any(len(set(stage.replicas)) < len(stage.replicas) for stage in stages)
            or any(held.count(group) > problem.options.max_stages_per_device for group in held)
            or any(len(stage.replicas) not in problem.allowed_replicas for stage in stages)
            or any(
                costs.layer_work(name, costs.group_type(group), width=len(group), replicas=len(stage.replicas)) is None
                for stage in stages
                for group in stage.replicas
                for name in stage.layers
            )
        )
        assert breaks
