"""Uniform chains of which K activations fit: `python -m benchmarks.capped_uniform [--quick] -o FILE`.

F = I = W, one stage per device, transfers free, stages and devices given; a microbatch's activations are held from the
start of its F to the end of its I. A row has every K from 1 to p: the steps of the plan, the largest gap, and processor
seconds of the whole planner. 'Closed' counts the K whose gap is 0 within 5 of them.
"""

from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from benchmarks.orders import STASH_BYTES, even_times, make_problem
from benchmarks.report import Table, make_parser, percent, plan_and_check
from planner.planning import Limits
from planner.problem import Problem

SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Devices."""

LIMIT_S, TARGET_S = 60.0, 5.0
"""Time limit of a problem, far enough for a busy machine, and processor seconds until the gap is to be closed."""

TICK_NS = 10_000_000
"""Time of every action."""


def make_uniform(devices: int, *, num_microbatches: int, room: int) -> Problem:
    """One layer per device, and memory for `room` activations."""
    times = even_times(devices, time_us=TICK_NS // 1_000)
    chain = make_problem(times, num_microbatches=num_microbatches, memory=1, transfer_us=0)
    layers = tuple(replace(layer, weight_stash_bytes=0) for layer in chain.profile.layers)
    rooms = tuple(replace(device, memory_bytes=room * STASH_BYTES) for device in chain.cluster.devices)
    links = tuple(replace(link, bandwidth_bytes_per_s=10**9) for link in chain.cluster.links)
    cluster = replace(chain.cluster, devices=rooms, links=links)
    return replace(chain, profile=replace(chain.profile, layers=layers), cluster=cluster)


def main() -> None:
    """Print the table, and write it to `-o`."""
    given = make_parser(__doc__).parse_args()
    header = ("p", "m", "K: steps", "closed", "largest gap", "median processor s", "most", "verified", "certified")
    table = Table.about("# Uniform chains with room for K activations", __doc__, header=header, output=given.output)
    met = []
    for devices in SIZES[:4] if given.quick else SIZES:
        for count in (devices, 2 * devices, 4 * devices):
            problems = {
                room: make_uniform(devices, num_microbatches=count, room=room) for room in range(1, devices + 1)
            }
            limits = Limits(time_limit_s=LIMIT_S)
            solved = {room: plan_and_check(problem, limits) for room, problem in problems.items()}
            seconds = [each.processor_s for each in solved.values()]
            closed = [each.evidence.gap <= 0 and each.processor_s <= TARGET_S for each in solved.values()]
            steps = ", ".join(f"{room}: {each.evidence.makespan_ns // TICK_NS}" for room, each in solved.items())
            met += closed
            table.add(
                [
                    str(devices), str(count), steps, f"{sum(closed)} of {len(closed)}",
                    percent(max(each.evidence.gap for each in solved.values())), f"{median(seconds):.1f}",
                    f"{max(seconds):.1f}", _word(each.is_verified for each in solved.values()),
                    _word(each.is_certified for each in solved.values()),
                ]
            )  # fmt: skip
    table.close(f"{sum(met)} of {len(met)} problems: gap 0.00 % within {TARGET_S:.0f} processor seconds.")


def _word(flags: Iterator[bool]) -> str:
    return "yes" if all(flags) else "NO"


if __name__ == "__main__":
    main()
