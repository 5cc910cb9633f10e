"""What parameters of the search are tried on: small counted runs, and timed ones for what those never ask for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from api.inputs import make_problem, read_workload
from benchmarks.generate import make_workload, parse_family
from benchmarks.orders import make_problem as make_order_problem
from benchmarks.orders import uneven_times
from benchmarks.tessel_shapes import SHAPES
from benchmarks.tessel_shapes import make_problem as make_shape
from planner.batch_problem import question_of_workload
from planner.layout.costs import CostModel
from planner.lowering import make_instance
from planner.plan import Plan
from planner.planning import Limits, SearchParams, make_plan, make_plans
from planner.planning.runs.pareto import make_pareto
from planner.problem import Options, Problem
from planner.replanning.transition import Transition, going_over
from planner.simulation.simulate import simulate
from planner.what_if.device_loss import adapt_plan, without_devices
from solver_models.instance import Instance
from solver_models.local_search.multistart import JointSearch
from solver_models.local_search.search import Candidate, Searcher
from solver_models.local_search.task_window import TaskWindow
from solver_models.starts.first_candidates import make_seeds

JOINT_GROUPS = ("task_window", "multistart", "anneal", "polish")
"""What the joint search reads."""

SHORTER = 10
"""Tasks are so many times as short as usual, so that a table with many of them is made in minutes."""

SHORT_TASKS: Mapping[str, object] = {
    "multistart.round_ticks": 200_000,
    "multistart.max_iterations": 2_000,
    "order_search.first_actions": 100_000,
    "order_search.most_actions": 1_600_000,
    "session.most_actions": 400_000,
    "bound_turn.most_actions": 400_000,
    "near_bound.turn_actions": 6_000_000,
    "looped.first_actions": 40_000,
    "looped.most_actions": 200_000,
    "looped.min_steps": 20,
    "looped.max_steps": 200,
    "looped.stale_turns": 12,
    "cp_window.work": 0.1,
    "repetend.work": 0.05,
    "listed.quick_plays": 200,
    "listed.turn_plays": 2_000,
}
"""What a whole run has instead of the defaults, for the same reason."""


class Workload(Protocol):
    """What parameters are tried on."""

    @property
    def name(self) -> str:
        """What it is called in the table."""

    @property
    def groups(self) -> tuple[str, ...]:
        """Those whose parameters are tried on it."""

    @property
    def usual(self) -> Mapping[str, object]:
        """What it has instead of the defaults."""

    def solve(self, params: SearchParams, *, seed: int) -> tuple[int, int | None]:
        """Objective and bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A problem as the joint search sees it, and what every search of it begins with."""

    instance: Instance
    seeds: Sequence[Candidate]


@dataclass(frozen=True, kw_only=True)
class JointWorkload:
    """The joint search alone, from first candidates that no parameter changes."""

    source: str
    rounds: int = 10
    groups: tuple[str, ...] = JOINT_GROUPS
    usual: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.source.removeprefix("demo:")

    @cached_property
    def start(self) -> Start:
        """The problem with its first candidates."""
        problem = make_problem(read_workload(self.source))
        instance = make_instance(problem, CostModel(problem))
        return Start(instance=instance, seeds=make_seeds(Searcher(instance)))

    def solve(self, params: SearchParams, *, seed: int) -> tuple[int, int | None]:
        window = TaskWindow(1, params=params.task_window)
        joint = JointSearch(self.start.instance, seed=seed, window=window, params=params)
        joint.iterations = max(2, joint.iterations // SHORTER)
        joint.add(self.start.seeds)
        for _ in range(self.rounds):
            joint.run_round()
        window.drain()
        window.close()
        assert joint.best is not None
        return joint.best.objective, None


@dataclass(frozen=True, kw_only=True)
class RunWorkload:
    """A whole planning run."""

    name: str
    groups: tuple[str, ...]
    make: Callable[[], Problem]
    rounds: int
    usual: Mapping[str, object] = field(default_factory=lambda: SHORT_TASKS)

    @cached_property
    def problem(self) -> Problem:
        """The question."""
        return self.make()

    def solve(self, params: SearchParams, *, seed: int) -> tuple[int, int | None]:
        limits = Limits(time_limit_s=10**6, max_rounds=self.rounds, threads=1, seed=seed)
        evidence = make_plan(self.problem, limits=limits, params=params).evidence
        assert evidence is not None
        if evidence.rental is not None:
            return round(evidence.rental.cost * 10**12), round(evidence.rental.lower_bound * 10**12)
        figure = evidence.span_ns if self.problem.options.objective == "span" else evidence.makespan_ns
        return figure, evidence.lower_bound_ns


@dataclass(frozen=True, kw_only=True)
class TimedWorkload:
    """A planning run on one thread under a time limit, for what small counted runs do not ask for."""

    name: str
    parameters: tuple[str, ...]
    """What is tried on it."""
    make: Callable[[], Problem]
    seconds: float
    usual: Mapping[str, object] = field(default_factory=dict)
    rounds: int | None = None
    """So many at most."""
    plan: Callable[..., Plan] = make_plan
    """Asks for a plan, as `make_plan` does."""

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple({name.partition(".")[0] for name in self.parameters})

    @cached_property
    def problem(self) -> Problem:
        """The question."""
        return self.make()

    def solve(self, params: SearchParams, *, seed: int) -> tuple[int, int | None]:
        limits = Limits(time_limit_s=self.seconds, max_rounds=self.rounds, threads=1, seed=seed)
        evidence = self.plan(self.problem, limits=limits, params=params).evidence
        assert evidence is not None
        if evidence.rental is not None:
            return round(evidence.rental.cost * 10**12), round(evidence.rental.lower_bound * 10**12)
        return evidence.makespan_ns, evidence.lower_bound_ns


@dataclass(frozen=True, kw_only=True)
class TakeoverWorkload(TimedWorkload):
    """A plan that takes over from one whose last device is lost; what counts is the sum of iterations and moving."""

    @cached_property
    def before(self) -> Plan:
        """The plan that ran."""
        return make_plan(self.problem, limits=Limits(time_limit_s=10**6, max_rounds=1, threads=1))

    def solve(self, params: SearchParams, *, seed: int) -> tuple[int, int | None]:
        lost = {self.problem.cluster.devices[-1].name}
        left = without_devices(self.problem, lost)
        transition = Transition(before=self.before.stages, absent=frozenset(lost), steps_left=100, bytes_per_s=10**9)
        limits = Limits(time_limit_s=self.seconds, threads=1, seed=seed)
        start = adapt_plan(self.before, lost)
        plan = make_plans(left, top=1, limits=limits, params=params, start=start, transition=transition)[0]
        taken = simulate(left, plan).makespan_ns
        return going_over(left, plan, iteration_ns=taken, transition=transition).total_ns, None


def best_of_three(problem: Problem, **how: Any) -> Plan:
    """The best plan where two of other kinds are asked for as well."""
    return make_plans(problem, top=3, **how)[0]


def cheapest_on_front(problem: Problem, **how: Any) -> Plan:
    """The first plan where all are asked for of which none is both faster and cheaper than another."""
    return make_pareto(problem, **how).points[0].plan


def generated(family: str, **options: Any) -> Problem:
    """A random workload of `benchmarks.generate`, with other options."""
    problem = make_problem(make_workload(parse_family(family)))
    return replace(problem, options=replace(problem.options, **options))


def ordered() -> Problem:
    """Stages and devices given: two of as many layers on every device."""
    problem = generated("chain-8x4-m4-mid-random-different")
    names, devices = problem.profile.topological_order, problem.cluster.devices
    size = len(names) // (2 * len(devices))
    parts = tuple(tuple(names[first : first + size]) for first in range(0, len(names), size))
    places = tuple(((device.name,),) for device in (*devices, *devices))
    return replace(problem, options=replace(problem.options, partition=parts, placement=places))


def rented() -> Problem:
    """Devices at three prices, and a deadline that one of them alone does not meet."""
    problem = generated("chain-8x4-m4-loose-homogeneous-equal")
    prices = zip(problem.cluster.devices, (1, 1, 2, 3), strict=True)
    devices = tuple(replace(device, price_per_hour=price) for device, price in prices)
    options = replace(problem.options, objective="cost", deadline_ns=60_000_000)
    return replace(problem, cluster=replace(problem.cluster, devices=devices), options=options)


def of_listed_sizes() -> Problem:
    """Six microbatches of three sizes."""
    workload = make_workload(parse_family("chain-6x3-g32-loose-homogeneous-equal"))
    sized = workload.with_list((1, 2, 4, 4, 2, 1))
    question = question_of_workload(sized, Options())
    assert isinstance(question, Problem)
    return question


def shaped(name: str, count: int) -> Problem:
    """One of Tessel's shapes, with so many microbatches: blocks that all four devices run together among others."""
    (shape,) = (each for each in SHAPES if each.name == name)
    return make_shape(shape, count)


