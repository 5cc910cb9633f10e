"""Neighbours of the rows of other tables: `python -m benchmarks.neighbours [--quick] [--rows K] -o FILE`.

A row is planned as it is. Then something small changes, by a fixed seed, and it is planned anew, without the row's
plan. Beside that stands what the row's plan takes when it is played on the changed problem.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from benchmarks.capped_uniform import make_uniform
from benchmarks.orders import even_times, make_problem, solve, uneven_times
from benchmarks.report import Table, make_parser, ms, percent
from planner.planning import Limits
from planner.problem import Problem
from planner.verify import verify
from profiles.model_profile import Layer

LIMIT_S = 10.0
"""Of a plan; bounds and baselines count with the search."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A problem of another table: its stages and devices are given."""

    name: str
    problem: Problem


Change = Callable[[Problem, random.Random], Problem]


def with_transfers(share: float) -> Change:
    """Every edge takes this share of an action."""

    def change(problem: Problem, _: random.Random) -> Problem:
        cost = problem.profile.layers[0].costs[0]
        assert cost.forward_ns is not None
        bandwidth = problem.cluster.links[0].bandwidth_bytes_per_s
        num_bytes = max(1, round(share * cost.forward_ns * bandwidth / 1e9))
        edges = tuple(replace(edge, bytes=num_bytes) for edge in problem.profile.edges)
        return replace(problem, profile=replace(problem.profile, edges=edges))

    return change


def with_times(share: float) -> Change:
    """Every time by up to this share longer or shorter."""

    def change(problem: Problem, rng: random.Random) -> Problem:
        layers = tuple(_scaled(layer, lambda: 1 + rng.uniform(-share, share)) for layer in problem.profile.layers)
        return replace(problem, profile=replace(problem.profile, layers=layers))

    return change


def with_slow_device(problem: Problem, rng: random.Random) -> Problem:
    """What one device runs takes 3 % longer."""
    placement, partition = problem.options.placement, problem.options.partition
    assert placement is not None
    assert partition is not None
    slow = rng.choice(placement)
    names = {name for layers, group in zip(partition, placement, strict=True) if group == slow for name in layers}
    layers = tuple(_scaled(layer, lambda: 1.03) if layer.name in names else layer for layer in problem.profile.layers)
    return replace(problem, profile=replace(problem.profile, layers=layers))


def with_less_memory(num_bytes: Callable[[Problem], int]) -> Change:
    """Every device has so much less."""

    def change(problem: Problem, _: random.Random) -> Problem:
        less = num_bytes(problem)
        devices = tuple(replace(each, memory_bytes=each.memory_bytes - less) for each in problem.cluster.devices)
        return replace(problem, cluster=replace(problem.cluster, devices=devices))

    return change


def _scaled(layer: Layer, factor: Callable[[], float]) -> Layer:
    cost = layer.costs[0]
    assert cost.forward_ns is not None
    assert cost.input_grad_ns is not None
    assert cost.weight_grad_ns is not None
    scaled = replace(
        cost,
        forward_ns=round(cost.forward_ns * factor()),
        input_grad_ns=round(cost.input_grad_ns * factor()),
        weight_grad_ns=round(cost.weight_grad_ns * factor()),
    )
    return replace(layer, costs=(scaled,))


CHANGES: dict[str, Change] = {
    "transfers 0.1 %": with_transfers(0.001),
    "transfers 1 %": with_transfers(0.01),
    "transfers 5 %": with_transfers(0.05),
    "times +-2 %": with_times(0.02),
    "times +-5 %": with_times(0.05),
    "a device 3 % slower": with_slow_device,
    "a byte less": with_less_memory(lambda _: 1),
    "an activation less": with_less_memory(lambda problem: problem.profile.layers[0].stash_bytes),
}


def uniform_rows(most: int) -> Iterator[Row]:
    """So many of the uniform chains, drawn by a fixed seed."""
    sizes = [
        (devices, factor * devices, room)
        for devices in (4, 6, 8, 12, 16, 24)
        for factor in (1, 2, 3, 4)
        for room in range(2, devices + 1)
    ]
    for devices, count, room in sorted(random.Random(0).sample(sizes, most)):
        yield Row(
            name=f"uniform p {devices}, m {count}, K {room}",
            problem=make_uniform(devices, num_microbatches=count, room=room),
        )


def order_rows() -> Iterator[Row]:
    """Given stages in as much memory as 1F1B and in half of it, and two chunks per device in half of it."""
    for stages, count in ((4, 12), (8, 24), (16, 48)):
        for memory in (1.0, 0.5):
            problem = make_problem(uneven_times(stages, seed=1), num_microbatches=count, memory=memory)
            yield Row(name=f"orders S {stages}, M {count}, memory {memory:g}", problem=problem)
    for devices, count in ((4, 12), (8, 24)):
        problem = make_problem(even_times(2 * devices), num_microbatches=count, memory=0.5 + 1 / devices, chunks=2)
        yield Row(name=f"two chunks D {devices}, M {count}", problem=problem)


def main() -> None:
    """Print the table, and write it to `-o`."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=40, help="uniform chains, each with all neighbours")
    given = parser.parse_args()
    preface = (
        "# Neighbours",
        "",
        "Rows of other tables with a small change, planned anew in 10 s. *Row's plan played* is what the plan of the "
        "row as it is takes on the changed problem; empty where it does not fit. The planner is not handed it.",
        "",
    )
    header = ("row", "change", "ours ms", "row's plan played ms", "ours / played", "bound ms", "gap", "verified", "s")
    table = Table(preface=preface, header=header, output=given.output)
    rows = [*uniform_rows(2 if given.quick else given.rows), *([] if given.quick else order_rows())]
    above, gaps = 0, list[float]()
    for number, row in enumerate(rows):
        clean = solve(row.problem, Limits(time_limit_s=LIMIT_S)).plan
        for name, change in CHANGES.items():
            problem = change(row.problem, random.Random(number))
            if min(device.memory_bytes for device in problem.cluster.devices) < 1:
                continue
            found = solve(problem, Limits(time_limit_s=LIMIT_S))
            verdict = verify(problem, replace(clean, problem=problem.reference(), evidence=None))
            played = verdict.timeline.makespan_ns if verdict.passed and verdict.timeline is not None else None
            ours = found.evidence.makespan_ns
            above += played is not None and ours > played
            gaps.append(found.evidence.gap)
            table.add(
                [
                    row.name, name, ms(ours), "" if played is None else ms(played),
                    "" if played is None else f"{ours / played:.4f}", ms(found.evidence.lower_bound_ns),
                    percent(found.evidence.gap), "yes" if found.is_verified and found.is_certified else "NO",
                    f"{found.total_s:.1f}",
                ]
            )  # fmt: skip
    closed = sum(gap <= 0.001 for gap in gaps)
    table.close(f"{above} of {len(gaps)} above the row's plan; gap at most 0.1 % in {closed}, worst {max(gaps):.2%}.")


if __name__ == "__main__":
    main()
