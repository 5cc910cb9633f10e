"""Bounds over all plans, each with a certificate that derives it anew in exact arithmetic, without a solver."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from planner.bounds import memory, paths, pipeline, schedule, work
from planner.bounds.least import Least
from planner.bounds.trunk import Trunk
from planner.costs import CostModel
from planner.plan import Stage
from planner.problem import Problem

ENTRIES_PER_S = 20_000_000
"""Table entries of the pipeline bound that a slow machine fills in a second."""

MAX_STEPS = 16
"""Steps of the search for the largest T out of reach; each halves what is open."""

__all__ = ["Bound", "check_certificate", "make_bound", "prove_infeasible", "schedule_bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A value that the objective of no allowed plan is below."""

    kind: str
    """Which bound it is; docs/bounds.md has the proofs."""
    value_ns: int
    """In nanoseconds of the objective."""
    certificate: dict[str, Any]
    """What `check_certificate` needs to derive the value again."""


def make_bound(problem: Problem, costs: CostModel, *, time_limit_s: float = 2.0) -> Bound:
    """The largest bound found on the objective of every plan that the options allow."""
    least = Least(problem, costs)
    weights = work.find_weights(least)
    certificates: list[dict[str, Any]] = [{"kind": "work", "weights": weights}]
    if problem.options.split_placement:
        return _make(least, certificates[0])
    if problem.options.objective == "makespan":
        number, _ = paths.find_layer(least)
        certificates += [{"kind": "layer", "layer": least.layers[number].name}, {"kind": "path"}]
    if _is_placed(problem):
        certificates.append({"kind": "schedule"})
    bounds = [_make(least, certificate) for certificate in certificates]
    best = max(bounds, key=lambda bound: bound.value_ns)
    for prices in (weights, None):
        best = _climb(least, best, weights=prices, seconds=time_limit_s / 2)
    return best


def _make(least: Least, certificate: dict[str, Any]) -> Bound:
    value = _derive(least, certificate)
    return Bound(kind=certificate["kind"], value_ns=value, certificate={**certificate, "value_ns": value})


def _climb(least: Least, best: Bound, *, weights: dict[str, int] | None, seconds: float) -> Bound:
    """The pipeline bound at one price, if it is above the best so far; the steps are counted, not timed."""
    trunk = Trunk(least)
    price = pipeline.make_price(least, best.value_ns, weights=weights)
    effort = pipeline.Division(trunk, best.value_ns, price=price).effort
    value = pipeline.climb(
        trunk, best.value_ns, price=price, steps=min(MAX_STEPS, int(seconds * ENTRIES_PER_S / effort))
    )
    if value <= best.value_ns:
        return best
    certificate = {"kind": "pipeline", "value_ns": value, "price": asdict(price)}
    return Bound(kind="pipeline", value_ns=value, certificate=certificate)


def check_certificate(problem: Problem, certificate: Mapping[str, Any]) -> int:
    """The bound that the certificate proves, derived from the problem alone.

    Raises ValueError if it proves less than it states, or is none.
    """
    stated = certificate.get("value_ns")
    if isinstance(stated, bool) or not isinstance(stated, int):
        raise ValueError(f"certificate: value_ns = {str(stated)[:60]!r} is not an integer; make the bound again")
    derived = _derive(Least(problem, CostModel(problem)), certificate)
    if derived != stated:
        raise ValueError(f"certificate: it states {stated} ns but proves {derived} ns; make the bound again")
    return derived


def schedule_bound(problem: Problem, stages: Sequence[Stage], *, costs: CostModel) -> int:
    """No order of actions makes the objective smaller with this partition and mapping."""
    return schedule.schedule_bound(problem, tuple(stages), costs=costs)


def prove_infeasible(problem: Problem, costs: CostModel) -> str | None:
    """A sentence that names the limit that binds if no plan can fit into memory; None if that was not proved."""
    if problem.options.split_placement:
        return None
    return memory.prove_infeasible(Least(problem, costs))


