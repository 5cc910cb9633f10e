"""`--method cp-sat` and `--method ilp`: a solver works on one model with everything open, from the incumbent on.

Windows of it come first: what they leave out is far from a plan, and they take moments where the whole takes minutes.

What it claims is labelled as a claim, what it finds passes the verifier like everything else. Links take transfers in
any order in the model, so a plan may play to more than the solver says; the bound it claims holds all the same.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from planner.batch_problem import Question, candidates_of
from planner.device_subsets import question_on
from planner.errors import NoPlanFoundError
from planner.layout.costs import CostModel
from planner.lowering import make_orders, make_plan_from_orders, make_schedule_instance
from planner.plan import Plan, Stage
from planner.planning.complete.complete_question import (
    MOST_SETS,
    make_complete_instance,
    require_covered,
    stage_sets,
)
from planner.planning.complete.windows import GrowingWindow, cut_of, sets_near, window_around
from planner.planning.search_state import FAILED, SEED_SHARE, SearchState
from planner.planning.starts.conversions import plan_of
from planner.problem import Problem
from planner.progress import Limits
from solver_models.complete.coarse import coarsened
from solver_models.complete.complete_instance import CompleteInstance
from solver_models.complete.complete_model import CompleteAnswer, CompleteModel
from solver_models.complete.programme import Programme
from solver_models.complete.solver_answer import DEFAULT_SOLVER, SolverAnswer
from solver_models.local_search.search import Candidate, Searcher
from solver_models.result import SolverFailedError
from solver_models.schedule.evaluation import play
from solver_models.starts.first_candidates import make_seeds

MODEL = "complete model"
"""What the improver, and the entry in `solver_versions`, are called."""

CLAIM = "solver"
"""Why a run ends once a solver claims that nothing is better."""

_STARTS_SHARE, _WINDOW_SHARE, _WHOLE_SHARE = 0.3, 0.25, 0.3
"""Of the time: for windows around balanced plans; of what is left, for one around the incumbent; kept for the whole."""

MOST_ILP_TICKS = 10_000
"""Longer times lose their last digits in solvers that compute with floating point: they get coarser ticks."""

MOST_ILP_UNITS = 100_000
"""Larger sizes lose theirs: they get coarser units."""


@dataclass(frozen=True, kw_only=True)
class CompleteQuestion:
    """A problem written down whole."""

    problem: Problem
    model: CompleteModel
    """Rows and tasks for the solver."""
    ticks: int
    """Nanoseconds that the model counts as one."""
    units: int
    """Bytes that it counts as one."""

    @property
    def is_exact(self) -> bool:
        """Whether what fits in the model fits; with figures rounded down that is not said."""
        return self.ticks == self.units == 1

    def plan(self, values: Sequence[int]) -> Plan:
        """The plan that values of the model's variables stand for; nothing has checked it."""
        answer = self.model.read(values)
        return make_plan_from_orders(self.problem, self._stages(answer), device_orders=answer.device_orders)

    def _stages(self, answer: CompleteAnswer) -> tuple[Stage, ...]:
        instance, names = self.model.instance, self.problem.profile.topological_order
        devices = [device.name for device in self.problem.cluster.devices]
        return tuple(
            Stage(
                layers=tuple(names[layer] for layer in instance.sets[number].layers),
                replicas=tuple((devices[device],) for device in instance.assignments[assignment]),
                recompute=flag,
            )
            for number, assignment, flag in zip(answer.sets, answer.assignments, answer.recompute, strict=True)
        )

    def decisions(self, plan: Plan, costs: CostModel) -> dict[int, int]:
        """Values of the variables that decide a plan: stages, assignments, recomputation, B or I and W, starts of
        actions.

        Raises ValueError where the plan's stages are not among those of the model.
        """
        instance, model = self.model.instance, self.model
        number = {name: n for n, name in enumerate(self.problem.profile.topological_order)}
        device = {each.name: n for n, each in enumerate(self.problem.cluster.devices)}
        sets = {each.layers: n for n, each in enumerate(instance.sets)}
        found = {
            "sets": [sets.get(tuple(sorted(number[name] for name in stage.layers)), -1) for stage in plan.stages],
            "assignments": [
                instance.assignments.index(tuple(device[group[0]] for group in s.replicas)) for s in plan.stages
            ],
            "recompute": [int(bool(stage.recompute)) for stage in plan.stages],
        }
        schedule = make_schedule_instance(self.problem, plan.stages, costs=costs)
        played = play(schedule, make_orders(self.problem, plan))
        if played is None or -1 in found["sets"]:
            raise ValueError("the plan is none of those that the complete model describes")
        values = model.decide(**found)
        for (kind, replica, microbatch), start in played.starts.items():
            at = schedule.replicas[replica]
            values |= model.time(at.device, at.stage, kind=kind, microbatch=microbatch, start=start // self.ticks)
        return values


def is_complete(method: str) -> bool:
    """Whether a method is a solver on the complete model."""
    return method in ("cp-sat", "ilp")


def require_answerable(question: Question, limits: Limits) -> None:
    """Raise ValueError, with the remedy, where a solver cannot be asked: it is not here, or the model is none."""
    if not is_complete(limits.method):
        return
    is_cost = question.options.objective == "cost"  # of each subset of the devices the time is asked for
    asked = question_on(question, [each.name for each in question.cluster.devices]) if is_cost else question
    for problem in candidates_of(asked):
        require_covered(problem)
    if limits.method == "ilp":
        # solvers take a second to import: not before somebody asks for one
        from solver_models.pulp_solvers import require_solver

        require_solver(limits.solver or DEFAULT_SOLVER)


def ask(problem: Problem, costs: CostModel, *, horizon: int | None = None, is_coarse: bool = False) -> CompleteQuestion:
    """The complete model of a problem, without plans that take longer than `horizon` nanoseconds.

    `is_coarse`: for solvers that compute with floating point. Raises ValueError where the model does not cover the
    problem, or would be too large.
    """
    horizon = longest(problem) if horizon is None else horizon
    instance = make_complete_instance(problem, costs, horizon=horizon)
    return _write_down(problem, instance, least=0, is_coarse=is_coarse)


def _write_down(problem: Problem, instance: CompleteInstance, *, least: int, is_coarse: bool) -> CompleteQuestion:
    ticks = max(1, -(-instance.horizon // MOST_ILP_TICKS)) if is_coarse else 1
    units = max(1, -(-max(device.memory for device in instance.devices) // MOST_ILP_UNITS)) if is_coarse else 1
    model = CompleteModel(coarsened(instance, ticks=ticks, units=units), least=least // ticks)
    return CompleteQuestion(problem=problem, model=model, ticks=ticks, units=units)


def longest(problem: Problem) -> int:
    """Nanoseconds that no plan takes whose devices and links never idle at once: everything one after the other."""
    profile, cluster = problem.profile, problem.cluster
    names = [device.name for device in cluster.devices]
    pairs = list(permutations(names, 2))

    def slowest_ns(size: int) -> int:
        return max((cluster.route(a, b, num_bytes=size).duration_ns(size) for a, b in pairs), default=0)

    types = cluster.device_types
    overhead = sum(max(profile.overhead_ns(each, kind, has_stages=True) for each in types) for kind in "FIW")
    exchange = max(profile.exchange_ns(each) for each in cluster.device_types)
    times = [
        max(c.forward_ns + c.input_grad_ns + c.weight_grad_ns + c.recompute_ns for c in layer.costs)
        + (layer.forward_exchanges + layer.backward_exchanges) * exchange
        for layer in profile.layers
    ]
    transfers = sum(slowest_ns(edge.bytes) + slowest_ns(edge.backward_bytes) for edge in profile.edges)
    rings = sum(2 * slowest_ns(layer.synchronised_bytes) for layer in profile.layers)
    rounds = problem.num_microbatches * len(names)
    closing = profile.optimizer_ns + profile.stages_optimizer_ns
    closing += sum(max(c.optimizer_ns for c in layer.costs) for layer in profile.layers)
    return rounds * (sum(times) + overhead * len(times) + transfers) + len(names) * rings + closing + 1


def search_completely(run: SearchState) -> Generator[None, None, None]:
    """Let the solver work until the time is up, on windows first; it yields wherever the run may end."""
    with run.step_of(MODEL):
        sets = stage_sets(run.problem)
        is_whole = len(sets) <= MOST_SETS
        yield
        if run.problem.options.partition is None:
            for _ in _search_windows(run, sets, whole_share=_WHOLE_SHARE if is_whole else 0.0):
                yield
        if not is_whole:
            return
        question = _question(run, _instance(run, sets))
        yield
        try:
            outcome = _solve(run, question, start=run.plan, limit_s=run.seconds_left)
        except SolverFailedError as error:
            if run.plan is None:
                raise NoPlanFoundError(str(error)) from error
            run.solvers[MODEL], run.stopped_by = str(error), FAILED
            return
        run.solvers[MODEL] = outcome.solver
        if outcome.values is not None:
            rejected = run.rejected
            run.propose(question.plan(outcome.values), source=MODEL)
            run.rejected = run.rejected if question.is_exact else rejected
        if outcome.status == "infeasible" and run.plan is None:
            raise NoPlanFoundError(
                f"{outcome.solver} claims that no plan fits into memory; give more memory, fewer receive buffers, "
                "recomputation, more stages per device, or other stages and devices than those given"
            )
        _note_claim(run, outcome, ticks=question.ticks)
    yield


def _instance(run: SearchState, sets: Sequence[tuple[int, ...]]) -> CompleteInstance:
    """The instance in which only these sets of layers may be stages."""
    horizon = longest(run.problem) if run.incumbent_ns is None else run.incumbent_ns
    return make_complete_instance(run.problem, run.costs, horizon=horizon, sets=sets)


def _question(run: SearchState, instance: CompleteInstance) -> CompleteQuestion:
    """The model of an instance, without plans that are longer than the incumbent, or shorter than any is."""
    horizon = instance.horizon if run.incumbent_ns is None else min(instance.horizon, run.incumbent_ns)
    return _write_down(
        run.problem,
        replace(instance, horizon=horizon),
        least=run.lower_bound.value_ns if run.lower_bound else 0,
        is_coarse=run.limits.method == "ilp",
    )


def _search_windows(run: SearchState, sets: Sequence[tuple[int, ...]], *, whole_share: float) -> Iterator[None]:
    """Windows around balanced plans, the best for every number of stages, and then around the incumbent.

    `whole_share`: of the time, what is kept for the whole.
    """
    num_layers = len(run.problem.profile.layers)
    begin_left = run.seconds_left
    starts = _balanced_plans(run)
    for number, start in enumerate(starts):
        limit_s = (run.seconds_left - begin_left * (1 - _STARTS_SHARE)) / (len(starts) - number)
        _solve_window(run, sets, around=start, moved=max(2, num_layers // 8), limit_s=limit_s)
        yield
    window = GrowingWindow(num_layers)
    while run.plan is not None and not window.is_whole and run.seconds_left > begin_left * whole_share:
        before = run.incumbent_ns
        limit_s = run.seconds_left * _WINDOW_SHARE
        _solve_window(run, sets, around=run.plan, moved=window.moved, limit_s=limit_s)
        window.note(is_better=run.incumbent_ns != before)
        yield


def _balanced_plans(run: SearchState) -> list[Plan]:
    """Balanced cuts with the best of the standard policies, one per number of stages, the shortest first."""
    searcher = Searcher(run.instance)
    best: dict[int, Candidate] = {}
    for seed in sorted(make_seeds(searcher, has_time=run.time_until(SEED_SHARE)), key=lambda each: each.sort_key):
        if seed.is_feasible:
            best.setdefault(len(seed.groups), seed)
    plans = [plan_of(run.problem, searcher, candidate=each) for each in best.values()]
    for plan in plans:
        run.propose(plan, source="balanced seeds")
    return plans


def _solve_window(
    run: SearchState, sets: Sequence[tuple[int, ...]], *, around: Plan, moved: int, limit_s: float
) -> None:
    """Propose what is found there; what is claimed of it says nothing of the rest, and failing stops nothing."""
    cut = cut_of([stage.layers for stage in around.stages], run.problem.profile.topological_order)
    until = run.elapsed_s + limit_s
    near = sets_near(sets, cut, moved=moved, most=MOST_SETS)
    question = _question(run, window_around(_instance(run, near), cut, moved=moved))
    try:
        outcome = _solve(run, question, start=around, limit_s=until - run.elapsed_s)
    except SolverFailedError:
        return
    if outcome.values is not None:
        run.propose(question.plan(outcome.values), source=MODEL)


def _solve(run: SearchState, question: CompleteQuestion, *, start: Plan | None, limit_s: float) -> SolverAnswer:
    from solver_models.complete.with_cp_sat import solve_with_cp_sat
    from solver_models.complete.with_pulp import linear, solve_with_pulp

    programme = question.model.programme
    if run.limits.method == "cp-sat":
        return solve_with_cp_sat(
            programme,
            hint=_start(run, question, plan=start, programme=programme),
            time_limit_s=max(0.1, limit_s),
            seed=run.limits.seed,
            threads=run.limits.num_threads,
            should_stop=run.should_stop,
            on_values=lambda values: run.propose(question.plan(values), source=MODEL),
        )
    until = run.elapsed_s + limit_s
    rows = linear(programme, has_time=lambda: run.elapsed_s < until and not run.should_stop())
    if rows is None:
        return SolverAnswer(status="unknown", bound=None, values=None, solver=run.limits.solver or DEFAULT_SOLVER)
    return solve_with_pulp(
        rows,
        solver=run.limits.solver or DEFAULT_SOLVER,
        hint=_start(run, question, plan=start, programme=rows),
        time_limit_s=max(0.1, until - run.elapsed_s),
        threads=run.limits.num_threads,
        should_stop=run.should_stop,
    )


def _start(
    run: SearchState, question: CompleteQuestion, *, plan: Plan | None, programme: Programme
) -> list[int] | None:
    """Values of all variables for a plan; None if there is none that the model describes."""
    if plan is None:
        return None
    try:
        decided = question.decisions(plan, run.costs)
    except ValueError:
        return None
    from solver_models.complete.with_cp_sat import solve_with_cp_sat

    limit_s = max(0.1, run.seconds_left)
    return solve_with_cp_sat(programme.fixed(decided), time_limit_s=limit_s, seed=run.limits.seed, threads=1).values


def _note_claim(run: SearchState, outcome: SolverAnswer, *, ticks: int) -> None:
    if outcome.bound is None or run.incumbent_ns is None:
        return
    run.solver_bound_ns = min(outcome.bound * ticks, run.incumbent_ns)
    if outcome.status == "optimal":  # with times rounded down, or links otherwise, its best may be no plan's
        run.stopped_by = CLAIM if run.solver_bound_ns == run.incumbent_ns else "no_improvement"
