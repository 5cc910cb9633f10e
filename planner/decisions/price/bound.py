"""A bound on the money of an iteration over all subsets of the devices, with a certificate (docs/proofs/bounds.md).

Every plan uses so many devices of each class (`DeviceKinds`). The certificate has boxes of such
counts that together hold them all, each with a bound on the makespan of its largest subset.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from planner.batch_problem import Question, batch_problem_of, candidates_of
from planner.bounds.listed import listed_bound
from planner.bounds.minimum_costs import Least
from planner.decisions.price.device_kinds import PER_UNIT, Counts, DeviceKinds, micro_per_hour
from planner.evidence.certificate import Bound, check_certificate, prove_infeasible
from planner.layout.costs import CostModel
from planner.problem import Problem

KIND = "subsets"

_MAX_BOXES = 4096
"""A certificate with more is refused."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """All subsets with counts between two."""

    fewest: Counts
    """Devices of every class that each subset has at least."""
    most: Counts
    """Devices of every class that each subset has at most."""
    time: Bound | str
    """No plan on `most` is faster, hence none on a subset; or why no plan of them fits into memory."""
    work: int = field(default=0)
    """The money that the work alone costs (`work_money`)."""

    @property
    def is_single(self) -> bool:
        """Whether it is one subset."""
        return self.fewest == self.most

    @property
    def time_ns(self) -> int | None:
        """The bound on the makespan; None if no plan fits."""
        return None if isinstance(self.time, str) else self.time.value_ns

    def money(self, kinds: DeviceKinds, *, deadline_ns: int | None) -> int | None:
        """What no plan of it costs less than; None if none fits, or none by the deadline."""
        if self.time_ns is None or (deadline_ns is not None and self.time_ns > deadline_ns):
            return None
        return max(least_price(kinds, fewest=self.fewest, most=self.most) * self.time_ns, self.work)


def least_price(kinds: DeviceKinds, *, fewest: Counts, most: Counts) -> int:
    """Of a subset that has a device at all, in millionths per hour."""
    if any(fewest):
        return kinds.price(fewest)
    return min(price for price, count in zip(kinds.prices, most, strict=True) if count)


def work_money(question: Question) -> int:
    """Every device used is paid for as long as it works: the sum over layers of the least price x time.

    The least is over the types of the devices of the question, at the least price of each, over widths and numbers of
    replicas; and the least sum over the sizes of microbatches, where they are to be chosen.
    """
    return min(map(_work_money_at, candidates_of(question)))


def _work_money_at(problem: Problem) -> int:
    costs, prices = CostModel(problem), dict[str, int]()
    for device in problem.cluster.devices:
        prices[device.type] = min(prices.get(device.type, micro_per_hour(device)), micro_per_hour(device))
    if problem.microbatches is not None:
        return listed_bound.weighted_load(listed_bound.ListedLeast(costs), prices, has_steps=True)
    return sum(Least(problem, costs).weighted_load(prices))


def money_bound(kinds: DeviceKinds, boxes: Iterable[Box], *, deadline_ns: int | None) -> int | None:
    """What no plan of any box costs less than; None if none fits anywhere."""
    known = [box.money(kinds, deadline_ns=deadline_ns) for box in boxes]
    return min((money for money in known if money is not None), default=None)


def write_boxes(kinds: DeviceKinds, boxes: Sequence[Box], *, deadline_ns: int | None) -> dict[str, Any]:
    """The certificate of what `money_bound` says. Raises ValueError if that is nothing."""
    value = money_bound(kinds, boxes, deadline_ns=deadline_ns)
    if value is None:
        raise ValueError(
            "certificate: no plan fits on any subset of the devices, so there is no bound; make the plan again"
        )
    return {"kind": KIND, "value": value, "classes": list(map(list, kinds.members)), "boxes": list(map(_row, boxes))}


def _row(box: Box) -> dict[str, Any]:
    said = {"infeasible": box.time} if isinstance(box.time, str) else {"certificate": box.time.certificate}
    return {"fewest": list(box.fewest), "most": list(box.most), **said}


def check_subsets(problem: Problem, certificate: Mapping[str, Any]) -> int:
    """The bound on the money of every plan that the certificate proves, derived from the problem alone.

    In millionths of the currency per hour times nanoseconds. Raises ValueError if it proves less than it states, or is
    none.
    """
    kinds = DeviceKinds(problem=batch_problem_of(problem) or problem)
    if set(certificate) != {"kind", "value", "classes", "boxes"} or certificate["kind"] != KIND:
        raise ValueError(f"rental certificate: is none of kind {KIND!r}; make the plan again")
    if certificate["classes"] != list(map(list, kinds.members)):
        raise ValueError("rental certificate: its classes are not those of the cluster; make the plan again")
    rows = certificate["boxes"]
    if not 1 <= len(rows) <= _MAX_BOXES:
        raise ValueError(f"rental certificate: has {len(rows)} boxes, not 1 to {_MAX_BOXES}; make the plan again")
    boxes = [_read(kinds, row) for row in rows]
    _require_cover(kinds, boxes)
    value = money_bound(kinds, boxes, deadline_ns=problem.options.deadline_ns)
    if value is None or value != certificate["value"]:
        raise ValueError(
            f"rental certificate: it states {str(certificate['value'])[:60]} but proves {value}; make the plan again"
        )
    return value


def in_currency(value: int) -> float:
    """A bound on money in units of the currency per iteration."""
    return value / PER_UNIT


def _read(kinds: DeviceKinds, row: Mapping[str, Any]) -> Box:
    """A box whose bound is derived anew."""
    fewest, most = _counts(kinds, row["fewest"]), _counts(kinds, row["most"])
    if any(a > b for a, b in zip(fewest, most, strict=True)) or not any(most):
        raise ValueError(f"rental certificate: no subset lies between {fewest} and {most}; make the plan again")
    question = kinds.on(most)
    if set(row) == {"fewest", "most", "infeasible"}:
        if any(prove_infeasible(problem, CostModel(problem)) is None for problem in candidates_of(question)):
            raise ValueError(f"rental certificate: nothing proves that no plan fits on {most}; make the plan again")
        return Box(fewest=fewest, most=most, time=str(row["infeasible"]))
    if set(row) != {"fewest", "most", "certificate"}:
        raise ValueError(f"rental certificate: the box to {most} has neither bound nor proof; make the plan again")
    value = check_certificate(question, row["certificate"])
    time = Bound(kind=str(row["certificate"]["kind"]), value_ns=value, certificate=dict(row["certificate"]))
    return Box(fewest=fewest, most=most, time=time, work=work_money(question))


def _counts(kinds: DeviceKinds, stated: object) -> Counts:
    if not isinstance(stated, list | tuple) or len(stated) != len(kinds.all):
        raise ValueError(f"rental certificate: {str(stated)[:60]} is not a number per class; make the plan again")
    if not all(type(count) is int and 0 <= count <= size for count, size in zip(stated, kinds.all, strict=True)):
        raise ValueError(f"rental certificate: {str(stated)[:60]} are more or less than there are; make the plan again")
    return tuple(stated)


def _require_cover(kinds: DeviceKinds, boxes: Sequence[Box]) -> None:
    """Boxes that are apart, and hold as many subsets as there are, leave none out."""
    for number, box in enumerate(boxes):
        if any(_meet(box, other) for other in boxes[:number]):
            raise ValueError(f"rental certificate: two boxes hold a subset of {box.most}; make the plan again")
    ranges = zip(kinds.fewest, kinds.all, strict=True)
    sizes = [prod(high - low + 1 for low, high in zip(box.fewest, box.most, strict=True)) for box in boxes]
    is_inside = all(low <= each for box in boxes for low, each in zip(kinds.fewest, box.fewest, strict=True))
    if not is_inside or sum(sizes) != prod(high - low + 1 for low, high in ranges) - _num_empty(kinds, boxes):
        raise ValueError("rental certificate: its boxes leave subsets out; make the plan again")


def _num_empty(kinds: DeviceKinds, boxes: Sequence[Box]) -> int:
    """1 if the empty subset, which no plan uses, is in none of them."""
    return int(not any(kinds.fewest) and all(any(box.fewest) for box in boxes))


def _meet(box: Box, other: Box) -> bool:
    return all(
        low <= high
        for low, high in zip(map(max, box.fewest, other.fewest), map(min, box.most, other.most), strict=True)
    )
