"""Cuts of the layers in one topological order: by dynamic programming, and, once the search has begun, by an integer
programme.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from planner.clock import HasTime, while_time
from planner.planning.improvers.improver import Improver, Leader
from planner.planning.search_state import SearchState
from solver_models.local_search.multistart import JointSearch
from solver_models.shared_state import as_if_sharding
from solver_models.starts.recomputing import as_if_recomputing, recompute_variants

if TYPE_CHECKING:
    from solver_models.partition import Interval

_MAX_DEVICES = 128
"""Most devices for either programme."""
_DYNAMIC_SHARE = 0.2
"""Part of the time left that the dynamic programme, and playing what it finds, may take."""
_MAX_CANDIDATES = 8
"""Cuts taken from the dynamic programme."""
_AFTER_ROUNDS = 4
"""Rounds of the search before the integer programme."""
_MIN_LEFT_S = 4.0
"""Without so many seconds left the integer programme is not begun."""
_LIMIT_S = 2.0
"""Seconds for building and solving the integer programme."""
_SHARE = 0.1
"""Part of the time left for it."""
_MAX_NODES = 200
"""Where rounds are counted: nodes of HiGHS's tree for every largest load that is tried."""


class Intervals(Improver):
    """Cuts of the dynamic programme before the search; those of the integer programme after its first rounds.

    That programme can take seconds, in which the search gains more.
    """

    name = "interval programme"

    def __init__(self, run: SearchState, search: JointSearch, *, leader: Leader) -> None:
        self.run, self.search, self.leader = run, search, leader
        self.found: list[tuple[Interval, ...]] = []
        """Cuts of the dynamic programme, the best first."""

    def begin(self) -> Iterator[None]:
        """Offer cuts of the dynamic programme, and propose the best; where none fits, the integer programme's too."""
        run, instance = self.run, self.search.searcher.instance
        is_given = instance.given_stages is not None
        if is_given or len(instance.capacity) > _MAX_DEVICES or not run.params.has("dynamic programme"):
            return
        with run.step_of("dynamic programme"):
            self._add_dynamic(run.time_until(_DYNAMIC_SHARE))
            self.leader.propose("dynamic programme")
        yield
        if not self.search.pool and self.is_due(_AFTER_ROUNDS) and run.params.has(self.name):
            with run.step_of(self.name):
                yield from self.take_step()

    def is_due(self, rounds: int) -> bool:
        """Once, after the first rounds of the search, if there is time."""
        return bool(self.found) and rounds >= _AFTER_ROUNDS and self.run.seconds_left >= _MIN_LEFT_S

    def take_step(self) -> Iterator[None]:
        """Offer the cuts of the integer programme to the search, and propose them."""
        # solvers take long to import: not before the first plans are out
        from solver_models.partition import Interval, assign_devices, make_partition_instance, solve_partition

        run, search = self.run, self.search
        partition = make_partition_instance(search.searcher.instance)
        is_timed = run.limits.max_rounds is None
        result = solve_partition(
            partition,
            incumbent=self.found[0],
            time_limit_s=min(_LIMIT_S, _SHARE * run.seconds_left) if is_timed else run.seconds_left,
            max_nodes=None if is_timed else _MAX_NODES,
            seed=run.limits.seed,
            should_stop=run.should_stop,
        )
        self.found = []
        run.solvers["highspy"] = result.solver
        if result.stages is not None:
            best = tuple(Interval(*stage) for stage in result.stages)
            search.add([search.searcher.rate(*assign_devices(partition, best))], are_starts=True)
            self.leader.propose(self.name)
        yield

    def _add_dynamic(self, has_time: HasTime) -> None:
        from solver_models.partition import assign_devices, candidates, make_partition_instance

        search, instance = self.search, self.search.searcher.instance
        rate, partition = search.searcher.rate, make_partition_instance(instance)
        look = partial(candidates, limit=_MAX_CANDIDATES, uneven=instance.uneven_replication, has_time=has_time)
        self.found = look(partition)
        search.add(while_time((rate(*assign_devices(partition, stages)) for stages in self.found), has_time=has_time))
        if instance.recompute and has_time():
            smaller = make_partition_instance(as_if_recomputing(instance))
            cuts = look(smaller)
            rated = list(while_time((rate(*assign_devices(smaller, stages)) for stages in cuts), has_time=has_time))
            search.add([*rated, *while_time(recompute_variants(search.searcher, rated), has_time=has_time)])
        if instance.sharding is not None and has_time():
            smaller = make_partition_instance(as_if_sharding(instance))
            cuts = look(smaller)
            search.add(while_time((rate(*assign_devices(smaller, stages)) for stages in cuts), has_time=has_time))
