"""The plan that takes over from a running one: the least sum of iterations that are left and of moving."""

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from planner.plan import Plan, Stage
from planner.planning.runs.transition_search import TransitionSearch
from planner.problem import Problem
from planner.progress import Limits
from planner.replanning.transition import Transition, going_over
from planner.simulation.simulate import simulate
from planner.simulation.timeline import Timeline
from planner.what_if.device_loss import adapt_plan, without_devices
from tests.long_runs import shortened
from tests.planner.brute_force import LIMIT, every_mapping, make_tables
from tests.planner.exhaustive import explore
from tests.planner.hasty import make_plans
from tests.planner.replanning.slowed_runs import random_chain, random_running_plan


def random_loss(rng: Random) -> tuple[Problem, Plan | None, Transition]:
    """Two devices that are left, the running plan there if it can go on, and what going over to another costs."""
    problem = random_chain(rng, num_devices=3, num_layers=rng.randint(3, 4))
    options = replace(problem.options, max_stages_per_device=rng.choice((1, 1, 2)))
    problem = replace(problem, num_microbatches=rng.randint(1, 2), options=options)
    before = random_running_plan(rng, problem)
    lost = {rng.choice(before.devices)}
    left = without_devices(problem, lost)
    transition = Transition(
        before=before.stages,
        absent=frozenset(before.devices if rng.random() < 0.4 else lost),
        steps_left=rng.choice((1, 3, 10, 1_000)),
        bytes_per_s=rng.choice((1e8, 1e9, 1e10)),
    )
    return left, adapt_plan(before, lost), transition


def moving_ns(problem: Problem, stages: Sequence[Stage], transition: Transition) -> int:
    """What moves, from the definition: from storage what nobody has; the rest from the one other device there is."""
    size = {layer.name: layer.state_bytes for layer in problem.profile.layers}
    had = {(name, d) for stage in transition.before for name in stage.layers for g in stage.replicas for d in g}
    had = {(name, device) for name, device in had if device not in transition.absent}
    needed = {(name, d) for stage in stages for name in stage.layers for g in stage.replicas for d in g} - had
    stored = sum(size[name] for name, _ in needed if not any(own == name for own, _ in had))
    sent: dict[tuple[str, str], int] = {}
    for name, target in needed:
        for source in [device for own, device in had if own == name]:
            sent[source, target] = sent.get((source, target), 0) + size[name]
    busy = [problem.cluster.route(*pair, num_bytes=total).duration_ns(total) for pair, total in sent.items()]
    return max([math.ceil(stored / transition.bytes_per_s * 1e9), *busy])


def best_sum(problem: Problem, transition: Transition) -> int:
    """The least sum of all plans there are."""
    best = LIMIT
    for stages in every_mapping(problem, has_symmetry=False):
        tables = make_tables(problem, stages)
        moving = moving_ns(problem, stages, transition)
        if tables is not None and transition.steps_left * int(explore(*tables, LIMIT, True)[0]) + moving < best:
            below = -((moving - best) // transition.steps_left)
            value, *_ = explore(*tables, below, False)
            best = min(best, transition.steps_left * int(value) + moving) if value < below else best
    return best


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, shortened(8, whole=200), 8))
def test_no_plan_takes_over_at_less(first: int, monkeypatch: pytest.MonkeyPatch):
    """Tests that of all plans of small problems none has a smaller sum of iterations left and moving.

    Tests that none that the search came by has, and that for none of these less moves than for the one behind it.
    """
    seen: list[tuple[Problem, Plan, Timeline]] = []
    see = TransitionSearch.see

    def watch(self: TransitionSearch, plan: Plan, timeline: Timeline, **how: object) -> None:
        seen.append((self.run.problem, plan, timeline))
        see(self, plan, timeline, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(TransitionSearch, "see", watch)
    for seed in range(first, first + 8):
        problem, start, transition = random_loss(Random(seed))
        seen.clear()
        limits = Limits(time_limit_s=60, max_rounds=1, threads=1)
        plans = make_plans(problem, top=1, limits=limits, start=start, transition=transition)
        costs = [
            going_over(problem, plan, iteration_ns=simulate(problem, plan).makespan_ns, transition=transition)
            for plan in plans
        ]
        assert costs[0].moving_ns == moving_ns(problem, plans[0].stages, transition)
        assert costs[0].total_ns == best_sum(problem, transition), seed
        assert seen
        for where, plan, timeline in seen:
            other = going_over(where, plan, iteration_ns=timeline.makespan_ns, transition=transition)
            assert costs[0].total_ns <= other.total_ns, seed
            assert costs[-1].moving_ns <= other.moving_ns, seed
