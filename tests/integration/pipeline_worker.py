"""One rank that trains 80 steps, or some, in several orders of a pipeline: usual, fast-forwarded, modulo, tasks apart.

`python -m tests.integration.pipeline_worker STORE RANK COUNT [STEPS]` runs plans of the chain of `layer_pipe_worker`
over gloo, one after the other from the same weights; rank 0 prints whether losses, and parameters after half of
the steps and after all, are equal.
"""

import json
import sys
from dataclasses import replace

import torch
from torch import distributed

from planner.actions import Action
from planner.baselines.layer_pipe.plans import make_layer_pipe_plan
from planner.baselines.out_of_order.pipelined import make_modulo_plan, order_fast_forward
from planner.baselines.pipeline import DeviceOrders, Pipeline, make_pipeline, make_plan
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from tests.integration.layer_pipe_problem import MICROBATCHES, make_problem
from tests.integration.layer_pipe_worker import Runner, make_weights

STEPS, RATE = 80, 0.002

Trained = tuple[list[float], list[list[torch.Tensor]]]
"""Losses of all steps, and the weights after half of them and after all."""


def make_plans(costs: CostModel) -> dict[str, Plan]:
    """Every layer is a stage: in a row and in turn on the ranks, in the usual order and out of it."""
    modulo = make_modulo_plan(costs, mod=1)
    names, layers = [device.name for device in costs.problem.cluster.devices], costs.problem.profile.topological_order
    in_a_row = tuple(
        Stage(layers=(layer,), replicas=((names[number * len(names) // len(layers)],),))
        for number, layer in enumerate(layers)
    )
    pipeline = make_pipeline(costs, in_a_row)
    return {
        "usual": make_plan(costs, in_a_row, device_orders=order_usually(pipeline)),
        "fast-forward": make_plan(costs, in_a_row, device_orders=order_fast_forward(pipeline)),
        "modulo": modulo,
        "tasks apart": make_layer_pipe_plan(costs),
    }


def order_usually(pipeline: Pipeline) -> DeviceOrders:
    """As GPipe: all forwards, then all backwards, each W after its I; stages of one rank in turn."""
    microbatches = range(pipeline.num_microbatches)
    words: DeviceOrders = [[] for _ in range(pipeline.num_positions)]
    for stage in range(pipeline.num_stages):
        words[pipeline.position_of[stage]] += [Action("F", stage, m) for m in microbatches]
    for stage in reversed(range(pipeline.num_stages)):
        words[pipeline.position_of[stage]] += [Action(kind, stage, m) for m in microbatches for kind in ("I", "W")]
    return words


def train(plan: Plan, costs: CostModel, rank: int, *, steps: int) -> Trained:
    """Plain gradient steps on the same microbatches; every rank ends with all weights."""
    weights, losses, kept = make_weights(), [], []
    last = len(weights) - 1
    for step in range(1, steps + 1):
        runner = Runner(plan=plan, costs=costs, name=f"rank{rank}")
        own = [stage for stage in range(len(weights)) if runner.owner(stage) == runner.name]
        runner.weights = {stage: weights[stage] for stage in own}
        runner.run()
        for stage in own:
            weights[stage] = weights[stage] - RATE * runner.gradients[stage]
        if last in own:
            losses.append(sum(float(runner.outputs[last, m].square().sum()) / 2 for m in range(MICROBATCHES)))
        distributed.barrier()
        if step in (steps // 2, steps):
            gathered: list[object] = [None] * distributed.get_world_size()
            distributed.all_gather_object(gathered, ({stage: weights[stage] for stage in own}, losses))
            everything = {stage: weight for part, _ in gathered for stage, weight in part.items()}  # type: ignore[misc]
            kept.append([everything[stage] for stage in range(len(weights))])
    return max((found for _, found in gathered), key=len), kept  # type: ignore[misc]


def main() -> None:
    """Train in all orders; rank 0 prints the answer."""
    store, rank, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    steps = int(sys.argv[4]) if len(sys.argv) > 4 else STEPS
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    problem = make_problem(count)
    costs = CostModel(replace(problem, options=replace(problem.options, max_replicas=1)))
    found = {name: train(plan, costs, rank, steps=steps) for name, plan in make_plans(costs).items()}
    if rank == 0:
        print(json.dumps(summarise(found, steps=steps)))
    distributed.barrier()
    distributed.destroy_process_group()


def summarise(found: dict[str, Trained], *, steps: int) -> dict[str, object]:
    """What is equal to the usual order, bit by bit, and the largest difference."""
    losses, weights = found.pop("usual")
    return {
        "steps": [steps // 2, steps],
        "losses": [losses[0], losses[-1]],
        "orders": {
            name: {
                "losses_equal": theirs == losses,
                "parameters_equal": [
                    all(torch.equal(a, b) for a, b in zip(mine, usual, strict=True))
                    for mine, usual in zip(kept, weights, strict=True)
                ],
                "worst_relative_difference": max(
                    float((a - b).abs().max() / b.abs().max())
                    for mine, usual in zip(kept, weights, strict=True)
                    for a, b in zip(mine, usual, strict=True)
                ),
            }
            for name, (theirs, kept) in found.items()
        },
    }


if __name__ == "__main__":
    main()
