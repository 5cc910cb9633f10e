"""Two chunks per device in a V, even costs, half the memory: `python -m benchmarks.two_chunks [--quick] -o FILE`."""

from benchmarks.orders import HEADER, STASH_BYTES, add_row, even_times, make_problem, solve
from benchmarks.report import Table, make_parser, percent
from planner.planning import Limits

PUBLISHED_V_HALF = {8: 80_500}
"""Makespan in microseconds of V-Half as published, F = I = W = 1000 us per device, transfers free, M = 3 D: the bubble
.1056 for eight devices."""

MAX_GAP = 0.04
"""The target."""


def main() -> None:
    """Print the table, and write it to `-o`."""
    given = make_parser(__doc__).parse_args()
    preface = (
        "# Two chunks per device, half the memory",
        "",
        "Stages d and 2 D - 1 - d on device d, F = I = W = 500 us each, transfers free, M = 3 D, memory for D / 2 + 1 "
        "microbatches (what V-Half needs). The order is searched with partition and placement given.",
        "",
    )
    table = Table(preface=preface, header=HEADER, output=given.output)
    remarks = []
    for devices in (8,) if given.quick else (8, 16, 32):
        count = 3 * devices
        problem = make_problem(
            even_times(2 * devices, time_us=500),
            num_microbatches=count,
            memory=(devices // 2 + 1) / devices + 1e-9,
            chunks=2,
            transfer_us=0,
        )
        solved = solve(problem, Limits(time_limit_s=8 if given.quick else 60))
        memory = f"{(devices // 2 + 1) * STASH_BYTES / (devices * STASH_BYTES):.3f} x"
        add_row(table, solved, setting="V, even", size=(devices, count), memory=memory, target=MAX_GAP)
        ours = next(b for b in solved.evidence.baselines if b.name.startswith("V-Half"))
        bubble = f"bubble {percent(solved.evidence.bubble)}, our V-Half {percent(ours.bubble or 0)}"
        published = PUBLISHED_V_HALF.get(devices)
        if published is not None:
            verdict = "met" if solved.evidence.makespan_ns <= 1_000 * published else "missed"
            bubble += f"; not above the published V-Half ({published / 1000:.1f} ms): {verdict}"
        remarks.append(f"D = {devices}: {bubble}.")
    table.close(*remarks)


if __name__ == "__main__":
    main()
