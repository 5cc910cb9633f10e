"""Branch-and-check on a small problem: open cases of partition and mapping are closed by their best orders.

The master (`solver_models.joint`) lists the partitions and mappings whose lower bound is below the incumbent; each is
closed by its lower bound, by branch and bound over its orders, or by CP-SAT. What stays open when time is up bounds
every plan from below.

What only CP-SAT says is kept apart: it is a solver's claim, not a search of ours.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, permutations
from typing import TypeVar

import numpy as np

from planner.errors import InfeasibleProblemError
from planner.layout.costs import CostModel
from planner.layout.device_groups import list_groups, lists_every_group
from planner.lowering import make_orders, make_plan_from_orders, make_schedule_instance, make_stages
from planner.plan import Plan, Stage
from planner.planning.planning_params import SearchParams
from planner.problem import Problem
from planner.simulation.simulate import simulate
from solver_models.instance import DeviceOrder, ScheduleInstance
from solver_models.interruptible import run_stoppable
from solver_models.joint.search_space import make_space
from solver_models.joint.subproblems import OpenCase, open_cases
from solver_models.joint.symmetry import signature
from solver_models.local_search.search import LATEST, Candidate, Searcher
from solver_models.local_search.task_window import TaskWindow
from solver_models.result import ScheduleResult

Found = TypeVar("Found")

_NODES_AGAIN = (20_000, 200_000)
"""Nodes that a case gets which only CP-SAT closed, once no refutation was found, one after the other."""
_MOST_NODES_AGAIN = 1_000_000
"""Nodes of all these cases together; where they would take more, CP-SAT's word remains a claim."""
_LONG_BATCH = 4
"""Cases that are branched on at a time, below the same incumbent, with many nodes."""
_FEW_NODES = 100
"""So many nodes take no time worth stopping."""
_QUICK_BATCH = 16
"""Cases that are branched on at a time, below the same incumbent, with few nodes."""
_PROMISING_STEPS = 3_000
"""Plays that polish the orders of a promising case."""
_ORDER_BATCH = 8
"""Orders that are solved side by side, below the same incumbent, however many threads there are."""
_POLISH_ITERATIONS = 50_000
"""Plays that polish the device orders of a case where these are too many to be enumerated."""
_MOST_PAIRS = 16_384
"""Pairs of devices whose routes are compared in networks with several paths; none is searched with more."""
_FIRST_STEP = 2
"""Where there is no incumbent, so many times the bound is tried first."""
_SMALLEST_STEP = 200
"""Steps above less than one part in so many of the bound are not tried."""


@dataclass(slots=True, kw_only=True)
class _Case:
    """An open case and what is known of it by now."""

    candidate: Candidate
    """Partition and mapping."""
    bound: int
    """Nanoseconds that none of its orders beats, if CP-SAT can be believed."""
    proved: int
    """The same by our own rules: its lower bound, or branch and bound."""
    instance: ScheduleInstance | None = None
    """The orders that are open, once they are asked for."""
    effort: float = 0.0
    """The most that was spent on it."""
    key: Hashable = None
    """Cases with equal keys have equal optima; None if unknown."""

    def prove(self, bound: int) -> None:
        """None of its orders is below `bound`, by rules of ours."""
        self.bound, self.proved = max(self.bound, bound), max(self.proved, bound)


def is_small(problem: Problem, *, most_pairs: int = _MOST_PAIRS) -> bool:
    """Whether partitions, mappings and lower bounds are what the kernels take them for: one route per pair of devices.

    One latency and one bandwidth per pair are taken for all sizes.
    """
    options, cluster = problem.options, problem.cluster
    if options.split_placement or any(link.message_times for link in cluster.links):
        return False
    return cluster.is_tree or _has_one_route_per_pair(problem, most_pairs=most_pairs)


