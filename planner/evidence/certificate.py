"""Bounds over all plans, each with a certificate that derives it anew in exact arithmetic, without a solver."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from planner import decisions
from planner.batch_problem import BatchProblem, Question, batch_problem_of
from planner.bounds import (
    counting,
    group_counts,
    host,
    memory,
    paths,
    pipeline_bound,
    recompute_bound,
    shared_layers,
    work,
)
from planner.bounds.bisection import REFUTED_NS
from planner.bounds.bound_params import ENTRIES_PER_S, BoundParams
from planner.bounds.cases import given_orders, refutation
from planner.bounds.cases.case_tables import WorkCount
from planner.bounds.classes import classes_bound
from planner.bounds.classes.device_classes import Classes, fits, propose
from planner.bounds.device_packing import packing_bound as packing
from planner.bounds.device_packing import packing_effort
from planner.bounds.device_packing import price_search as packing_search
from planner.bounds.device_packing.boundaries import Boundaries, read_boundaries
from planner.bounds.device_packing.device_loads import fitting_boundaries
from planner.bounds.device_packing.packing_effort import MuchToCheckError
from planner.bounds.heaviest_path import Trunk
from planner.bounds.listed import listed_bound
from planner.bounds.loop import cuts_bound, loop_bound
from planner.bounds.minimum_costs import Least
from planner.bounds.order import schedule_bound as schedule
from planner.bounds.order import time_indexed_bound as time_indexed
from planner.bounds.order import windows_bound as windows
from planner.bounds.roomier import roomier
from planner.clock import HasTime, always
from planner.errors import refused_certificate
from planner.layout.costs import CostModel
from planner.plan import Stage
from planner.problem import Problem
from profiles.cluster import Link, MessageTime

_STEPS = 16
"""Steps of the search for the largest pipeline or windows bound; each halves what is open."""
_SEARCH_S = 2.0
"""Seconds, roughly, that the pipeline bound may take; more rarely show more."""
_MOST_ENTRIES = 10 * ENTRIES_PER_S
"""Of a programme that tells forms of stages apart, in a check; the search looks at a part of it."""
_PROBE_STEPS = 5
"""Values for which pairs of actions are tried in both orders, for the windows bound."""

_MAX_VALUE_NS = 1 << 60
"""No bound is as large; what is stated beyond is refused before it is looked at."""

_ENCLOSED = "enclosed"
"""Where a plan's certificate has the question that it is about (`planner.documents.embedded_problem`); no bound
looks at it."""

_SIZES = "sizes"
"""Kind of a certificate that has one for every size of microbatches."""

ANEW_S, ANEW_EFFORT = 2.0, 100_000
"""What may be spent on deriving anew what another release proved: seconds of work, and units of a refutation."""

_MOST_ASKED_NS = 1 << 50
"""Of a value that is asked for itself when it is derived anew: times the replicas of a loop it stays within 64 bits."""

MAX_STEPS, FEW_STEPS, MANY_ACTIONS = 16, 4, 5_000
"""Steps of the search for the largest schedule bound, of a plan with many actions few (they reach a thousandth of it,
where they find anything), which the one that checks the evidence takes as well."""

__all__ = [
    "REFUTED_NS",
    "Bound",
    "OtherRulesError",
    "bounds_of_sizes",
    "check_certificate",
    "count_groups",
    "least_over_sizes",
    "make_bound",
    "prove_infeasible",
    "raise_bound",
    "refute",
    "rules_out_every_deadline",
    "schedule_bound",
]


class OtherRulesError(ValueError):
    """A certificate of another release, by rules that are not those of this one.

    `is_known`: some release wrote such certificates; else only the release that a plan names speaks for that.
    """

    def __init__(self, message: str, *, is_known: bool) -> None:
        super().__init__(message)
        self.is_known = is_known


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A value that the objective of no allowed plan is below."""

    kind: str
    """Which bound it is; docs/proofs/bounds.md has the proofs."""
    value_ns: int
    """In nanoseconds of the objective."""
    certificate: dict[str, Any]
    """What `check_certificate` needs to derive the value again."""
    timely: tuple[tuple[Stage, ...], ...] = ()
    """Stages that a plan not far above it could have, for all that the search for the bound has seen."""

    @property
    def num_cases(self) -> int:
        """Cases that its certificate closes; 0 where it tells none apart."""
        return len(self.certificate.get("trees", self.certificate.get("cases", ())))


