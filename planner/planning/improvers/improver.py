"""What the parts of a search have in common: a name, turns, and plans that they propose.

A step takes in what has become known, and starts tasks on the threads of the run
(`solver_models.local_search.task_window`). What these find is proposed when it is taken in. So every step begins with
the same knowledge on any number of threads.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from planner.errors import PlanError
from planner.plan import Plan
from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import plan_of
from planner.simulation.simulate import simulate
from planner.simulation.timeline import Timeline
from solver_models.local_search.multistart import JointSearch
from solver_models.local_search.order_search import OrderSearch
from solver_models.local_search.search import Candidate


class Improver(ABC):
    """A part of the search that has its step now and then."""

    name: str
    """Who is said to have found its plans."""

    @abstractmethod
    def is_due(self, rounds: int) -> bool:
        """Whether it has a step after so many rounds of the search were started."""

    @abstractmethod
    def take_step(self) -> Iterator[None]:
        """One turn; it yields wherever the run may end."""

    def close(self) -> None:
        """Note what it knows at the end: nothing, but for those that say otherwise."""
        return


class DecisionImprover(Improver):
    """The part of the search of a decision (`planner.decisions`), made by `make_improver(run, search)` of `move.py`."""

    finds_alone = False
    """Whether it may find a plan where the joint search has none."""
    run: SearchState

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether the options leave the decision open."""

    def is_due(self, rounds: int) -> bool:
        """In every round, where it is open."""
        del rounds
        return self.is_open

    def begin(self, given: Candidate | None) -> Iterator[None]:
        """What comes before the first round; `given`: stages and devices, where both are decided."""
        del given
        yield from ()

    def propose_best(self, plans: Iterable[Plan]) -> None:
        """Propose the best of some plans, if it is better than the incumbent."""
        found = [(objective, plan) for plan in plans if (objective := fitting_objective_ns(self.run, plan)) is not None]
        best = min(found, key=lambda each: each[0], default=None)
        if best is not None and (self.run.incumbent_ns is None or best[0] < self.run.incumbent_ns):
            self.run.propose(best[1], source=self.name)


def played(run: SearchState, plan: Plan) -> Timeline | None:
    """The plan's times; None for a deadlock, a cost that was not measured, or a route that is not there."""
    try:
        return simulate(run.problem, plan, costs=run.costs)
    except (PlanError, ValueError):
        return None


def overfull(run: SearchState, timeline: Timeline) -> set[str]:
    """Devices whose memory does not do."""
    devices = run.problem.cluster.by_name
    return {name for name, peak in timeline.peak_bytes.items() if peak > devices[name].usable_bytes}


def fitting_objective_ns(run: SearchState, plan: Plan) -> int | None:
    """None if the plan cannot be played, or does not fit into the memory of devices."""
    timeline = played(run, plan)
    if timeline is None or overfull(run, timeline):
        return None
    return timeline.objective_ns(run.problem.options.objective)


class Leader:
    """The best candidate of the joint search, and who found it."""

    def __init__(self, run: SearchState, search: JointSearch) -> None:
        self.run, self.search = run, search
        self.proposed: Candidate | None = run.seeds[-1] if run.seeds else None
        """The last candidate whose plan was proposed."""

    def propose(self, source: str) -> None:
        """Propose the best candidate if it has changed."""
        best = self.search.best
        if best is not None and best is not self.proposed:
            self.proposed = best
            self.run.propose(plan_of(self.run.problem, self.search.searcher, candidate=best), source=source)

    def take_best(self, order: OrderSearch, *, source: str) -> None:
        """Let the joint search continue from the best order of one partition, and propose it."""
        if order.best is not None:
            self.search.take([order.best])
            self.propose(source)