def of_two_classes() -> Problem:
    """One stage on every device, of which half are slower."""
    return generated("chain-24x6-m8-loose-two-level-classes", max_stages_per_device=1, max_replicas=1)


def in_half_the_memory() -> Problem:
    """The order alone, in half of what 1F1B needs."""
    return make_order_problem(uneven_times(8, seed=1), num_microbatches=24, memory=0.5)


def without_overlap() -> Problem:
    """Devices that compute and send in turns: orders are left to CP-SAT."""
    problem = generated("chain-6x3-m4-mid-homogeneous-different")
    return replace(problem, cluster=replace(problem.cluster, overlap=False))


WORKLOADS: tuple[Workload, ...] = (
    RunWorkload(
        name="6 layers on 3 devices",
        groups=("exact", "case", "tree", "branch"),
        make=lambda: generated("chain-6x3-m3-mid-homogeneous-equal"),
        rounds=5,
    ),
    RunWorkload(
        name="orders alone",
        groups=("order_search", "cp_window", "repetend", "block", "cp_order"),
        make=ordered,
        rounds=8,
    ),
    RunWorkload(
        name="8 layers on 3 unlike devices",
        groups=("bound", "near_bound", "interval", "dynamic", "balanced_seed", "session", "sequential", "bound_turn"),
        make=lambda: generated("chain-8x3-m4-mid-random-different"),
        rounds=4,
    ),
    RunWorkload(
        name="split placement",
        groups=("split_placement",),
        make=lambda: generated("chain-8x3-m4-mid-random-different", split_placement=True),
        rounds=4,
    ),
    RunWorkload(
        name="recomputation",
        groups=("recompute",),
        make=lambda: generated("chain-6x3-m4-tight-homogeneous-equal", recompute=True, recompute_layers=True),
        rounds=3,
    ),
    RunWorkload(
        name="unequal shares",
        groups=("shares", "best_fit"),
        make=lambda: generated("chain-6x3-m4-loose-homogeneous-classes", unequal_shares=True, max_stages_per_device=1),
        rounds=3,
    ),
    RunWorkload(name="devices to rent", groups=("subsets",), make=rented, rounds=2),
    RunWorkload(
        name="a loop",
        groups=("looped",),
        make=lambda: generated("chain-8x2-m4-mid-homogeneous-equal", order="looped", split_backward=False),
        rounds=3,
    ),
    RunWorkload(name="listed sizes", groups=("listed",), make=of_listed_sizes, rounds=2),
    RunWorkload(name="Tessel's M", groups=("overlap",), make=lambda: shaped("M", 4), rounds=6),
    RunWorkload(
        name="two classes of devices",
        groups=("near_bound", "best_fit", "bound", "bound_turn"),
        make=lambda: generated("chain-8x6-m3-mid-two-level-classes"),
        rounds=2,
    ),
    RunWorkload(
        name="four classes of devices",
        groups=("kind_cut", "kind_fit", "class_pipeline"),
        make=lambda: generated("chain-16x32-m2-loose-sparse-four"),
        rounds=1,
    ),
    RunWorkload(
        name="taken for large",
        groups=("first_plans", "pace", "large_seed"),
        make=lambda: generated("chain-12x6-m4-mid-two-level-equal"),
        rounds=2,
        usual={**SHORT_TASKS, "first_plans.large_actions": 100},
    ),
    JointWorkload(source="demo:gnmt8-four-gpus"),
    JointWorkload(source="demo:bert24-six-accelerators"),
)

