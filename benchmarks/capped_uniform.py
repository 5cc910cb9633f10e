"""Uniform chains of which K activations fit: `python -m benchmarks.capped_uniform [--quick] -o FILE`.

F = I = W, one stage per device, transfers free, stages and devices given; a microbatch's activations are held from the
start of its F to the end of its I. Every K from 1 to p.
"""

from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from benchmarks.orders import solve
from benchmarks.report import Table, make_parser, percent
from planner.planning import Limits
from planner.problem import Options, Problem
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile

SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Devices."""

LIMIT_S, TARGET_S = 60.0, 5.0
"""Time limit of a problem, far enough for a busy machine, and processor seconds until the gap is to be closed."""

TICK_NS, STASH_BYTES = 10_000_000, 1_000
"""Time of every action, and bytes of a microbatch on a device."""


def make_uniform(devices: int, *, num_microbatches: int, room: int) -> Problem:
    """One layer per device, and memory for `room` activations."""
    cost = LayerCost(device_type="gpu", forward_ns=TICK_NS, input_grad_ns=TICK_NS, weight_grad_ns=TICK_NS)
    names = [f"stage-{number}" for number in range(devices)]
    seats = [f"gpu{number:02}" for number in range(devices)]
    return Problem(
        profile=ModelProfile(
            name=f"{devices} equal stages",
            layers=tuple(
                Layer(name=name, costs=(cost,), parameter_bytes=1, state_bytes=0, stash_bytes=STASH_BYTES)
                for name in names
            ),
            edges=tuple(Edge(producer=a, consumer=b, bytes=0) for a, b in pairwise(names)),
        ),
        cluster=Cluster(
            name=f"{devices} devices",
            devices=tuple(Device(name=seat, type="gpu", memory_bytes=room * STASH_BYTES) for seat in seats),
            links=tuple(Link(a=a, b=b, bandwidth_bytes_per_s=10**9) for a, b in pairwise(seats)),
        ),
        num_microbatches=num_microbatches,
        options=Options(
            receive_buffers=0,
            partition=tuple((name,) for name in names),
            placement=tuple(((seat,),) for seat in seats),
        ),
    )


def main() -> None:
    """Print the table, and write it to `-o`."""
    given = make_parser(__doc__).parse_args()
    preface = (
        "# Uniform chains with room for K activations",
        "",
        "p devices with one stage each, m microbatches, F = I = W = 1 step, transfers free, memory for K activations "
        "on every device (held from the start of F to the end of I). Per row all K: the steps of the plan (of every "
        "one that is proved optimal, its number of steps is the optimum), the largest gap, and processor seconds of "
        "the whole planner, of all its threads. 'Closed' counts the K whose gap is 0 within 5 of them.",
        "",
    )
    header = ("p", "m", "K: steps", "closed", "largest gap", "median processor s", "most", "verified", "certified")
    table = Table(preface=preface, header=header, output=given.output)
    met = []
    for devices in SIZES[:4] if given.quick else SIZES:
        for count in (devices, 2 * devices, 4 * devices):
            solved = {
                room: solve(make_uniform(devices, num_microbatches=count, room=room), Limits(time_limit_s=LIMIT_S))
                for room in range(1, devices + 1)
            }
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