def make_bound(
    problem: Problem,
    costs: CostModel,
    *,
    time_limit_s: float = 2.0,
    make_covering: packing_search.MakeCovering | None = None,
    has_time: HasTime = always,
    reached: int | None = None,
    params: BoundParams = BoundParams(),
) -> Bound:
    """The largest bound found on the objective of every plan that the options allow.

    The work is counted, about as much as takes `time_limit_s`, so that it leads to the same bound everywhere; where it
    takes longer, `has_time` ends it between two steps.
    `make_covering`: makes the linear programmes that propose prices for the packing bound; without it there is none.
    `reached`: the objective of a plan; a bound that is as large ends the search for larger ones.
    """
    if problem.microbatches is not None:
        return _make_listed(costs)
    least, holding = _what_holds(costs)
    problem, weights = least.problem, work.find_weights(least)
    best = max(_simple_bounds(least, weights, holding=holding), key=lambda bound: bound.value_ns)
    if holding is not None:
        return best
    for kind in _COUNTED:
        best = _count(least, best, kind=kind, reached=reached)
    if shared_layers.shared_layers(problem):
        best = _share(least, best, seconds=time_limit_s, make=make_covering, has_time=has_time, params=params)
    best = _cut(least, best, seconds=time_limit_s, has_time=has_time, reached=reached, params=params)
    best = _count_groups(least, best, is_quick=time_limit_s == 0.0, has_time=has_time, reached=reached)
    if reached is not None and best.value_ns >= reached:
        return best
    for prices in (weights, None):
        best = _raise_bound(least, best, weights=prices, seconds=time_limit_s, has_time=has_time)
    if not has_time():
        return best
    if _is_placed(problem):
        best = _narrow(least, best, seconds=2 * time_limit_s)
        # memory forces no stage to recompute where its microbatches choose: packing devices says nothing new
        if not problem.options.recompute or problem.options.recompute_microbatches:
            return best
    best = _bound_by_classes(least, best, seconds=time_limit_s, has_time=has_time)
    if make_covering is None or not has_time():
        return best
    effort = int(time_limit_s * params.packing_per_s)
    return _pack(least, best, make=make_covering, effort=effort, has_time=has_time, reached=reached)


def _what_holds(costs: CostModel) -> tuple[Least, Collection[str] | None]:
    """The least that layers take, and the kinds of bounds that hold under the options; None: all."""
    costs = roomier(costs)
    return Least(costs.problem, costs), decisions.holding_bounds(costs.problem.options)


def count_groups(costs: CostModel) -> Callable[[int], Bound | None]:
    """What gives the groups bound of a value, in all of its programme; None where it is not as large, or not known."""
    least, holding = _what_holds(costs)
    if holding is not None or not group_counts.applies_to(least):
        return lambda _: None
    counts, optimizer = group_counts.GroupCounts(least), least.optimizer_ns
    return lambda value: _bound("groups", value) if counts.is_out_of_reach(value - 1 - optimizer) else None


def _simple_bounds(least: Least, weights: dict[str, int], *, holding: Collection[str] | None) -> Iterator[Bound]:
    """The bounds that look for nothing; only those of the kinds `holding`, if it is given."""
    problem = least.problem
    certificates: list[dict[str, Any]] = [{"kind": "work", "weights": weights}]
    if problem.options.objective == "makespan":
        number, _ = paths.find_layer(least)
        certificates += [{"kind": "layer", "layer": least.layers[number].name}, {"kind": "path"}]
        if problem.profile.has_host_times:
            certificates.append({"kind": "host"})
    if recompute_bound.applies_to(least):
        price = recompute_bound.PricedRecomputation(least, weights).find_price()
        certificates.append({"kind": "recomputation", "weights": weights, "memory_price": price})
    if _is_placed(problem):
        certificates.append({"kind": "schedule"})
    return (_make(least, each) for each in certificates if holding is None or each["kind"] in holding)


def _make_listed(costs: CostModel) -> Bound:
    """The largest bound for microbatches that differ."""
    least = listed_bound.ListedLeast(costs)
    certificates: list[dict[str, Any]] = [{"kind": "listed work", "weights": work.find_weights(least.any)}]
    if costs.problem.options.objective == "makespan":
        layers = range(len(least.any.layers))
        heaviest = max(layers, key=lambda number: listed_bound.layer_bound(least, number))
        certificates += [{"kind": "listed layer", "layer": least.any.layers[heaviest].name}, {"kind": "listed path"}]
    if listed_bound.applies_to(least):
        certificates.append({"kind": "dealt"})
    bounds = [(_derive_listed(least, certificate), certificate) for certificate in certificates]
    value, certificate = max(bounds, key=lambda pair: pair[0])
    return Bound(kind=certificate["kind"], value_ns=value, certificate={**certificate, "value_ns": value})


def _derive_listed(least: listed_bound.ListedLeast, certificate: Mapping[str, Any]) -> int:
    """What a certificate proves where microbatches differ."""
    kind = _kind(certificate)
    if kind not in _LISTED:
        raise refused_certificate(f"a bound of kind {kind!r} does not hold where microbatches differ")
    if kind == "listed work":
        return listed_bound.work_bound(least, _weights(certificate))
    if least.problem.options.objective != "makespan":
        raise refused_certificate(f"a bound of kind {kind!r} holds for the makespan only")
    if kind == "listed layer":
        return listed_bound.layer_bound(least, _layer_number(least.any, certificate))
    if kind == "listed path":
        return listed_bound.path_bound(least)
    if not listed_bound.applies_to(least):
        raise refused_certificate("a bound of kind 'dealt' needs a chain with one stage per device of one type")
    return listed_bound.cut_bound(least)


def refute(
    problem: Problem,
    costs: CostModel,
    *,
    value: int,
    effort: int,
    has_time: HasTime = always,
    propose: refutation.Propose = refutation.propose_nothing,
) -> Bound | None:
    """A bound of `value`, an objective that some plan has, by going through all cases; None if one stays open.

    `effort`: units of work that it may take, of some 20 microseconds each; where they take longer, `has_time` ends it.
    `propose`: says how the orders of a case may be closed; what it says is looked at node by node.
    """
    costs = roomier(costs)
    if given_orders.applies_to(costs.problem):
        work = WorkCount(min(effort, refutation.MAX_EFFORT), has_time=has_time)
        orders = given_orders.GivenOrders(costs)
        tree = orders.close(value, effort=work, proposed=propose(orders.stages, orders.codes))
        if tree is not None:
            return _bound(given_orders.KIND, value, rules=refutation.RULES, tree=list(tree))
    found = refutation.refute(
        costs.problem if problem.options.offload or problem.profile.held_once else problem,
        costs,
        value=value,
        effort=effort,
        has_time=has_time,
        propose=propose,
    )
    if found is None:
        return None
    trees = [list(tree) for tree in found.trees]
    return _bound("refutation", value, rules=refutation.RULES, effort=found.effort, trees=trees)


