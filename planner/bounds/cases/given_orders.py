"""The orders bound: stages and devices are given; a tree over their orders shows that none ends by a deadline.

Proof. Play a plan with these stages on these devices. Its actions take no less than those of the case, and hold no
less; transfers wait for nothing. Microbatches are known by their rank alone, as in the schedule bound. So its order is
one that the case leaves open. A node of the tree supposes something in one child, and that it does not hold in the
other. A leaf is closed by rules that hold of every order (docs/proofs/refutations.md). So no plan ends by then.
"""

from collections import Counter
from collections.abc import Sequence

from planner import decisions
from planner.bounds.cases.case_tables import WorkCount
from planner.bounds.cases.refutation import close_alone, units_of
from planner.bounds.cases.single_case import make_case
from planner.bounds.cases.tree_codes import TreeCodes
from planner.bounds.order.stage_replicas import make_replicas
from planner.layout.costs import CostModel, StageCost
from planner.layout.stage_replicas import lay_out_stages
from planner.plan import Stage
from planner.problem import Problem

KIND = "orders"

MAX_PAIRS = 1_500_000
"""Pairs of actions of a device, over all devices, beyond which a node is not looked at."""


def applies_to(problem: Problem) -> bool:
    """Whether whole stages on single devices are given, few enough, under the makespan."""
    stages, options = _given_stages(problem), problem.options
    is_single = all(len(group) == 1 for stage in stages for group in stage.replicas)
    is_known = all(each.decision.is_enumerated for each in decisions.asked(options)) and not options.recompute
    is_plain = is_known and not problem.may_shard and problem.microbatches is None
    if not stages or not is_single or not is_plain or options.objective != "makespan":
        return False
    is_small = len(problem.cluster.devices) * (3 * _places(stages) * problem.num_microbatches) ** 2 <= MAX_PAIRS
    return is_small and not any(stage.is_split for stage in stages)


def _given_stages(problem: Problem) -> tuple[Stage, ...]:
    """The stages that the options state, on their devices; none where either is open."""
    pairs = zip(problem.options.partition or (), problem.options.placement or (), strict=False)
    return tuple(Stage(layers=layers, replicas=groups) for layers, groups in pairs)


def _places(stages: Sequence[Stage]) -> int:
    """Most stage replicas on a device."""
    return max(Counter(group[0] for stage in stages for group in stage.replicas).values())


class GivenOrders:
    """The orders of a problem whose stages are given."""

    def __init__(self, costs: CostModel) -> None:
        problem, self.stages = costs.problem, _given_stages(costs.problem)
        replicas, names = make_replicas(problem, self.stages, costs=costs), list(problem.cluster.by_name)
        laid_out, can_split = lay_out_stages(self.stages, costs=costs), problem.options.split_backward
        shape = len(names), _places(self.stages)
        self.cases = make_case(
            replicas,
            [names.index(each.devices[0]) for each in replicas.replicas],
            passes=[_passes(each.cost, can_split=can_split) for each in laid_out.replicas],
            shape=shape,
            count=problem.num_microbatches,
            most=max(device.usable_bytes for device in problem.cluster.devices),
        )
        self.codes = TreeCodes(devices=shape[0], places=shape[1], count=problem.num_microbatches)
        self.optimizer_ns, self.units = replicas.optimizer_ns, units_of(self.cases)
        """Time from the last synchronisation to the makespan, and work that a node of a tree takes."""

    def close(
        self,
        value: int,
        *,
        effort: WorkCount,
        given: Sequence[int] | None = None,
        proposed: Sequence[int] | None = None,
    ) -> Sequence[int] | None:
        """A tree that shows that no order has a makespan below `value`: as `close_alone`."""
        deadline = value - 1 - self.optimizer_ns
        if deadline < 0:
            return None
        return close_alone(self.cases, deadline=deadline, effort=effort, given=given, proposed=proposed)


def _passes(cost: StageCost, *, can_split: bool) -> tuple[int, int, int]:
    """I and W where they run apart, and B if it is less than both; 0 where nothing is open."""
    both = cost.input_grad_ns + cost.weight_grad_ns
    has_gain = can_split and cost.has_weight_grad and cost.backward_ns < both
    return cost.input_grad_ns, cost.weight_grad_ns, cost.backward_ns if has_gain else 0
