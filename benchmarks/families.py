"""Certified gaps of joint plans on random families of 8 and 16 devices: `python -m benchmarks.families`."""

from itertools import product

from benchmarks.chains import make_chains, make_one_by_one, parse_wishes
from benchmarks.generate import Family, Links, Memory, Speeds
from benchmarks.report import Table, ms, peak_memory_gib, percent, plan_and_check
from planner.planning import Limits

HEADER = (
    "workload", "best baseline ms", "makespan ms", "lower bound ms", "bound", "gap", "target", "first plan s", "s",
    "verified", "certificate", "result",
)  # fmt: skip

SIZES = ((48, 8), (96, 16))
"""Layers and devices; twice as many microbatches as devices."""

MACHINES: tuple[tuple[Links, Speeds], ...] = (("homogeneous", "equal"), ("two-level", "classes"))
TARGETS: dict[Memory, float] = {"loose": 0.02, "tight": 0.07}
"""Largest gap by memory."""


def main() -> None:
    """Print the table, and write it where `-o` says."""
    wishes = parse_wishes(__doc__, time_limit=60.0, what="each plan")
    seconds = 2.0 if wishes.quick else wishes.time_limit
    table = Table(preface=_preface(seconds), header=HEADER, output=wishes.output)
    results = []
    for family in make_families()[: 2 if wishes.quick else None]:
        cells, is_met = plan_family(family, seconds=seconds)
        results.append(is_met)
        table.add(cells)
    table.close(f"* target met in {sum(results)} of {len(results)} rows; peak memory {peak_memory_gib():.2f} GiB.")


def make_families() -> list[Family]:
    """Loose and memory-bound chains on devices alike and in two classes, 8 and 16 of them."""
    return make_chains(SIZES, [(memory, machine) for machine, memory in product(MACHINES, TARGETS)])


def plan_family(family: Family, *, seconds: float) -> tuple[list[str], bool]:
    """A row of the table, and whether its target is met."""
    problem = make_one_by_one(family)
    planned = plan_and_check(problem, Limits(time_limit_s=seconds, patience_s=seconds))
    evidence, target = planned.evidence, TARGETS[family.memory]
    fitting = [row.makespan_ns for row in evidence.baselines if row.fits_memory and row.makespan_ns is not None]
    is_met = planned.gap <= target and planned.is_verified and planned.is_certified
    return [
        family.name,
        ms(min(fitting)) if fitting else "none fits",
        ms(evidence.makespan_ns),
        ms(evidence.lower_bound_ns),
        evidence.bound_kind,
        percent(planned.gap),
        percent(target),
        f"{planned.first_plan_s:.1f}",
        f"{planned.total_s:.0f}",
        "yes" if planned.is_verified else "NO",
        "re-derived" if planned.is_certified else "REJECTED",
        "met" if is_met else "MISSED",
    ], is_met


def _preface(seconds: float) -> list[str]:
    return [
        "# Joint plans on random families, 8 and 16 devices",
        "",
        f"Partition, mapping, depth and order are decided together within {seconds:g} s; one stage per device.",
        "The bound holds for every partition, mapping and order; `benchmarks/generate.py` says what the names mean.",
        "",
    ]


if __name__ == "__main__":
    main()
