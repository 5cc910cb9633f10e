"""Which stages recompute, to begin with, where memory does not suffice without: few, the first ones, or all of them."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from solver_models.device_rows import MEMORY
from solver_models.instance import BACKWARD, INPUT_GRAD, Instance, Integers
from solver_models.local_search.search import Candidate, Searcher
from solver_models.moves.annealing import UNRATED
from solver_models.simulation.columns import (
    CHECKPOINT_ROW,
    RECOMPUTATION,
    RECOMPUTING,
    SHARDING,
    STASH_ROW,
    STATE_ROW,
    WEIGHT_STASH_ROW,
)


def recompute_variants(searcher: Searcher, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """For every candidate that keeps the rules: the greedy choice; beyond the memory also all stages, and the first.

    The first stages hold the most microbatches at once, so that a memory that is too small is found there first.
    """
    if "recompute" not in searcher.instance.rules:
        return
    for candidate in candidates:
        if candidate.fit == UNRATED:
            continue
        flags = greedy_flags(searcher, candidate)
        if flags.any():
            yield searcher.rate(candidate.stage_of, candidate.groups, modes=flags | candidate.modes & SHARDING)
        if candidate.is_feasible:
            continue
        low, high = 0, len(candidate.groups)
        whole = _with_first(searcher, candidate, count=high)
        yield whole
        while whole.is_feasible and high - low > 1:
            middle = (low + high) // 2
            some = _with_first(searcher, candidate, count=middle)
            if some.is_feasible:
                yield some
                high = middle
            else:
                low = middle


def greedy_flags(searcher: Searcher, candidate: Candidate) -> Integers:
    """[S] 1 where a stage recomputes so that devices have room for what 1F1B holds: least time per byte freed first.

    Stage s of S is taken to hold min(M, S - s) microbatches. On a device that lacks room, recomputation is turned on at
    the stages that lose the fewest ticks per unit freed, one after the other, until there is room or nothing frees any.
    """
    num_stages = len(candidate.groups)
    flags = np.zeros(num_stages, np.int64)
    shards = candidate.modes & SHARDING
    nets = [searcher.net_of(replace(candidate, modes=shards | flag)) for flag in (0, RECOMPUTING)]
    stages = nets[0].replica_stage
    in_flight = np.minimum(searcher.instance.num_microbatches, num_stages - stages)
    need, least = (net.held * in_flight + np.maximum(net.whole_backward - net.held, 0) for net in nets)
    freed, lost = need - least, nets[1].duration[:, BACKWARD] - nets[0].duration[:, BACKWARD]
    for device in np.unique(nets[0].replica_device):
        replicas = np.nonzero(nets[0].replica_device == device)[0]
        excess = need[replicas].sum() + nets[0].workspace[replicas].max() - nets[0].devices[device, MEMORY]
        excess -= (freed * flags[stages])[replicas].sum()
        useful = replicas[(freed[replicas] > 0) & (flags[stages[replicas]] == 0)].tolist()
        for replica in sorted(useful, key=lambda replica: lost[replica] / freed[replica]):
            if excess <= 0:
                break
            flags[stages[replica]] = 1
            excess -= freed[replica]
    return flags


def _with_first(searcher: Searcher, candidate: Candidate, *, count: int) -> Candidate:
    flags = RECOMPUTING * (np.arange(len(candidate.groups)) < count).astype(np.int64)
    return searcher.rate(candidate.stage_of, candidate.groups, modes=flags | candidate.modes & SHARDING)


def as_if_recomputing(instance: Instance) -> Instance:
    """The instance in which every stage recomputes: longer backwards, checkpoints for stashes, the rest resident."""
    work, sizes = instance.layers.work.copy(), instance.layers.sizes.copy()
    work[:, INPUT_GRAD] += work[:, RECOMPUTATION]
    work[:, BACKWARD] += work[:, RECOMPUTATION]
    sizes[:, STATE_ROW] += sizes[:, STASH_ROW] - sizes[:, CHECKPOINT_ROW]
    sizes[:, STASH_ROW] = sizes[:, CHECKPOINT_ROW]
    sizes[:, WEIGHT_STASH_ROW] = np.minimum(sizes[:, WEIGHT_STASH_ROW], sizes[:, CHECKPOINT_ROW])
    return replace(instance, layers=instance.layers._replace(work=work, sizes=sizes))
