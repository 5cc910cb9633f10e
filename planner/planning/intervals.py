"""Cuts of the layers in one topological order: by dynamic programming, then by an integer programme."""

from collections.abc import Iterator

from planner.planning.run import Run
from solver_models.portfolio import JointSearch
from solver_models.recomputing import as_if_recomputing, recompute_variants

INTERVAL_LIMIT_S, MAX_INTERVAL_CANDIDATES, MAX_INTERVAL_DEVICES = 2.0, 8, 128
"""Seconds for the integer programme over intervals, dynamic-programming cuts taken, and the most devices for either."""


def add_intervals(run: Run, search: JointSearch) -> Iterator[str]:
    """Offer cuts to the search; yields the name of their source after each step."""
    instance = search.searcher.instance
    if instance.given_stages is not None or len(instance.capacity) > MAX_INTERVAL_DEVICES:
        return
    # pulp takes a third of a second to import: not before the first plans are out
    from solver_models.partition import Interval, candidates, make_partition_instance, seat, solve_partition

    partition = make_partition_instance(instance)
    found = candidates(partition, limit=MAX_INTERVAL_CANDIDATES, uneven=instance.uneven_replication)
    search.add(search.searcher.rate(*seat(partition, stages)) for stages in found)
    if instance.recompute:
        smaller = make_partition_instance(as_if_recomputing(instance))
        cuts = candidates(smaller, limit=MAX_INTERVAL_CANDIDATES, uneven=instance.uneven_replication)
        rated = [search.searcher.rate(*seat(smaller, stages)) for stages in cuts]
        search.add([*rated, *recompute_variants(search.searcher, rated)])
    yield "dynamic programme"
    if not found or run.seconds_left < 2 * INTERVAL_LIMIT_S:
        return
    result = solve_partition(
        partition,
        incumbent=found[0],
        time_limit_s=INTERVAL_LIMIT_S,
        seed=run.limits.seed,
        should_stop=run.should_stop,
    )
    run.solvers["highspy"] = result.solver
    if result.stages is not None:
        best = tuple(Interval(*stage) for stage in result.stages)
        search.add([search.searcher.rate(*seat(partition, best))])
        yield "interval programme"