def _bound(kind: str, value: int, **fields: Any) -> Bound:
    return Bound(kind=kind, value_ns=value, certificate={"kind": kind, "value_ns": value, **fields})


def _better(best: Bound, kind: str, *, value: int, **fields: Any) -> Bound:
    """A bound of the kind, if it is above the best so far."""
    return _bound(kind, value, **fields) if value > best.value_ns else best


def _share(
    least: Least,
    best: Bound,
    *,
    seconds: float,
    make: packing_search.MakeCovering | None,
    has_time: HasTime,
    params: BoundParams,
) -> Bound:
    """The time of the layers that all devices share, and the bound of the rest, if that is above the best so far."""
    rest = shared_layers.remaining_problem(least.problem)
    found = make_bound(
        rest, CostModel(rest), time_limit_s=seconds, make_covering=make, has_time=has_time, params=params
    )
    return _better(best, "shared", value=shared_layers.busy_ns(least) + found.value_ns, rest=found.certificate)


_COUNTED: dict[str, Any] = {"counting": counting, "loop": loop_bound}
"""By their kinds the modules whose bounds count whole layers."""


def _count(least: Least, best: Bound, *, kind: str, reached: int | None) -> Bound:
    """The counting bound, or that of a loop, if it is above the best so far."""
    optimizer, method = least.optimizer_ns, _COUNTED[kind]
    if not method.applies_to(least):
        return best
    limit = None if reached is None else reached - optimizer
    found = method.raise_bound(least, max(best.value_ns - optimizer, 0), reached=limit)
    return best if found is None else _bound(kind, found[0] + optimizer, **found[1])


def _cut(
    least: Least, best: Bound, *, seconds: float, has_time: HasTime, reached: int | None, params: BoundParams
) -> Bound:
    """The bound of a loop by cases of its cuts, if it is above the best so far."""
    optimizer, effort = least.optimizer_ns, int(seconds * params.loop_actions_per_s)
    if not effort or not cuts_bound.applies_to(least) or (reached is not None and best.value_ns >= reached):
        return best
    limit, start = None if reached is None else reached - optimizer, max(best.value_ns - optimizer, 0)
    found = cuts_bound.raise_bound(least, start, reached=limit, effort=effort, has_time=has_time)
    return best if found is None else _bound("cuts", found[0] + optimizer, **found[1])


def _pack(
    least: Least,
    best: Bound,
    *,
    make: packing_search.MakeCovering,
    effort: int,
    has_time: HasTime,
    reached: int | None,
) -> Bound:
    """The packing bound, if it is above the best so far."""
    if not packing.applies_to(least):
        return best
    optimizer = least.optimizer_ns
    for boundaries in fitting_boundaries(least, best.value_ns - optimizer, effort=effort):
        found = packing_search.raise_packing_bound(
            boundaries,
            best.value_ns - optimizer,
            make=make,
            effort=effort,
            has_time=has_time,
            reached=None if reached is None else reached - optimizer,
        )
        best = _packed(best, found, boundaries=boundaries)
    return best


def _packed(best: Bound, found: packing_search.Packed, *, boundaries: Boundaries) -> Bound:
    """What was found, or the best so far if that is nothing new."""
    if not found.cases:
        return replace(best, timely=tuple(found.timely))
    more: dict[str, Any] = {"levels": boundaries.levels} if boundaries.levels > 1 else {}
    if found.trees:
        more |= {"rules": refutation.RULES, "trees": list(map(list, found.trees))}
    value = found.value + boundaries.least.optimizer_ns
    made = _bound("packing", value, cases=packing.write_cases(found.cases), **more)
    return replace(made, timely=tuple(found.timely))


