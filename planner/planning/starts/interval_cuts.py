"""Cuts of the layers in one topological order, by dynamic programming."""

from functools import partial

from planner.clock import while_time
from planner.planning.search_state import SearchState
from solver_models.local_search.multistart import JointSearch
from solver_models.partition.candidates import candidates
from solver_models.partition.partition_instance import as_if_sharding, assign_devices, make_partition_instance
from solver_models.starts.recomputing import as_if_recomputing, recompute_variants

INTERVAL_CUTS = "dynamic programme"
"""What they are called among the improvers."""

_MAX_DEVICES = 128
"""Most devices for the programme."""
_SHARE = 0.2
"""Part of the time left that the programme, and playing what it finds, may take."""
_MAX_CANDIDATES = 8
"""Cuts taken from the programme."""


def may_cut(run: SearchState) -> bool:
    """Whether the programme is there: stages are open, and devices few enough."""
    instance = run.instance
    is_small = instance.given_stages is None and instance.num_devices <= _MAX_DEVICES
    return is_small and run.params.has(INTERVAL_CUTS)


def add_interval_cuts(run: SearchState, search: JointSearch) -> None:
    """Offer the best cuts to the search: as they are, and for stages that recompute or share their state."""
    instance, rate, has_time = run.instance, search.searcher.rate, run.time_until(_SHARE)
    look = partial(candidates, limit=_MAX_CANDIDATES, uneven="uneven_replication" in instance.rules, has_time=has_time)
    partition = make_partition_instance(instance)
    cuts = look(partition)
    search.add(while_time((rate(*assign_devices(partition, stages)) for stages in cuts), has_time=has_time))
    if "recompute" in instance.rules and has_time():
        smaller = make_partition_instance(as_if_recomputing(instance))
        cuts = look(smaller)
        rated = list(while_time((rate(*assign_devices(smaller, stages)) for stages in cuts), has_time=has_time))
        search.add([*rated, *while_time(recompute_variants(search.searcher, rated), has_time=has_time)])
    if instance.shard_choice != "never" and has_time():
        smaller = make_partition_instance(as_if_sharding(instance))
        cuts = look(smaller)
        search.add(while_time((rate(*assign_devices(smaller, stages)) for stages in cuts), has_time=has_time))
