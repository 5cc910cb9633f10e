"""First candidates of a run: played before anything slow begins; the best of them becomes the first plan."""

import math
import time
from collections.abc import Iterable

from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import plan_of
from solver_models.local_search.search import Candidate, Searcher
from solver_models.precompile import FIRST
from solver_models.starts.large_construction import large_seeds

_SEED_SHARE = 0.1
"""Part of the time limit that the first candidates of a large problem, or those on few devices, are looked for."""
_MIN_SEED_PLAYS = 6
"""First candidates of a large problem that are played at least."""
_MAX_SEED_ACTIONS = 200_000_000
"""Actions that the first candidates of a large problem may be in all."""

LARGE_SEEDS = "large seeds"
"""What those of large problems are called among the improvers."""


def add_seeds(run: SearchState, candidates: Iterable[Candidate], *, source: str) -> None:
    """Keep what was played, the best last, and who found that."""
    before = run.seeds[-1] if run.seeds else None
    run.seeds = sorted([*run.seeds, *candidates], key=lambda candidate: candidate.sort_key, reverse=True)
    if run.seeds and run.seeds[-1] is not before:
        run.seed_source = source


def propose_best_seed(run: SearchState) -> None:
    """The best candidate becomes the incumbent, if it fits and is better."""
    if run.seeds:
        with run.step_of(run.seed_source):
            _propose_best(run)


def _propose_best(run: SearchState) -> None:
    searcher = Searcher(run.instance, params=run.params)
    _propose(run, searcher, candidate=run.seeds[-1], source=run.seed_source)


def _propose(run: SearchState, searcher: Searcher, *, candidate: Candidate, source: str) -> None:
    num_actions = 3 * run.problem.num_microbatches * sum(map(len, candidate.groups))
    is_better = candidate.is_feasible and (run.incumbent_ns is None or candidate.objective < run.incumbent_ns)
    if is_better and run.has_time_to_verify(num_actions):
        run.propose(plan_of(run.problem, searcher, candidate=candidate), source=source)


def begin_large(run: SearchState) -> None:
    """Candidates of a large problem, found among many cuts and mappings; a first plan at once if that is quick.

    Where all devices together have too many actions for that, the first plan is on a part of them.
    """
    if not run.is_large:
        return
    run.make_ready(*FIRST, "large")
    searcher = Searcher(run.instance, params=run.params)
    with run.step_of(LARGE_SEEDS):
        few = run.params.first_plans.quick_actions * run.instance.num_devices // run.num_actions
        if run.threshold_ns is None and 0 < few < run.instance.num_devices:
            for candidate in large_seeds(searcher, most_plays=_MIN_SEED_PLAYS, until=_until(run), most_devices=few):
                _propose(run, searcher, candidate=candidate, source=LARGE_SEEDS)
                if run.plan is not None:
                    break
        most = max(_MIN_SEED_PLAYS, _MAX_SEED_ACTIONS // run.num_actions)
        for candidate in large_seeds(searcher, most_plays=most, until=_until(run)):
            add_seeds(run, [candidate], source=LARGE_SEEDS)
            if run.plan is None and run.num_actions <= run.params.first_plans.quick_actions:
                _propose_best(run)


def _until(run: SearchState) -> float:
    """Until when first candidates are looked for, by `time.monotonic`."""
    return time.monotonic() + (_SEED_SHARE * run.limits.time_limit_s if run.limits.max_rounds is None else math.inf)
