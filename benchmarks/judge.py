"""How long the judge takes over large plans: `python -m benchmarks.judge [STAGES [MICROBATCHES]] [-o FILE]`.

A chain of as many layers as stages, one stage per device, 1F1B with I and W apart: up to 3 x stages x microbatches
actions. Processor seconds of one core, so that other work on the machine does not count.
"""

import argparse
import time
from pathlib import Path

from benchmarks.generate import make_workload, parse_family
from planner.actions import Action
from planner.judge.case import Case
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.verify import GROUPS

HEADER = ("stages", "microbatches", "actions", "violations", "core s", "judge s")
SIZES = ((64, 256), (256, 1024), (1024, 1024))


def make_case(num_stages: int, num_microbatches: int) -> tuple[Problem, Plan]:
    """The problem, and the plan with stages in the order of the devices."""
    family = parse_family(f"chain-{num_stages}x{num_stages}-m{num_microbatches}-loose-sparse-four")
    workload = make_workload(family)
    assert workload.cluster is not None
    problem = Problem(profile=workload.profile, cluster=workload.cluster, num_microbatches=num_microbatches)
    names = workload.profile.topological_order
    devices = [device.name for device in workload.cluster.devices]
    stages = tuple(Stage(layers=(name,), replicas=((device,),)) for name, device in zip(names, devices, strict=True))
    layers = {layer.name: layer for layer in workload.profile.layers}
    schedule = {
        device: make_order(
            number, num_stages=num_stages, num_microbatches=num_microbatches, trains=layers[name].is_trainable
        )
        for number, (device, name) in enumerate(zip(devices, names, strict=True))
    }
    return problem, Plan(problem=problem.reference(), stages=stages, schedule=schedule)


def make_order(number: int, *, num_stages: int, num_microbatches: int, trains: bool) -> tuple[Action, ...]:
    """1F1B of one stage, W directly after I."""
    warm = min(num_microbatches, num_stages - number)
    order = [Action("F", number, m) for m in range(warm)]
    for m in range(num_microbatches):
        order += [Action("I", number, m), *([Action("W", number, m)] if trains else [])]
        if m + warm < num_microbatches:
            order.append(Action("F", number, m + warm))
    return tuple(order)


def measure(num_stages: int, num_microbatches: int) -> list[str]:
    """A row of the table."""
    problem, plan = make_case(num_stages, num_microbatches)
    count = sum(map(len, plan.schedule.values()))
    begin = time.process_time()
    timeline = simulate(problem, plan)
    played = time.process_time()
    case = Case(problem, plan, play=lambda: timeline)
    found = [(rule.__name__, each.message) for _, rules in GROUPS for rule in rules for each in rule(case)]
    judged = time.process_time()
    sizes = (num_stages, num_microbatches, count, len(found))
    return [*(f"{size:,}" for size in sizes), f"{played - begin:.1f}", f"{judged - played:.1f}"]


def main() -> None:
    """Write the table to standard output, and to `-o`."""
    from benchmarks.report import Table  # brings the compiler with it, which judging a plan does without

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="?", type=int, help="of one plan (default: three plans)")
    parser.add_argument("microbatches", nargs="?", type=int, default=1024)
    parser.add_argument("-o", "--output", type=Path, help="also write the table here")
    given = parser.parse_args()
    preface = (
        "# The judge on large plans",
        "",
        "Processor seconds of one core; asked for: at most 20 for 3 million.",
        "",
    )
    table = Table(preface=preface, header=HEADER, output=given.output)
    for sizes in SIZES if given.stages is None else [(given.stages, given.microbatches)]:
        table.add(measure(*sizes))
    table.close()


if __name__ == "__main__":
    main()