def _is_placed(problem: Problem) -> bool:
    """Whether stages and devices are decided, so that only the order is open."""
    options = problem.options
    return options.partition is not None and options.placement is not None and not options.recompute


def _derive(least: Least, certificate: Mapping[str, Any]) -> int:
    """The value that a certificate proves."""
    kind = certificate.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"certificate: kind = {str(kind)[:60]!r} is unknown; one of {', '.join(_KINDS)}")
    if kind != "work" and least.problem.options.split_placement:
        raise ValueError(
            f"certificate: a bound of kind {kind!r} does not hold where I and W may be placed apart from F"
        )
    needs_makespan = kind in ("layer", "path")
    if needs_makespan and least.problem.options.objective != "makespan":
        raise ValueError(f"certificate: a bound of kind {kind!r} holds for the makespan only")
    return _KINDS[kind](least, certificate)


def _work(least: Least, certificate: Mapping[str, Any]) -> int:
    weights = certificate.get("weights")
    if not isinstance(weights, Mapping) or not all(type(weight) is int for weight in weights.values()):
        raise ValueError(f"certificate: weights = {str(weights)[:60]!r} is no table of integers; make the bound again")
    has_barrier = least.problem.options.objective == "makespan"
    return work.work_bound(least, dict(weights)) + (least.problem.profile.optimizer_ns if has_barrier else 0)


def _layer(least: Least, certificate: Mapping[str, Any]) -> int:
    name = certificate.get("layer")
    if name not in least.index:
        raise ValueError(f"certificate: layer = {str(name)[:60]!r} is not in the profile; make the bound again")
    return paths.layer_bound(least, least.index[str(name)])


def _pipeline(least: Least, certificate: Mapping[str, Any]) -> int:
    """The stated value, if no plan can have an objective below it."""
    stated, price = certificate.get("value_ns"), _read_price(least, certificate.get("price"))
    if type(stated) is not int or stated < 1:
        raise ValueError(
            f"certificate: value_ns = {str(stated)[:60]!r} is not a positive integer; make the bound again"
        )
    division = pipeline.Division(Trunk(least), stated - 1, price=price)
    if not division.is_exact:
        raise ValueError("certificate: its price leaves 64 bits; make the bound again")
    if not division.is_out_of_reach():
        raise ValueError(
            f"certificate: it states {stated} ns, but does not rule out {stated - 1} ns; make the bound again"
        )
    return stated


def _read_price(least: Least, plain: object) -> pipeline.Price:
    if not isinstance(plain, Mapping) or set(plain) != {"weights", "memory", "shift"}:
        raise ValueError(f"certificate: price = {str(plain)[:60]!r} is no price; make the bound again")
    weights = plain["weights"]
    numbers = [plain["memory"], plain["shift"], *(weights.values() if isinstance(weights, Mapping) else [None])]
    if not all(type(number) is int and number >= 0 for number in numbers) or set(weights) != set(least.types):
        raise ValueError(
            f"certificate: price = {str(plain)[:60]!r} needs integers from 0, and a weight for every device type"
        )
    return pipeline.Price(weights=dict(weights), memory=plain["memory"], shift=plain["shift"])


def _path(least: Least, certificate: Mapping[str, Any]) -> int:
    del certificate
    return paths.path_bound(least)


def _schedule(least: Least, certificate: Mapping[str, Any]) -> int:
    del certificate
    problem = least.problem
    if not _is_placed(problem):
        raise ValueError(
            "certificate: a bound of kind 'schedule' needs a problem whose partition and placement are given"
        )
    pairs = zip(problem.options.partition or (), problem.options.placement or (), strict=True)
    stages = tuple(Stage(layers=layers, replicas=groups) for layers, groups in pairs)
    return schedule.schedule_bound(problem, stages, costs=least.costs)


_KINDS: dict[str, Callable[[Least, Mapping[str, Any]], int]] = {
    "work": _work,
    "layer": _layer,
    "path": _path,
    "pipeline": _pipeline,
    "schedule": _schedule,
}
