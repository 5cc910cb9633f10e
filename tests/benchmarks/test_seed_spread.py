"""The table of several seeds: spreads, gaps to the best bound of a row, and what is farther apart than asked."""

from benchmarks.run import Row
from benchmarks.seed_spread import render_seeds, summarise


def make_row(name: str, makespan_ns: int, bound_ns: int, *, is_certified: bool = True) -> Row:
    evidence = {"makespan_ns": makespan_ns, "lower_bound_ns": bound_ns}
    return Row(
        name=name,
        num_layers=4,
        num_devices=2,
        num_microbatches=2,
        first_plan_s=0.1,
        total_s=1.0,
        plan={"evidence": evidence},
        is_certified=is_certified,
    )


def test_gaps_are_to_the_best_bound_of_the_row():
    """Tests that the shortest and the longest plan are held against the highest bound that any seed proved."""
    rows = [make_row("a", 100_000_000, 80_000_000), make_row("a", 125_000_000, 90_000_000, is_certified=False)]
    assert render_seeds("a", rows) == ["a", "100.00", "125.00", "25.00 %", "10.00 %", "28.00 %", "no"]


def test_workloads_farther_apart_than_asked_are_named():
    """Tests that exactly one per cent is within the target, and more is not."""
    near = [make_row("near", 100, 100), make_row("near", 101, 100)]
    far = [make_row("far", 1000, 900), make_row("far", 1011, 900)]
    assert summarise([near, far]) == "1 of 2 workloads within 1.00 %; median 1.05 %; farther apart: far 1.10 %."
