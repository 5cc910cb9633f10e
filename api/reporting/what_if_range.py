"""What a change certainly brings, within a fraction of a second: a bound below, and a verified plan above."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from planner.baselines.layouts import EVEN, SMALLEST_LARGEST, TRANSFERS_TOO
from planner.baselines.out_of_order.pipelined import make_fast_forward_plan, make_modulo_plan
from planner.baselines.registry import all_methods, make_baselines, make_method_plan
from planner.baselines.spp.plans import make_spp_plan
from planner.bounds.bound_params import BoundParams
from planner.clock import while_time
from planner.evidence.certificate import make_bound, prove_infeasible
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem
from planner.verify import verify
from planner.what_if.change import Change, WhatIfRange, apply_change, find_start

PATIENCE_S = 0.4
"""How long baselines of one changed question are looked at."""

_SHARED_PATIENCE_S = 1.2
"""How long those of many in one request are, in all."""


def find_ranges(problem: Problem, plan: Plan, *, changes: Sequence[Change]) -> list[WhatIfRange]:
    """The ranges of makespan or span; raises ValueError where money is minimised."""
    patience_s = min(PATIENCE_S, _SHARED_PATIENCE_S / max(1, len(changes)))
    return [_find_range(problem, plan, change=change, patience_s=patience_s) for change in changes]


def _find_range(problem: Problem, plan: Plan, *, change: Change, patience_s: float) -> WhatIfRange:
    if problem.options.objective == "cost":
        raise ValueError("options: objective = cost: what-if compares times only; set objective to makespan")
    try:
        changed = apply_change(problem, change)
        start = find_start(problem, plan, change=change)
    except ValueError as error:
        return _nothing(str(error))
    costs = CostModel(changed)
    reason = prove_infeasible(changed, costs)
    if reason is not None:
        return _nothing(reason)
    least = make_bound(changed, costs, time_limit_s=0.0, params=BoundParams()).value_ns
    if _only_takes_memory(problem, changed, change=change) and plan.evidence is not None:
        least = max(least, plan.evidence.lower_bound_ns)
    prices = [device.price_per_hour for device in changed.cluster.devices]
    price = None if None in prices else sum(each for each in prices if each is not None)
    objective_ns, witness = min(_witnesses(changed, costs, start=start, patience_s=patience_s), default=(None, None))
    return WhatIfRange(at_least_ns=least, at_most_ns=objective_ns, witness=witness, reason=None, price_per_hour=price)


def _nothing(reason: str) -> WhatIfRange:
    """There is no such question, or no plan that fits."""
    return WhatIfRange(at_least_ns=None, at_most_ns=None, witness=None, reason=reason, price_per_hour=None)


def _only_takes_memory(problem: Problem, changed: Problem, *, change: Change) -> bool:
    """Whether every plan of the changed question is one of the present question, and takes as long there."""
    return (
        changed.num_microbatches == problem.num_microbatches
        and changed.profile.microbatch_size == problem.profile.microbatch_size
        and change.memory_bytes <= 0
        and change.devices == 0 == len(change.lost)
        and change.link_speed == 1
    )


def _witnesses(
    problem: Problem, costs: CostModel, *, start: Plan | None, patience_s: float
) -> Iterator[tuple[int, str]]:
    """Objectives of plans that the verifier passes, and whose they are."""
    until = time.monotonic() + patience_s
    if start is not None and start.problem.num_microbatches == problem.num_microbatches:
        yield from _verified(problem, replace(start, problem=problem.reference()), name="this plan")

    def has_time() -> bool:
        return time.monotonic() < until

    for baseline in while_time(make_baselines(problem, costs, has_time=has_time), has_time=has_time):
        if baseline.plan is not None:
            yield from _verified(problem, baseline.plan, name=baseline.name)


def _verified(problem: Problem, plan: Plan, *, name: str) -> Iterator[tuple[int, str]]:
    verdict = verify(problem, plan)
    if verdict.passed and verdict.timeline is not None:
        yield verdict.timeline.objective_ns(problem.options.objective), name


_PLANNERS: dict[str, Callable[[CostModel], Plan]] = {
    "SPP": make_spp_plan,
    "SPP (least that fits)": partial(make_spp_plan, within_memory=True),
    "OOO fast-forward": make_fast_forward_plan,
    "OOO modulo": make_modulo_plan,
}
"""Baselines with a placement of their own that need not wait for those before them."""


def make_named_baseline(problem: Problem, name: str) -> Plan:
    """The plan of a baseline by its name in a comparison; raises ValueError if there is none."""
    costs = CostModel(problem)
    if problem.options.partition is None:
        for method in all_methods(problem):
            for cut in (EVEN, SMALLEST_LARGEST, TRANSFERS_TOO):
                if name == f"{method.name} ({cut.name})":
                    return make_method_plan(costs, method, cut=cut)
    if name in _PLANNERS:
        return _PLANNERS[name](costs)
    for baseline in make_baselines(problem, costs):
        if baseline.name == name and baseline.plan is not None:
            return baseline.plan
    raise ValueError(f"baseline {name[:80]!r} has no plan for this question; give one of `evidence.baselines`")
