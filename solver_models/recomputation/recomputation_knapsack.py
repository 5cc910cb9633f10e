"""Kinds of recomputation for layers as an integer programme: least time within what orders leave (CP-SAT)."""

from collections.abc import Sequence

from ortools.sat.python import cp_model

from solver_models.recomputation.alike_layers import AlikeLayers, Room

_MOST_UNITS = 1 << 56
"""Sums above are counted in larger units, rounded against the plan, so that the solver can add them."""


def least_kinds(
    groups: Sequence[AlikeLayers], rooms: Sequence[Room], *, shares: Sequence[int], work: float, seed: int
) -> list[list[int]] | None:
    """How many layers of every group recompute by each of its kinds; None if nothing fits, or nothing was found.

    `shares` [S]: replicas of every stage, which divide what F leaves, rounded up; `work`: CP-SAT's deterministic limit.
    """
    most: dict[int, int] = {}
    for group in groups:
        most[group.stage] = most.get(group.stage, 0) + len(group.layers) * max(group.kept)
    largest = max((sum(count * most[stage] for stage, count in room.held) for room in rooms), default=0)
    unit = max(1, -(-max([largest, *most.values()]) // _MOST_UNITS))
    model = cp_model.CpModel()
    held = {stage: model.new_int_var(0, -(-size // unit) + 1, f"held_{stage}") for stage, size in most.items()}
    numbers = []
    left: dict[int, list[cp_model.LinearExprT]] = {stage: [] for stage in most}
    for index, group in enumerate(groups):
        own = [model.new_int_var(0, len(group.layers), f"layers_{index}_{kind}") for kind in group.kinds]
        model.add(cp_model.LinearExpr.sum(own) == len(group.layers))
        left[group.stage].append(cp_model.LinearExpr.weighted_sum(own, [-(-size // unit) for size in group.kept]))
        numbers.append(own)
    for stage, terms in left.items():
        model.add(shares[stage] * held[stage] >= cp_model.LinearExpr.sum(terms))
    for room in rooms:
        stages, counts = zip(*room.held, strict=True)
        model.add(cp_model.LinearExpr.weighted_sum([held[s] for s in stages], list(counts)) <= room.units // unit)
    model.minimize(
        cp_model.LinearExpr.weighted_sum(
            [each for own in numbers for each in own], [ticks for group in groups for ticks in group.extra]
        )
    )
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = work
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return [[solver.value(each) for each in own] for own in numbers]