def _has_one_route_per_pair(problem: Problem, *, most_pairs: int) -> bool:
    """Whether transfers of all sizes take the same routes; not where there are too many pairs to look at."""
    cluster = problem.cluster
    pairs = list(permutations((device.name for device in cluster.devices), 2))
    if len(pairs) > most_pairs:
        return False
    most = sum(max(edge.bytes, edge.backward_bytes) for edge in problem.profile.edges)
    gradients = [
        (layer.synchronised_bytes, *(layer.synchronised_bytes_at(w.width) or 0 for w in layer.wider))
        for layer in problem.profile.layers
    ]
    sizes = {1, 2 * most + 1, 1 + sum(map(max, gradients))}
    cluster.find_routes((a, b, size) for size in sizes for a, b in pairs)
    return all(len({cluster.route(a, b, num_bytes=size) for size in sizes}) == 1 for a, b in pairs)


class ExactSearch:
    """The exact search of one problem."""

    def __init__(
        self,
        costs: CostModel,
        *,
        searcher: Searcher,
        incumbent_ns: Callable[[], int | None],
        seconds_left: Callable[[], float],
        seed: int = 0,
        window: TaskWindow | None = None,
        params: SearchParams = SearchParams(),
    ) -> None:
        self.problem = problem = costs.problem
        self.exact_params, self.case_params = params.exact, params.case
        self.costs, self.searcher, self.seed = costs, searcher, seed
        self.window = window or TaskWindow()
        self.incumbent_ns, self.seconds_left = incumbent_ns, seconds_left
        self.bound_ns: int | None = None
        """What no plan beats, if the solvers can be believed; None until the open cases are listed."""
        self.proved_ns: int | None = None
        """The same without what only a solver says."""
        self.cases: list[_Case] = []
        """Those of the last list, which has all below `threshold`."""
        self.threshold = 0
        self.solver = ""
        """The solver that was asked for orders."""
        self.num_cases = self.num_orders = 0
        """Cases listed, and orders given to the solver."""
        self.is_listing = False
        """Whether the last list of open cases was too long: then there is little hope to close them all soon."""
        self.next_nodes = params.exact.nodes[0]
        """Nodes that the next attempt to list them may look at."""
        self.settled: dict[Hashable, tuple[int, int]] = {}
        """By key, the largest bound and proved bound of a case."""
        has_all_groups = not list_groups(problem) or (
            lists_every_group(problem) and problem.options.max_stages_per_device == 1
        )
        self.covers_all_plans = has_all_groups and problem.options.is_enumerated
        """Whether every plan is searched: of groups of several devices only those of `list_groups` are, and of those in
        one plan only such as are equal or disjoint; stages recompute all of their layers or none, and replicas take
        equal shares with whole weights."""
        self.branches = not (searcher.by_span or problem.times_beside_actions) and (
            problem.options.synchronisation == "after" or problem.max_replicas == 1
        )
        """Whether orders are branched on, or all left to CP-SAT."""

    @property
    def below(self) -> int:
        """Objective in ns that a new plan has to beat."""
        incumbent = self.incumbent_ns()
        return LATEST if incumbent is None else incumbent

    @property
    def is_closed(self) -> bool:
        """Whether no plan that is searched can be better than the incumbent."""
        return self.bound_ns is not None and self.bound_ns >= self.below

    @property
    def num_closed(self) -> int:
        """Cases of the last list that are closed."""
        return sum(case.bound >= self.below for case in self.cases)

    @property
    def is_proved(self) -> bool:
        """Whether that is shown without trusting a solver."""
        return self.proved_ns is not None and self.proved_ns >= self.below

    def proposals(self, *, least: Callable[[], int]) -> Iterator[Plan | None]:
        """Better plans as they are found; `least`: the bound known by then. Nothing where the problem is too large.

        Cases are listed up to a threshold, closed, and listed again up to the incumbent that they left. After every
        step it yields, None where it found nothing, so that the caller can spend time elsewhere in between.
        Raises InfeasibleProblemError if every case is closed and there is no plan.
        """
        if not is_small(self.problem):
            return
        for threshold, opened in self._thresholds(least):
            self.is_listing = opened is None
            if opened is None:
                yield None
                continue
            self.cases = cases = [self._make_case(case) for case in opened]
            self.threshold = threshold
            self.num_cases = max(self.num_cases, len(cases))
            self._rebound(threshold, cases)
            if self.below == LATEST or not (self.branches or self.num_orders):
                yield from self._find(threshold, cases[: self.case_params.promising])
            yield from self._close(threshold, cases)
        if self.is_closed and self.below == LATEST and self.covers_all_plans:
            how = "" if self.is_proved else ", some orders by a solver whose word it is,"
            raise InfeasibleProblemError(
                f"every partition, mapping and order was tried{how} and none fits into memory: give more memory, fewer "
                "receive buffers, recomputation, or more stages per device"
            )

    def close_again(self, *, most_nodes: int = _MOST_NODES_AGAIN) -> Iterator[Plan | None]:
        """Close what only CP-SAT closed by branch and bound, with more nodes than it was given before CP-SAT was asked.

        Nothing where that would be too many nodes. A better plan is found only where CP-SAT was wrong.
        """
        for nodes in _NODES_AGAIN if self.branches and self.is_closed else ():
            claimed = self._claimed()
            if not claimed or len(claimed) * nodes > most_nodes:
                return
            for first in range(0, len(claimed), _LONG_BATCH):
                if self._is_over():
                    return
                batch = claimed[first : first + _LONG_BATCH]
                for better in self.window.map(partial(self._sequence, nodes=nodes, below=self.below), batch):
                    yield None if better is None else self._to_plan(better)
            self._claimed()
            self._rebound(self.threshold, self.cases)

    def _claimed(self) -> list[_Case]:
        """Cases that only CP-SAT closed, of those alike the first; what is alike to a proved one is proved."""
        first = dict[Hashable, _Case]()
        for number, case in enumerate(self.cases):
            if case.key is not None:
                case.prove(self.settled.get(case.key, (0, 0))[1])
            if case.proved < self.below:
                first.setdefault((None, number) if case.key is None else case.key, case)
        return list(first.values())

    def _thresholds(self, least: Callable[[], int]) -> Iterator[tuple[int, tuple[OpenCase, ...] | None]]:
        """Thresholds up to the incumbent with the open cases below them; None where these were too many to be listed.

        The first is the incumbent itself; each that leaves too many is brought half-way down to what is known to be
        out of reach; after one that is closed the next is three times as far above it. Below what is out of reach by
        now nothing is listed: what was too much there is too much above.
        """
        space, params = make_space(self.searcher.instance), self.exact_params
        bottom, threshold, effort = least(), self.below, 0
        while space is not None and not self._is_over() and effort < len(params.nodes):
            opened = open_cases(
                self.searcher,
                space,
                threshold=threshold,
                most_nodes=params.nodes[effort],
                should_stop=self._is_over,
                window=self.window,
            )
            known = max(bottom, least())
            if known >= self.below:
                return
            if opened is None:
                bottom, threshold = known, known + (min(threshold, _FIRST_STEP * max(known, 1)) - known) // 2
                if threshold - bottom <= bottom // _SMALLEST_STEP:
                    effort += 1
                    threshold = min(self.below, bottom + bottom // _SMALLEST_STEP * 4)
                self.next_nodes = params.nodes[min(effort, len(params.nodes) - 1)]
                yield threshold, None
                continue
            yield threshold, opened
            if self.is_closed or self.bound_ns is None or self.bound_ns < threshold:
                return
            step, bottom = threshold - bottom, max(threshold, least())
            threshold = min(self.below, bottom + 3 * step)

    def _close(self, threshold: int, cases: Sequence[_Case]) -> Iterator[Plan | None]:
        """Close the cases, least bound first, with more and more effort, several at a time."""
        for most_cases, nodes, effort in self.case_params.rounds:
            chosen = sorted(cases, key=lambda case: case.bound)[:most_cases]
            if effort is None:
                yield from self._sequence_all(chosen, nodes=nodes)
                self._rebound(threshold, cases)
            while effort is not None and not self._is_over():
                batch = self._next_batch(chosen, effort=effort)
                self._rebound(threshold, cases)  # those with the key of a settled one may have been closed
                if not batch:
                    break
                attack = partial(self._attack, nodes=nodes, effort=effort, below=self.below)
                for plans in self.window.map(attack, batch):
                    yield from plans
                self._rebound(threshold, cases)

    def _sequence_all(self, cases: Sequence[_Case], *, nodes: int) -> Iterator[Plan | None]:
        """Branch and bound over the orders of the open ones of these cases; if it may take long, of unlike ones."""
        if not self.branches:
            return
        is_quick = nodes <= _FEW_NODES
        waiting = list(cases if is_quick else self._unlike(cases))
        size = _QUICK_BATCH if is_quick else _LONG_BATCH
        for first in range(0, len(waiting), size):
            if self._is_over():
                break
            batch = [case for case in waiting[first : first + size] if case.bound < self.below]
            for better in self.window.map(partial(self._sequence, nodes=nodes, below=self.below), batch):
                yield None if better is None else self._to_plan(better)

    def _attack(self, case: _Case, *, nodes: int, effort: float, below: int) -> list[Plan | None]:
        """An order better than `below` by branch and bound, and by CP-SAT where that cannot close the case.

        Nothing is begun once time is over: others of its batch may have used it up.
        """
        if self._is_over():
            return []
        better = self._sequence(case, nodes=nodes, below=below) if self.branches and nodes else None
        below = below if better is None else better.objective
        plans: list[Plan | None] = [None if better is None else self._to_plan(better)]
        is_done = case.bound >= below or self._is_over()
        return plans if is_done else [*plans, self._settle(case, effort, below=below)]

    def _sequence(self, case: _Case, *, nodes: int, below: int) -> Candidate | None:
        """The best order that branch and bound finds; the case is closed if it looked at all of them."""
        found = self._stoppable_sequence(case, nodes=nodes, below=below)
        if found is None:
            return None
        is_closed, better = found
        if is_closed:
            case.prove(below if better is None else better.objective)
            self._note(case)
        return better

    def _stoppable_sequence(self, case: _Case, *, nodes: int, below: int) -> tuple[bool, Candidate | None] | None:
        """What branch and bound makes of a case; None if it was stopped and did not obey."""
        sequence = partial(self.searcher.sequence, case.candidate, threshold=below, most_nodes=nodes)
        return sequence() if nodes <= _FEW_NODES else self._in_time(sequence)

    def _polish(self, candidate: Candidate, *, iterations: int, temperature: float) -> Candidate:
        """The candidate with better orders, as far as there is time; itself if that was stopped and did not obey."""
        polish = partial(
            self.searcher.polish, candidate, iterations=iterations, temperature=temperature, seed=self.seed
        )
        return self._in_time(polish) or candidate

    def _in_time(self, call: Callable[..., Found]) -> Found | None:
        """What a compiled call makes of a `stop` that is set once time is over; None if it does not obey."""
        stop = np.zeros(1, np.int64)
        return run_stoppable(partial(call, stop=stop), stop=lambda: stop.fill(1), should_stop=self._is_over)

    def _is_over(self) -> bool:
        return self.seconds_left() <= 0

    def _make_case(self, case: OpenCase) -> _Case:
        candidate = self.searcher.make_candidate(case.stage_of, case.groups, modes=case.modes)
        return _Case(candidate=candidate, bound=case.lower_bound, proved=case.lower_bound)

    def _rebound(self, threshold: int, cases: Sequence[_Case]) -> None:
        """What is not open takes at least the incumbent, or the threshold that the cases were listed with."""
        bound = min([threshold, self.below, *(case.bound for case in cases)])
        self.bound_ns = bound if self.bound_ns is None else max(bound, min(self.bound_ns, self.below))
        proved = min([threshold, self.below, *(case.proved for case in cases)])
        self.proved_ns = proved if self.proved_ns is None else max(proved, min(self.proved_ns, self.below))

    def _find(self, threshold: int, cases: Sequence[_Case]) -> Iterator[Plan | None]:
        """Good orders of the most promising cases, by list scheduling and polishing."""
        for case in cases:
            self._rebound(threshold, cases)
            if case.bound >= self.below or self._is_over():
                return
            own = case.candidate
            rated = self.searcher.rate(own.stage_of, own.groups, modes=own.modes)
            if rated.is_feasible:
                rated = self._polish(rated, iterations=_PROMISING_STEPS, temperature=0.002)
            yield self._to_plan(rated) if rated.is_feasible and rated.objective < self.below else None

    def _next_batch(self, cases: Sequence[_Case], *, effort: float) -> list[_Case]:
        """The open cases of least bound that have not been given so much effort yet, no two of them alike."""
        waiting = (case for case in sorted(cases, key=lambda case: case.bound) if case.effort < effort)
        return list(islice(self._unlike(waiting), _ORDER_BATCH))

    def _unlike(self, cases: Iterable[_Case]) -> Iterator[_Case]:
        """The open ones of these cases, of those alike the first; what is alike to a settled one is settled with it."""
        seen = set[Hashable]()
        for case in cases:
            if case.bound >= self.below:
                continue
            if case.instance is None:
                case.instance = make_schedule_instance(self.problem, self._stages(case.candidate), costs=self.costs)
                case.key = signature(case.instance)
            if case.key is not None:
                bound, proved = self.settled.get(case.key, (0, 0))
                case.prove(proved)
                case.bound = max(case.bound, bound)
            if case.bound < self.below and (case.key is None or case.key not in seen):
                seen.add(case.key)
                yield case

    def _settle(self, case: _Case, effort: float, *, below: int) -> Plan | None:
        """The best order of a case if it beats `below`; raises the bound of the case as far as it can.

        CP-SAT is given them. Where its device orders, which may use shared links in any order, do not replay to what it
        claims, they are polished.
        """
        case.effort = effort
        assert case.instance is not None
        result = self._solve(case.instance, below=below, effort=effort)
        plan = self._read(case, result, below=below)
        if result.status == "optimal" and case.bound < below and plan is not None:
            plan = self._polished(case, plan)
        self._note(case)
        return plan

    def _note(self, case: _Case) -> None:
        """What is known of a case holds for all that are alike."""
        if case.key is not None:
            bound, proved = self.settled.get(case.key, (0, 0))
            self.settled[case.key] = (max(case.bound, bound), max(case.proved, proved))

    def _play(self, case: _Case, device_orders: dict[int, DeviceOrder]) -> tuple[Plan, int]:
        """The plan with these device orders, and its objective."""
        plan = make_plan_from_orders(self.problem, self._stages(case.candidate), device_orders=device_orders)
        return plan, simulate(self.problem, plan, costs=self.costs).objective_ns(self.problem.options.objective)

    def _solve(self, instance: ScheduleInstance, *, below: int, effort: float) -> ScheduleResult:
        """What CP-SAT makes of the orders of an instance."""
        # takes a second to import, and most problems never need it
        from solver_models.schedule.effort import SolveEffort
        from solver_models.schedule.solve import solve_order

        solve_effort = SolveEffort(
            time_limit_s=max(0.1, self.seconds_left()),
            deterministic_limit=effort,
            seed=self.seed,
            should_stop=self._is_over,
        )
        result = solve_order(instance, upper_bound=None if below == LATEST else below - 1, effort=solve_effort)
        self.solver, self.num_orders = result.solver, self.num_orders + 1
        return result

    def _read(self, case: _Case, result: ScheduleResult, *, below: int) -> Plan | None:
        """Raise the bound of the case to what the solver claims; its plan, if it has one."""
        if result.status == "infeasible":
            case.bound = below
        elif result.bound is not None:
            case.bound = max(case.bound, result.bound)
        if result.device_orders is None:
            return None
        plan, played = self._play(case, result.device_orders)
        if result.status == "optimal" and played == result.objective:
            case.bound = below  # no other order of this case is better than this one
        return plan

    def _polished(self, case: _Case, plan: Plan) -> Plan:
        """A plan with polished device orders, where links are queued on as nobody may choose."""
        start = replace(case.candidate, device_orders=make_orders(self.problem, plan))
        return self._to_plan(self._polish(start, iterations=_POLISH_ITERATIONS, temperature=0.01))

    def _stages(self, candidate: Candidate) -> tuple[Stage, ...]:
        return make_stages(self.problem, candidate.stage_of, groups=candidate.groups, modes=candidate.modes)

    def _to_plan(self, candidate: Candidate) -> Plan:
        device_orders, _ = self.searcher.device_orders(candidate)
        return make_plan_from_orders(self.problem, self._stages(candidate), device_orders=device_orders)