TIMED: tuple[Workload, ...] = (
    TimedWorkload(
        name="24 layers on 4 unlike devices, 6 s",
        parameters=(
            "block.per_steps",
            "block.steps",
            "bound_turn.gap_shares",
            "bound_turn.share",
            "bound_turn.turn_s",
            "bound_turn.wanted",
            "cp_order.every_rounds",
            "exact.first_step",
            "exact.listing_share",
            "exact.smallest_step",
            "first_plans.baseline_share",
            "first_plans.min_baseline_s",
            "first_plans.no_plan_share",
            "order_search.block_seeds",
            "pace.longer_round",
            "pace.plays_per_round",
            "session.hopeless",
            "session.max_sessions",
            "session.most_actions",
            "session.rounds",
        ),
        make=lambda: generated("chain-24x4-m8-mid-two-level-different"),
        seconds=6,
    ),
    TimedWorkload(
        name="100 layers on 64 devices of four types, 12 s",
        parameters=(
            "balanced_seed.fewest_rated",
            "order_search.heats",
        ),
        make=lambda: generated("chain-100x64-m64-loose-sparse-four"),
        seconds=12,
    ),
    TimedWorkload(
        name="200 layers on 64 devices, 12 s",
        parameters=(
            "exact.master_share",
            "kind_cut.coarse",
            "kind_cut.fine",
            "kind_cut.sync_factor",
            "kind_cut.sync_steps",
            "kind_cut.wide",
        ),
        make=lambda: generated("chain-200x64-m128-mid-two-level-equal"),
        seconds=12,
    ),
    TimedWorkload(
        name="taken for large, 5 s",
        parameters=(
            "first_plans.max_seed_actions",
            "first_plans.min_seed_plays",
            "first_plans.seed_share",
            "large_seed.depths",
            "large_seed.most_floors",
            "large_seed.most_slack_groups",
            "large_seed.replicas",
            "large_seed.slacks",
            "large_seed.steps",
        ),
        make=lambda: generated("chain-24x8-m8-mid-two-level-equal"),
        seconds=5,
        usual={"first_plans.large_actions": 100},
    ),
    TimedWorkload(
        name="three plans asked for, 5 s",
        parameters=(
            "archive.kinds_per_plan",
            "archive.overtime_share",
            "case.few_plays",
            "case.max_words",
        ),
        make=lambda: generated("chain-12x4-m6-mid-random-different"),
        seconds=5,
        plan=best_of_three,
    ),
    TimedWorkload(
        name="the front of time and money, 5 s",
        parameters=("subsets.runs_on_front",),
        make=rented,
        seconds=5,
        plan=cheapest_on_front,
    ),
    TimedWorkload(
        name="listed sizes, 4 s",
        parameters=("listed.depths",),
        make=of_listed_sizes,
        seconds=4,
        usual={"listed.depths": [2.0, 3.0, 4.0, 500.0]},
    ),
    TimedWorkload(
        name="a loop, 5 s",
        parameters=(
            "first_plans.first_layouts_share",
            "first_plans.layouts_share",
        ),
        make=lambda: generated("chain-12x4-m8-mid-homogeneous-equal", order="looped", split_backward=False),
        seconds=5,
    ),
    TimedWorkload(
        name="Tessel's NN, 6 s",
        parameters=(
            "overlap.every_rounds",
            "overlap.kept",
            "overlap.max_solver_actions",
            "overlap.solver_every_rounds",
        ),
        make=lambda: shaped("NN", 8),
        seconds=6,
    ),
    TimedWorkload(
        name="no overlap, 8 s",
        parameters=(
            "case.many_plays",
            "case.polish_iterations",
            "case.promising",
            "case.promising_steps",
        ),
        make=without_overlap,
        seconds=8,
    ),
    TimedWorkload(
        name="a tree that gives up, 8 s",
        parameters=(
            "case.efforts",
            "exact.master_rounds",
            "tree.max_columns",
        ),
        make=lambda: generated("chain-7x3-m3-mid-random-different"),
        seconds=8,
        usual={"exact.nodes": [1]},
    ),
    TimedWorkload(
        name="a list that is too long, 8 s",
        parameters=(
            "bound_turn.most_actions",
            "bound_turn.order_rounds",
        ),
        make=lambda: generated("chain-8x3-m6-mid-homogeneous-equal"),
        seconds=8,
        usual={"tree.max_cases": 10, "tree.max_downsets": 5},
    ),
    TimedWorkload(
        name="closed by CP-SAT, 10 s",
        parameters=("case.nodes_again", "case.most_nodes_again"),
        make=lambda: generated("chain-7x3-m3-mid-random-different"),
        seconds=10,
        usual={"case.rounds": [[100_000, 1, 3.0]]},
    ),
    TimedWorkload(
        name="Tessel's NN, each layout once, 6 s",
        parameters=("overlap.solver_limit_s", "overlap.solver_work"),
        make=lambda: shaped("NN", 6),
        seconds=6,
        usual={"overlap.solver_every_rounds": 1, "overlap.every_rounds": 1},
    ),
    TimedWorkload(
        name="Tessel's X, 5 s",
        parameters=("interval.limit_s", "interval.share"),
        make=lambda: shaped("X", 6),
        seconds=5,
    ),
    TimedWorkload(
        name="24 layers on 4 unlike devices, four rounds",
        parameters=("exact.listing_nodes",),
        make=lambda: generated("chain-24x4-m8-mid-two-level-different"),
        seconds=10**6,
        rounds=4,
        usual=SHORT_TASKS,
    ),
    TimedWorkload(
        name="two classes, one stage each, 6 s",
        parameters=(
            "near_bound.layouts",
            "near_bound.max_ways",
            "near_bound.min_left_s",
            "near_bound.min_ways",
            "near_bound.slacks",
            "near_bound.way_actions",
        ),
        make=of_two_classes,
        seconds=6,
        usual={"near_bound.min_left_s": 0.5},
    ),
    TimedWorkload(
        name="the order in half the memory, 8 s",
        parameters=("cp_window.free_actions", "cp_window.most_windows", "cp_window.work"),
        make=in_half_the_memory,
        seconds=8,
    ),
    TakeoverWorkload(
        name="a device lost, 6 s",
        parameters=(
            "transition.most_layouts",
            "transition.most_sequenced_actions",
            "transition.polish_plays",
            "transition.sequence_nodes",
            "transition.share",
            "transition.starts",
        ),
        make=lambda: generated("chain-8x4-m4-mid-homogeneous-equal"),
        seconds=6,
    ),
    TimedWorkload(
        name="24 layers on 4 devices, tight, 8 s",
        parameters=(
            "sequential.hopeless",
            "sequential.later_every_rounds",
        ),
        make=lambda: generated("chain-24x4-m16-tight-random-different"),
        seconds=8,
        usual={"sequential.equal_rounds": 1, "sequential.hopeless": 10.0},
    ),
    TimedWorkload(
        name="16 layers on 6 unlike devices, 8 s",
        parameters=(
            "cp_order.limit_s",
            "near_bound.min_left_s",
        ),
        make=lambda: generated("chain-16x6-m8-mid-two-level-different"),
        seconds=8,
        usual={"near_bound.min_left_s": 0.5, "cp_order.every_rounds": 1},
    ),
)
