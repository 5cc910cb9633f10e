"""Cuts of the layers in one topological order: by dynamic programming, then by an integer programme."""

from collections.abc import Iterator
from functools import partial

from planner.clock import while_time
from planner.planning.improvers.improver import Leader
from planner.planning.search_state import SearchState
from solver_models.local_search.multistart import JointSearch
from solver_models.shared_state import as_if_sharding
from solver_models.starts.recomputing import as_if_recomputing, recompute_variants

_MAX_DEVICES = 128
"""Most devices for either programme."""
_DYNAMIC_SHARE = 0.2
"""Part of the time left that the dynamic programme, and playing what it finds, may take."""
_MAX_CANDIDATES = 8
"""Cuts taken from the dynamic programme."""
_MIN_LEFT_S = 4.0
"""Without so many seconds left the integer programme is not begun."""
_LIMIT_S = 2.0
"""Seconds for building and solving the integer programme."""
_SHARE = 0.1
"""Part of the time left for it."""
_MAX_NODES = 200
"""Where rounds are counted: nodes of HiGHS's tree for every largest load that is tried."""


def add_intervals(run: SearchState, search: JointSearch, *, leader: Leader) -> Iterator[None]:
    """Offer cuts to the search, and propose the best; yields after each step."""
    instance, has = search.searcher.instance, run.params.has
    is_given = instance.given_stages is not None
    if is_given or len(instance.capacity) > _MAX_DEVICES or not has("dynamic programme"):
        return
    # solvers take long to import: not before the first plans are out
    from solver_models.partition import Interval, assign_devices, candidates, make_partition_instance, solve_partition

    partition = make_partition_instance(instance)
    with run.step_of("dynamic programme"):
        has_time, rate = run.time_until(_DYNAMIC_SHARE), search.searcher.rate
        look = partial(
            candidates,
            limit=_MAX_CANDIDATES,
            uneven=instance.uneven_replication,
            has_time=has_time,
        )
        found = look(partition)
        search.add(while_time((rate(*assign_devices(partition, stages)) for stages in found), has_time=has_time))
        if instance.recompute and has_time():
            smaller = make_partition_instance(as_if_recomputing(instance))
            cuts = look(smaller)
            rated = list(while_time((rate(*assign_devices(smaller, stages)) for stages in cuts), has_time=has_time))
            search.add([*rated, *while_time(recompute_variants(search.searcher, rated), has_time=has_time)])
        if instance.sharding is not None and has_time():
            smaller = make_partition_instance(as_if_sharding(instance))
            cuts = look(smaller)
            search.add(while_time((rate(*assign_devices(smaller, stages)) for stages in cuts), has_time=has_time))
        leader.propose("dynamic programme")
    yield
    if not found or run.seconds_left < _MIN_LEFT_S or not has("interval programme"):
        return
    is_timed = run.limits.max_rounds is None
    with run.step_of("interval programme"):
        result = solve_partition(
            partition,
            incumbent=found[0],
            time_limit_s=min(_LIMIT_S, _SHARE * run.seconds_left) if is_timed else run.seconds_left,
            max_nodes=None if is_timed else _MAX_NODES,
            seed=run.limits.seed,
            should_stop=run.should_stop,
        )
        run.solvers["highspy"] = result.solver
        if result.stages is not None:
            best = tuple(Interval(*stage) for stage in result.stages)
            search.add([search.searcher.rate(*assign_devices(partition, best))])
            leader.propose("interval programme")
    yield
