"""Which stages recompute, to begin with: all of them, or only the first ones, where memory does not suffice without."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from solver_models.annealing import PENALTY
from solver_models.instance import Instance
from solver_models.search import Candidate, Searcher


def recompute_variants(searcher: Searcher, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """For every candidate that keeps the rules but not the memory: all stages recompute, and the fewest first ones.

    The first stages hold the most microbatches at once, so that a memory that is too small is found there first.
    """
    if not searcher.instance.recompute:
        return
    for candidate in candidates:
        if candidate.is_feasible or candidate.objective >= 4 * PENALTY:
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


def _with_first(searcher: Searcher, candidate: Candidate, *, count: int) -> Candidate:
    flags = (np.arange(len(candidate.groups)) < count).astype(np.int64)
    return searcher.rate(candidate.stage_of, candidate.groups, recompute=flags)


def as_if_recomputing(instance: Instance) -> Instance:
    """The instance in which every stage recomputes: longer backwards, checkpoints for stashes, the rest resident."""
    work = instance.work.copy()
    work[:, 1] += work[:, 4]
    work[:, 3] += work[:, 4]
    return replace(
        instance,
        work=work,
        state=instance.state + instance.stash - instance.checkpoint,
        stash=instance.checkpoint,
        weight_stash=np.minimum(instance.weight_stash, instance.checkpoint),
    )