def raise_bound(
    costs: CostModel,
    best: Bound,
    *,
    make_covering: packing_search.MakeCovering,
    reached: Callable[[], int | None],
    has_time: HasTime = always,
    first_effort: int = 0,
    params: BoundParams = BoundParams(),
) -> Iterator[Bound]:
    """Packing bounds above `best` with ever more effort, in small steps: each yields the best so far.

    Its `timely` are what the step has found, for a deadline a few whole plans. `reached`: the objective of a
    plan, asked now and then. `first_effort`: loads of devices that are rated in one step before all others, as many as
    `make_bound` rates.
    """
    costs = roomier(costs)
    least = Least(costs.problem, costs)
    if least.problem.options.has_few_bounds or not packing.applies_to(least):
        return
    optimizer = least.optimizer_ns
    start, first = max(best.value_ns - optimizer, 1), int(params.max_s * params.packing_per_s)
    boundaries = fitting_boundaries(least, start, effort=first // 3)[-1]

    def limit() -> int | None:
        objective = reached()
        return None if objective is None else objective - optimizer

    if first_effort:
        best = _pack(least, best, make=make_covering, effort=first_effort, has_time=has_time, reached=reached())
        yield best
    for found in packing_search.raise_further(
        boundaries,
        start,
        make=make_covering,
        reached=limit,
        shown=best.value_ns - optimizer,
        has_time=has_time,
        params=params,
    ):
        best = _packed(best, found, boundaries=boundaries)
        yield best


def _narrow(least: Least, best: Bound, *, seconds: float) -> Bound:
    """The windows bound of the given stages, if it is above the best so far."""
    times = windows.make_times(least.problem, _given_stages(least.problem), costs=least.costs)
    if times is None:
        return best
    for probes in (0, windows.count_probes(times, seconds=seconds, steps=_PROBE_STEPS)):
        steps = _PROBE_STEPS if probes else _STEPS
        value = windows.raise_bound(times, best.value_ns, steps=steps, probes=probes)
        best = _better(best, "windows", value=value, probes=probes)
    return best


def _make(least: Least, certificate: dict[str, Any]) -> Bound:
    value = _derive(least, certificate)
    return Bound(kind=certificate["kind"], value_ns=value, certificate={**certificate, "value_ns": value})


def _raise_bound(
    least: Least,
    best: Bound,
    *,
    weights: dict[str, int] | None,
    seconds: float,
    has_time: HasTime,
) -> Bound:
    """The pipeline bound at one of two prices, if it is above the best so far; the steps are counted, not timed."""
    trunk = Trunk(least)
    price = pipeline_bound.make_price(least, best.value_ns, weights=weights)
    entries = min(seconds, _SEARCH_S) / 2 * ENTRIES_PER_S
    value = pipeline_bound.raise_bound(
        trunk, best.value_ns, price=price, steps=_STEPS, entries=entries, has_time=has_time
    )
    return _better(best, "pipeline", value=value, price=asdict(price))


def _count_groups(least: Least, best: Bound, *, is_quick: bool, has_time: HasTime, reached: int | None) -> Bound:
    """The groups bound, if it is above the best so far."""
    if (reached is not None and best.value_ns >= reached) or not group_counts.applies_to(least):
        return best
    value = group_counts.raise_bound(least, best.value_ns, is_quick=is_quick, has_time=has_time, reached=reached)
    return _better(best, "groups", value=value)


def _bound_by_classes(least: Least, best: Bound, *, seconds: float, has_time: HasTime) -> Bound:
    """The classes bound, first with few classes, then with more, if it is above the best so far."""
    if not classes_bound.applies_to(least):
        return best
    trunk, optimizer = Trunk(least), least.optimizer_ns
    for members in propose(trunk):
        classes, start = Classes(trunk, members), max(best.value_ns - optimizer, 1)
        figures = seconds * ENTRIES_PER_S
        value = classes_bound.raise_bound(classes, start, figures=figures, has_time=has_time) + optimizer
        if value > start + optimizer:
            best = _bound("classes", value, classes=members)
    return best


def check_certificate(problem: Question, certificate: Mapping[str, Any]) -> int:
    """The bound that the certificate proves, derived from the problem alone.

    Where the size of microbatches was open, the least over all sizes, each with an entry of its own. Raises ValueError
    if it proves less than it states, or is none.
    """
    question = problem if isinstance(problem, BatchProblem) else batch_problem_of(problem)
    if question is not None:
        return _check_sizes(question, certificate)
    assert isinstance(problem, Problem)
    stated = _stated(certificate)
    if problem.microbatches is not None:
        derived = _derive_listed(listed_bound.ListedLeast(CostModel(problem)), certificate)
    else:
        costs = roomier(CostModel(problem))
        derived = _derive(Least(costs.problem, costs), certificate)
    if derived != stated:
        raise refused_certificate(f"it states {stated} ns but proves {derived} ns")
    return derived


def proves_anew(problem: Problem, value: int, *, has_time: HasTime = always) -> bool:
    """Whether this release shows by itself, with little work, that no plan has an objective below `value`.

    For certificates of other releases; where the size of microbatches was open, nothing is tried.
    """
    if problem.batch is not None:
        return False
    costs = CostModel(problem)
    reached = value if value < _MOST_ASKED_NS else None
    if make_bound(problem, costs, time_limit_s=ANEW_S, has_time=has_time, reached=reached).value_ns >= value:
        return True
    is_small = 0 < value < _MAX_VALUE_NS and problem.microbatches is None
    return is_small and refute(problem, costs, value=value, effort=ANEW_EFFORT, has_time=has_time) is not None


def _longest_times(link: Link) -> list[MessageTime]:
    """Of a message, and of a step of each ring, as the link states them."""
    return [points[-1] for points in (link.message_times, *link.step_times.values()) if points]


def rules_out_every_deadline(problem: Problem, value_ns: int) -> bool:
    """Whether a bound is beyond the end of every plan: all that it computes and sends, one thing after the other."""
    if value_ns < REFUTED_NS or problem.options.offload:
        return False
    links, count = problem.cluster.links, len(problem.cluster.devices) ** 2
    slowest = min((link.bandwidth_bytes_per_s for link in links), default=1)
    alone = sum(link.latency_ns + (link.message_overhead_ns or 0) for link in links)
    alone += sum(each.time_ns for link in links for each in _longest_times(link))
    moved = [2 * problem.num_microbatches * edge.bytes for edge in problem.profile.edges]
    moved += [4 * max(layer.state_bytes, layer.parameter_bytes or 0) for layer in problem.profile.layers]
    messages = 2 * problem.num_microbatches * len(problem.profile.edges) + 4 * len(problem.profile.layers)
    sent_ns = count * (messages * (alone + 1) + sum(moved) * 10**9 // slowest)
    return problem.longest_work_ns + 2 * sent_ns < value_ns  # what collectives take of devices: as long again at most


def least_over_sizes(entries: Mapping[int, "Bound | str"]) -> Bound:
    """What no plan is below at any size of microbatches: per size its bound, or why no plan of it fits into memory.

    Raises ValueError if there is no bound among them.
    """
    bounds = [entry for entry in entries.values() if isinstance(entry, Bound)]
    if not bounds:
        raise ValueError("certificate: no plan fits at any size, so there is no bound; make the plan again")
    value, rows = min(bound.value_ns for bound in bounds), list[dict[str, Any]]()
    for size, entry in sorted(entries.items()):
        said = {"infeasible": entry} if isinstance(entry, str) else {"certificate": entry.certificate}
        rows.append({"microbatch_size": size, **said})
    return _bound(_SIZES, value, sizes=rows)


def bounds_of_sizes(certificate: Mapping[str, Any]) -> dict[int, int | None]:
    """Per size the bound that its entry states; None where it says that no plan fits."""
    return {
        row["microbatch_size"]: None if "infeasible" in row else row["certificate"]["value_ns"]
        for row in certificate["sizes"]
    }


def _check_sizes(question: BatchProblem, certificate: Mapping[str, Any]) -> int:
    """The least of what the entries prove, if there is one for every size."""
    stated, rows = _stated(certificate), certificate.get("sizes")
    if certificate.get("kind") != _SIZES or set(certificate) - {_ENCLOSED} != {"kind", "value_ns", "sizes"}:
        raise refused_certificate(f"a global batch needs one of kind {_SIZES!r}")
    sizes = [row.get("microbatch_size") if isinstance(row, Mapping) else None for row in rows or ()]
    if sizes != list(question.sizes):
        raise refused_certificate(f"it has entries for {str(sizes)[:60]}, not for {list(question.sizes)}")
    proved = [_check_size(problem, row) for problem, row in zip(question.candidates, rows or (), strict=True)]
    derived = min((value for value in proved if value is not None), default=None)
    if derived != stated:
        raise refused_certificate(f"it states {stated} ns but proves {derived} ns")
    return stated


def _check_size(problem: Problem, row: Mapping[str, Any]) -> int | None:
    """What the entry of one size proves; None if no plan fits at that size, as it says."""
    if set(row) == {"microbatch_size", "certificate"}:
        return check_certificate(problem.at_its_size(), row["certificate"])
    if set(row) != {"microbatch_size", "infeasible"} or prove_infeasible(problem, CostModel(problem)) is None:
        raise refused_certificate(
            f"its entry for microbatches of {row['microbatch_size']} has neither a bound nor a proof that no plan fits"
        )
    return None


def schedule_bound(problem: Problem, stages: Sequence[Stage], *, costs: CostModel, reached: int | None = None) -> int:
    """No order of actions makes the objective smaller with this partition and mapping.

    `reached`: an objective that some order has; if given, values up to it are tried, which costs up to a second.
    """
    costs = roomier(costs)
    problem = costs.problem
    value = schedule.schedule_bound(problem, tuple(stages), costs=costs)
    if reached is None or value >= reached:
        return value
    times = windows.make_times(problem, tuple(stages), costs=costs)
    if times is None:
        return value
    num_actions = 3 * problem.num_microbatches * sum(len(stage.replicas) for stage in stages)
    steps = MAX_STEPS if num_actions < MANY_ACTIONS else FEW_STEPS
    return windows.raise_bound(times, value, steps=steps, reached=reached)


def prove_infeasible(problem: Problem, costs: CostModel) -> str | None:
    """A sentence that names the limit that binds if no plan can fit into memory; None if that was not proved."""
    once, costs = problem.shared_state_bytes, roomier(costs)
    problem, options = costs.problem, costs.problem.options
    if options.has_few_bounds or problem.microbatches is not None:
        return None
    least = Least(problem, costs)
    reason = memory.prove_infeasible(least)
    if reason is None and _is_placed(problem):
        reason = memory.prove_overfull(least, _given_stages(problem))
    if reason is not None and once:
        reason += f" (each device counted {once:,} bytes larger, which layers hold once)"
    return reason


def _is_placed(problem: Problem) -> bool:
    """Whether stages and devices are decided, so that only the order is open, and which microbatches recompute."""
    options, is_given = problem.options, problem.given_stages is not None
    return is_given and (options.recompute_microbatches or not options.recompute) and not problem.may_shard


def _derive(least: Least, certificate: Mapping[str, Any]) -> int:
    """The value that a certificate proves."""
    kind = _kind(certificate)
    if kind in _LISTED:
        raise refused_certificate(f"a bound of kind {kind!r} is for listed microbatches")
    for each in decisions.asked(least.problem.options):
        if each.decision.bounds is not None and kind not in each.decision.bounds:
            raise refused_certificate(f"a bound of kind {kind!r} does not hold where {each.option} is allowed")
    needs_makespan = kind in ("layer", "path", "host")
    if needs_makespan and least.problem.options.objective != "makespan":
        raise refused_certificate(f"a bound of kind {kind!r} holds for the makespan only")
    derive, _, applies_to = _KINDS[kind]
    if not applies_to(least):
        raise refused_certificate(f"a bound of kind {kind!r} does not hold for this problem")
    return derive(least, certificate)


def _stated(certificate: object) -> int:
    """The value that a certificate states."""
    if not isinstance(certificate, Mapping):
        raise refused_certificate(f"{str(certificate)[:60]!r} is not a table")
    stated = certificate.get("value_ns")
    if type(stated) is not int or not 0 <= stated < _MAX_VALUE_NS:
        shown = repr(stated)[:60] if not isinstance(stated, int) else "out of range"
        raise refused_certificate(f"value_ns is {shown}, not an integer from 0")
    return stated


def _kind(certificate: Mapping[str, Any]) -> str:
    """The kind of a certificate that has the fields of its kind, and no other."""
    kind = certificate.get("kind")
    if not isinstance(kind, str) or kind not in _FIELDS:
        reason = f"certificate: kind = {str(kind)[:60]!r} is unknown; one of {', '.join(_FIELDS)}"
        raise OtherRulesError(reason, is_known=kind in _EARLIER_KINDS)
    fields = set(certificate) - {"kind", "value_ns", _ENCLOSED, *_NEW_FIELDS.get(kind, ())}
    if fields not in map(set, (_FIELDS[kind], _OLDER_FIELDS.get(kind, _FIELDS[kind]))):
        names = ", ".join(sorted(str(name)[:30] for name in fields ^ set(_FIELDS[kind])))[:120]
        reason = f"certificate: fields missing or too many for kind {kind!r}: {names}; make the bound again"
        raise OtherRulesError(reason, is_known=False)
    if fields != set(_FIELDS[kind]):
        raise OtherRulesError(f"certificate: kind {kind!r} had the fields {', '.join(sorted(fields))}", is_known=True)
    return kind


def _work(least: Least, certificate: Mapping[str, Any]) -> int:
    has_barrier = least.problem.options.objective == "makespan"
    value = work.work_bound(least, _weights(certificate))
    return value + (least.problem.profile.optimizer_ns if has_barrier else 0)


def _weights(certificate: Mapping[str, Any]) -> dict[str, int]:
    """Per device type its weight."""
    weights = certificate["weights"]
    if not isinstance(weights, Mapping) or not all(
        type(weight) is int and 0 <= weight < _MAX_VALUE_NS for weight in weights.values()
    ):
        raise refused_certificate(f"weights = {str(weights)[:60]!r} is not a table of integers from 0")
    return dict(weights)


def _recomputation(least: Least, certificate: Mapping[str, Any]) -> int:
    weights, price = _weights(certificate), certificate["memory_price"]
    if type(price) is not int or not 0 <= price < _MAX_VALUE_NS:
        raise refused_certificate(f"memory_price = {str(price)[:60]!r} is not an integer from 0")
    return recompute_bound.recompute_bound(least, weights, price=price) + least.problem.profile.optimizer_ns


def _layer_number(least: Least, certificate: Mapping[str, Any]) -> int:
    """Position of the layer in the profile; raises ValueError if there is none."""
    name = certificate["layer"]
    if not isinstance(name, str) or name not in least.index:
        raise refused_certificate(f"layer = {str(name)[:60]!r} is not in the profile")
    return least.index[name]


def _pipeline(least: Least, certificate: Mapping[str, Any]) -> int:
    """The stated value, if no plan can have an objective below it."""
    stated, price = _positive(certificate), _read_price(least, certificate["price"])
    trunk = Trunk(least)
    programmes = [
        pipeline_bound.DivisionProgramme(trunk, stated - 1, price=price, forms=forms)
        for forms in pipeline_bound.every_forms(trunk, price)
    ]
    exact = [each for each in programmes if each.is_exact and (each.effort <= _MOST_ENTRIES or not each.has_forms)]
    if not exact:
        raise refused_certificate("its price exceeds 64 bits")
    _require_ruled_out(stated, is_out=any(each.is_out_of_reach() for each in exact))
    return stated


def _groups(least: Least, certificate: Mapping[str, Any]) -> int:
    """The stated value, if the devices do not suffice for any plan with a makespan below it."""
    stated = _positive(certificate)
    deadline = stated - 1 - least.optimizer_ns
    counted = (group_counts.GroupCounts(least, by_type=by_type) for by_type in (None, True))
    _require_ruled_out(stated, is_out=deadline < 0 or any(counts.is_out_of_reach(deadline) for counts in counted))
    return stated


def _classes(least: Least, certificate: Mapping[str, Any]) -> int:
    """The stated value, if no plan on devices of these classes can have a makespan below it."""
    stated = _positive(certificate)
    trunk, deadline = Trunk(least), stated - 1 - least.optimizer_ns
    members = _read_members(least, certificate["classes"])
    if not fits(trunk, members):
        raise refused_certificate("it has too many classes")
    classes = Classes(trunk, members)
    if deadline >= 0 and not classes_bound.is_exact(classes, deadline):
        raise refused_certificate("its value exceeds 64 bits or takes too long")
    _require_ruled_out(stated, is_out=deadline < 0 or classes_bound.Sequence(classes, deadline).is_out_of_reach())
    return stated


def _read_members(least: Least, plain: object) -> list[list[str]]:
    """Lists of the names of all devices, each in one of them."""
    known = sorted(device.name for device in least.problem.cluster.devices)
    lists = plain if isinstance(plain, list) and all(isinstance(names, list) and names for names in plain) else []
    names = [name for members in lists for name in members]
    if not all(isinstance(name, str) for name in names) or sorted(names) != known:
        raise refused_certificate(f"classes = {str(plain)[:60]!r} are not lists of the devices, each in one")
    return [list(members) for members in lists]


def _windows(least: Least, certificate: Mapping[str, Any]) -> int:
    """The stated value, if no order of the given stages can have a makespan below it."""
    stated = _positive(certificate)
    times = windows.make_times(least.problem, _given_stages(least.problem), costs=least.costs)
    if times is None:
        raise refused_certificate("a bound of kind 'windows' does not hold for this problem")
    probes = certificate["probes"]
    most = windows.most_probes(times)
    if type(probes) is not int or not 0 <= probes <= most:
        raise refused_certificate(f"probes is not an integer from 0 to {most} here")
    _require_ruled_out(stated, is_out=windows.is_out_of_reach(times, stated - 1, probes=probes))
    return stated


def _time_indexed(least: Least, certificate: Mapping[str, Any]) -> int:
    """The stated value, if multipliers show that no plan of the given stages has a makespan below it."""
    stated, cell_ns, multipliers = _positive(certificate), certificate["cell_ns"], certificate["multipliers"]
    if type(cell_ns) is not int or not 0 < cell_ns < _MAX_VALUE_NS:
        raise refused_certificate(f"cell_ns = {str(cell_ns)[:60]!r} is not an integer from 1")
    pairs = multipliers if isinstance(multipliers, list) else [multipliers]
    if not all(_is_multiplier(pair) for pair in pairs):
        raise refused_certificate("multipliers are not pairs of a row and an integer from 1")
    is_out = time_indexed.is_out_of_reach(
        least.problem, least.costs, value_ns=stated, cell_ns=cell_ns, multipliers=[(row, by) for row, by in pairs]
    )
    _require_ruled_out(stated, is_out=is_out)
    return stated


def _is_multiplier(pair: object) -> bool:
    """Whether it is the number of a row, with what the row is multiplied by."""
    is_pair = isinstance(pair, list) and len(pair) == 2 and all(type(number) is int for number in pair)
    return is_pair and pair[0] >= 0 and 0 < pair[1] < _MAX_VALUE_NS  # type: ignore[index]


def _packing(least: Least, certificate: Mapping[str, Any]) -> int:
    """The stated value, if the cases show that no plan has a makespan below it."""
    stated = _positive(certificate)
    boundaries = read_boundaries(least, certificate.get("levels", 1))
    cases = packing.read_cases(certificate["cases"], boundaries)
    _, trees = refutation.read({"effort": 0, "trees": certificate.get("trees", [])})
    deadline = stated - 1 - least.optimizer_ns
    try:
        is_out = deadline < 0 or packing.is_out_of_reach(boundaries, deadline, cases=cases, trees=trees)
        _require_ruled_out(stated, is_out=is_out)
    except MuchToCheckError:
        most = packing_effort.most_effort(boundaries)
        raise refused_certificate(f"cases has {len(cases)}, whose check takes more than {most:,} steps") from None
    except ValueError as reason:
        _require_these_rules(certificate, reason=reason, is_needed=bool(trees))
    return stated


def _counting(least: Least, certificate: Mapping[str, Any]) -> int:
    """The stated value, if devices, or the ranks of a loop, cannot hold all layers and end before it."""
    stated, method = _positive(certificate), _COUNTED.get(certificate["kind"], cuts_bound)
    deadline = stated - 1 - least.optimizer_ns
    is_out = deadline < 0 or method.read(least, certificate).is_out_of_reach(deadline)
    _require_ruled_out(stated, is_out=is_out)
    return stated


def _loop(least: Least, certificate: Mapping[str, Any]) -> int:
    """The same for a loop; in release 0.3.0 it could name the effort of cases, which kind `cuts` plays now."""
    rows = certificate["ways"]
    if isinstance(rows, list) and any(isinstance(row, Mapping) and "effort" in row for row in rows):
        raise OtherRulesError("certificate: kind 'loop' had the effort of cases, which kind 'cuts' has", is_known=True)
    return _counting(least, certificate)


def _refutation(least: Least, certificate: Mapping[str, Any]) -> int:
    """The stated value, if every case of partition, mapping and order is closed below it."""
    stated = _positive(certificate)
    effort, trees = refutation.read(certificate)
    try:
        rules = certificate.get("rules")
        is_out = refutation.check(least.problem, least.costs, value=stated, effort=effort, trees=trees, rules=rules)
        _require_ruled_out(stated, is_out=is_out)
    except ValueError as reason:
        _require_these_rules(certificate, reason=reason)
    return stated


def _orders(least: Least, certificate: Mapping[str, Any]) -> int:
    """The stated value, if a tree closes every order of the given stages below it."""
    stated = _positive(certificate)
    _, (tree,) = refutation.read({"effort": 0, "trees": [certificate["tree"]]})
    try:
        found = given_orders.GivenOrders(least.costs).close(stated, effort=WorkCount(refutation.MAX_EFFORT), given=tree)
        _require_ruled_out(stated, is_out=found is not None)
    except ValueError as reason:
        _require_these_rules(certificate, reason=reason)
    return stated


def _require_these_rules(certificate: Mapping[str, Any], *, reason: ValueError, is_needed: bool = True) -> None:
    """Raise `reason`, or, where trees are of other rules than those in force, that they are."""
    rules = certificate.get("rules")
    if rules == refutation.RULES or not is_needed:
        raise reason
    states = "states no rules" if rules is None else f"states rules = {str(rules)[:20]}"
    raise OtherRulesError(f"{reason}; it {states}, and {refutation.RULES} are in force", is_known=True) from reason


def _positive(certificate: Mapping[str, Any]) -> int:
    stated = _stated(certificate)
    if not stated:
        raise refused_certificate("value_ns = 0 excludes no plan")
    return stated


def _require_ruled_out(stated: int, *, is_out: bool) -> None:
    if not is_out:
        raise refused_certificate(f"it states {stated} ns but does not exclude {stated - 1} ns")


def _read_price(least: Least, plain: object) -> pipeline_bound.Price:
    if not isinstance(plain, Mapping) or set(plain) != {"weights", "memory", "shift"}:
        raise refused_certificate(f"price = {str(plain)[:60]!r} is not a price")
    weights = plain["weights"]
    numbers = [plain["memory"], plain["shift"], *(weights.values() if isinstance(weights, Mapping) else [None])]
    if not all(type(number) is int and 0 <= number < _MAX_VALUE_NS for number in numbers) or (
        set(weights) != set(least.types) or plain["shift"] > 62
    ):
        raise refused_certificate(f"price = {str(plain)[:60]!r} needs integers from 0, and a weight for every type")
    return pipeline_bound.Price(weights=dict(weights), memory=plain["memory"], shift=plain["shift"])


def _shared(least: Least, certificate: Mapping[str, Any]) -> int:
    """The time of the layers that all devices share, and what the certificate of the rest proves."""
    rest = shared_layers.remaining_problem(least.problem)
    return shared_layers.busy_ns(least) + check_certificate(rest, certificate["rest"])


def _schedule(least: Least, certificate: Mapping[str, Any]) -> int:
    """The stated value, if it is no more than what the rules in force show: earlier releases had fewer of them."""
    value = schedule.schedule_bound(least.problem, _given_stages(least.problem), costs=least.costs)
    return min(value, _positive(certificate)) if "value_ns" in certificate else value


def _given_stages(problem: Problem) -> tuple[Stage, ...]:
    """The stages of a problem whose partition and placement are given."""
    if problem.given_stages is None or not _is_placed(problem):
        raise refused_certificate("a bound of kind 'schedule' or 'windows' needs a given partition and placement")
    return problem.given_stages


class _CertificateKind(NamedTuple):
    """How a certificate of a kind is checked."""

    derive: Callable[[Least, Mapping[str, Any]], int]
    fields: tuple[str, ...] = ()
    """What it has besides its kind and its value."""
    applies_to: Callable[[Least], bool] = lambda _: True


_KINDS = {
    "work": _CertificateKind(_work, ("weights",)),
    "host": _CertificateKind(lambda least, _: host.host_bound(least) + least.problem.profile.optimizer_ns),
    "recomputation": _CertificateKind(_recomputation, ("weights", "memory_price"), recompute_bound.applies_to),
    "layer": _CertificateKind(lambda least, it: paths.layer_bound(least, _layer_number(least, it)), ("layer",)),
    "path": _CertificateKind(lambda least, _: paths.path_bound(least)),
    "pipeline": _CertificateKind(_pipeline, ("price",)),
    "schedule": _CertificateKind(_schedule),
    "windows": _CertificateKind(_windows, ("probes",)),
    time_indexed.KIND: _CertificateKind(
        _time_indexed, ("cell_ns", "multipliers"), lambda least: time_indexed.applies_to(least.problem)
    ),
    "groups": _CertificateKind(_groups, (), group_counts.applies_to),
    "classes": _CertificateKind(_classes, ("classes",), classes_bound.applies_to),
    "packing": _CertificateKind(_packing, ("cases",), packing.applies_to),
    "counting": _CertificateKind(_counting, ("unit", "special"), counting.applies_to),
    "loop": _CertificateKind(_loop, ("ways",), loop_bound.applies_to),
    "cuts": _CertificateKind(_counting, ("effort",), cuts_bound.applies_to),
    "refutation": _CertificateKind(_refutation, refutation.FIELDS),
    given_orders.KIND: _CertificateKind(
        _orders, ("rules", "tree"), lambda least: given_orders.applies_to(least.problem)
    ),
    "shared": _CertificateKind(_shared, ("rest",), lambda least: bool(shared_layers.shared_layers(least.problem))),
}

_LISTED = {"listed work": ("weights",), "listed layer": ("layer",), "listed path": (), "dealt": ()}
"""Kinds that hold where the question lists its microbatches, and their fields."""

_FIELDS: dict[str, tuple[str, ...]] = {kind: rule.fields for kind, rule in _KINDS.items()} | _LISTED

_EARLIER_KINDS = ("rounded",)
"""Kinds that are no longer made, since another is stronger; what they proved is derived anew."""

_OLDER_FIELDS: dict[str, tuple[str, ...]] = {"loop": ("unit", "special")}
"""What those of earlier releases had, where that was something else: their rules are no longer in force."""

_NEW_FIELDS: dict[str, tuple[str, ...]] = {"refutation": ("rules",), "packing": ("levels", "rules", "trees")}
"""What those of earlier releases have not."""
