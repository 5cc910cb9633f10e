"""What measured times mean for a plan: where costs have drifted, and the problem as it really is."""

from dataclasses import dataclass, replace
from fractions import Fraction

from planner.actions import Kind
from planner.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem
from planner.replanning.measurements import Measurements
from profiles.model_profile import Layer, LayerCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One kind of action of one stage, planned and measured."""

    stage: int
    kind: Kind
    planned_ns: int
    """By the profile."""
    measured_ns: int
    """The median of what was executed."""

    @property
    def ratio(self) -> Fraction | None:
        """Measured over planned; None where nothing was planned."""
        return Fraction(self.measured_ns, self.planned_ns) if self.planned_ns else None

    def is_beyond(self, tolerance: float) -> bool:
        """Whether the two differ by more than this part of what was planned."""
        return abs(self.measured_ns - self.planned_ns) > tolerance * self.planned_ns


def find_drifts(problem: Problem, plan: Plan, *, measured: Measurements) -> tuple[Drift, ...]:
    """Every kind of action that was measured, by stage.

    Raises ValueError if the measurements are of another plan: of a stage that it does not have.
    """
    costs = CostModel(problem)
    drifts = []
    for stage, kind in measured.durations_ns:
        if stage >= len(plan.stages):
            raise ValueError(f"stage {stage} was measured, and the plan has {len(plan.stages)}: it is another plan's")
        planned = costs.stage_cost(plan.stages[stage], 0).duration_ns(kind)
        typical = measured.typical_ns(stage, kind)
        assert typical is not None
        drifts.append(Drift(stage=stage, kind=kind, planned_ns=planned, measured_ns=typical))
    return tuple(drifts)


def with_measured_costs(problem: Problem, plan: Plan, *, measured: Measurements) -> Problem:
    """The problem whose costs are those that were measured.

    Layers of a stage keep their proportions; what was measured on one device type is taken over to the others. A stage
    of which only B was measured keeps the proportion of I to W.
    """
    drifts = {(drift.stage, drift.kind): drift for drift in find_drifts(problem, plan, measured=measured)}
    stage_of = {name: number for number, stage in enumerate(plan.stages) for name in stage.layers}
    layers = tuple(_rescaled(layer, stage_of[layer.name], drifts=drifts) for layer in problem.profile.layers)
    return replace(problem, profile=replace(problem.profile, layers=layers))


def _rescaled(layer: Layer, stage: int, *, drifts: dict[tuple[int, Kind], Drift]) -> Layer:
    def ratio(*kinds: Kind) -> Fraction:
        found = (drifts[stage, kind].ratio for kind in kinds if (stage, kind) in drifts)
        return next((value for value in found if value is not None), Fraction(1))

    forward, inputs, weights = ratio("F"), ratio("I", "B"), ratio("W", "B")
    costs = tuple(_scaled(cost, forward=forward, inputs=inputs, weights=weights) for cost in layer.costs)
    return replace(layer, costs=costs)


def _scaled(cost: LayerCost, *, forward: Fraction, inputs: Fraction, weights: Fraction) -> LayerCost:
    """B keeps what it saves against I and W."""
    input_grad, weight_grad = round(cost.input_grad_ns * inputs), round(cost.weight_grad_ns * weights)
    backward = cost.backward_ns
    if backward is not None:
        apart = max(1, cost.input_grad_ns + cost.weight_grad_ns)
        backward = min(input_grad + weight_grad, round(Fraction(backward * (input_grad + weight_grad), apart)))
    return replace(
        cost,
        forward_ns=round(cost.forward_ns * forward),
        input_grad_ns=input_grad,
        weight_grad_ns=weight_grad,
        backward_ns=backward,
        recompute_ns=round(cost.recompute_ns * forward),
    )
