"""SPP's outer loop: every number of stages is divided, ordered in three ways and played; the shortest one stays."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy

from planner.baselines.alternation import order_gpipe
from planner.baselines.applicability import (
    DoesNotApplyError,
    require_choices,
    require_few_actions,
    require_time,
)
from planner.baselines.partitions import crossing_bytes
from planner.baselines.pipeline import DeviceOrders, Pipeline, make_pipeline, make_plan
from planner.baselines.recomputing import breaks_memory, with_recomputation
from planner.baselines.spp.compared_orders import order_greedy, order_slotted
from planner.baselines.spp.device_arrangement import order_devices
from planner.baselines.spp.division import CumulativeLoads, divide, make_divided_stages, require_small
from planner.clock import HasTime, always
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.simulation.simulate import simulate

ORDERS: dict[str, Callable[[Pipeline], DeviceOrders]] = {
    "slotted": order_slotted,
    "greedy": order_greedy,
    "GPipe": order_gpipe,
}
"""The orders that are compared on every division."""

PATIENCE = 4
"""Numbers of stages in a row, least largest load first, that may go by without a shorter plan."""

_MOST_PLAYED = 400_000
"""Actions after which no further division is played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One number of stages in one order."""

    plan: Plan
    order: str
    """Which of `ORDERS`."""
    makespan_ns: int


def make_spp_plan(
    costs: CostModel, *, recompute: bool = False, within_memory: bool = False, has_time: HasTime = always
) -> Plan:
    """The shortest plan that SPP finds; it may break the memory limit, which SPP does not know of.

    `within_memory`: the shortest of those that do not. Raises DoesNotApplyError if the options exclude it, or nothing
    fits.
    """
    attempts = [
        attempt
        for attempt in make_attempts(costs, recompute=recompute, has_time=has_time)
        if not within_memory or not breaks_memory(costs, attempt.plan)
    ]
    if not attempts:
        raise DoesNotApplyError("none of its plans fits into the memory")
    return min(attempts, key=lambda attempt: attempt.makespan_ns).plan


def make_attempts(costs: CostModel, *, recompute: bool = False, has_time: HasTime = always) -> Iterator[_Attempt]:
    """Divisions in ascending order of their largest load, each in every order.

    Ends where that load alone is no less than the shortest makespan so far, after `PATIENCE` divisions without
    progress, or after `_MOST_PLAYED` actions. Raises DoesNotApplyError if no division agrees with the options.
    """
    best, idle, played, reason = None, 0, 0, DoesNotApplyError("has no division")
    for stages, value_ns in _divisions(costs, has_time=has_time):
        if best is not None and (value_ns >= best or idle == PATIENCE or played > _MOST_PLAYED):
            return
        try:
            require_choices(costs, stages)
        except DoesNotApplyError as excluded:
            reason = excluded
            continue
        found = list(_play(costs, with_recomputation(stages) if recompute else stages, has_time=has_time))
        yield from found
        played += sum(len(device_order) for attempt in found for device_order in attempt.plan.schedule.values())
        shortest = min(attempt.makespan_ns for attempt in found)
        idle = 0 if best is None or shortest < best else idle + 1
        best = shortest if best is None else min(best, shortest)
    if best is None:
        raise reason


def _divisions(costs: CostModel, *, has_time: HasTime) -> Iterator[tuple[tuple[Stage, ...], float]]:
    """Placed stages, and the largest load among them."""
    problem, options = costs.problem, costs.problem.options
    if options.partition is not None:
        raise DoesNotApplyError("divides the layers itself, and a partition is given")
    require_few_actions(problem, 1)
    require_small(len(problem.profile.layers), len(problem.cluster.devices))
    size = max(int(numpy.median(crossing_bytes(problem.profile))), 1)
    loads = CumulativeLoads(costs, order_devices(problem.cluster, num_bytes=size))
    counts = problem.allowed_replicas
    choices = [list(counts)] if options.uneven_replication else [[count] for count in counts]
    found = [
        division
        for each in choices
        for division in divide(loads, replica_counts=each, uses_all=not options.idle_devices, has_time=has_time)
    ]
    for division in sorted(found, key=lambda division: division.value_ns):
        yield make_divided_stages(loads, division), division.value_ns


def _play(costs: CostModel, stages: tuple[Stage, ...], *, has_time: HasTime) -> Iterator[_Attempt]:
    pipeline = make_pipeline(costs, stages, has_time=has_time)
    for name, order in ORDERS.items():
        require_time(has_time)
        plan = make_plan(costs, stages, device_orders=order(pipeline))
        timeline = simulate(costs.problem, plan, costs=costs)
        yield _Attempt(plan=plan, order=name, makespan_ns=timeline.makespan_ns)
