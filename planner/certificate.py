"""Bounds over all plans, each with a certificate from which it is derived anew in exact arithmetic, without a solver."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.bounds import memory, paths, schedule, work
from planner.bounds.least import Least
from planner.costs import CostModel
from planner.plan import Stage
from planner.problem import Problem

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
    del time_limit_s
    least = Least(problem, costs)
    certificates: list[dict[str, Any]] = [{"kind": "work", "weights": work.find_weights(least)}]
    if problem.options.objective == "makespan":
        number, _ = paths.find_layer(least)
        certificates += [{"kind": "layer", "layer": least.layers[number].name}, {"kind": "path"}]
    if _is_placed(problem):
        certificates.append({"kind": "schedule"})
    bounds = [
        Bound(kind=entry["kind"], value_ns=(value := _derive(least, entry)), certificate={**entry, "value_ns": value})
        for entry in certificates
    ]
    return max(bounds, key=lambda bound: bound.value_ns)


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


def schedule_bound(problem: Problem, stages: Sequence[Stage], costs: CostModel) -> int:
    """No order of actions makes the objective smaller with this partition and mapping."""
    return schedule.schedule_bound(problem, tuple(stages), costs=costs)


def prove_infeasible(problem: Problem, costs: CostModel) -> str | None:
    """A sentence that names the limit that binds if no plan can fit into memory; None if that was not proved."""
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
    assert problem.options.partition is not None and problem.options.placement is not None
    pairs = zip(problem.options.partition, problem.options.placement, strict=True)
    stages = tuple(Stage(layers=layers, replicas=groups) for layers, groups in pairs)
    return schedule.schedule_bound(problem, stages, costs=least.costs)


_KINDS: dict[str, Callable[[Least, Mapping[str, Any]], int]] = {
    "work": _work,
    "layer": _layer,
    "path": _path,
    "schedule": _schedule,
}
