"""The same small question for every server: 24 layers in four intervals, the heaviest as light as possible."""

import itertools
import time

WEIGHTS = [3, 7, 2, 9, 4, 6, 8, 1, 5, 7, 3, 6, 2, 8, 9, 4, 5, 3, 7, 6, 2, 4, 8, 5]
NUM_STAGES = 4


def solve(seconds: float = 0.0) -> int:
    """The weight of the heaviest interval, by CP-SAT, after so many seconds."""
    time.sleep(seconds)
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    stage = [model.new_int_var(0, NUM_STAGES - 1, f"stage{layer}") for layer in range(len(WEIGHTS))]
    heaviest = model.new_int_var(0, sum(WEIGHTS), "heaviest")
    for before, after in itertools.pairwise(stage):
        model.add(before <= after)
    for number in range(NUM_STAGES):
        inside = [model.new_bool_var(f"{layer} in {number}") for layer in range(len(WEIGHTS))]
        for is_inside, place in zip(inside, stage, strict=True):
            model.add(place == number).only_enforce_if(is_inside)
            model.add(place != number).only_enforce_if(is_inside.negated())
        model.add(sum(weight * one for weight, one in zip(WEIGHTS, inside, strict=True)) <= heaviest)
    model.minimize(heaviest)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 2
    solver.solve(model)
    return int(solver.value(heaviest))
