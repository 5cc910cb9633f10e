"""Rules: what the plan's devices cost is as stated, and the plan ends by its deadline."""

from collections.abc import Iterator

from planner.judge.case import Case, Finding, Findings, Rules, shown
from planner.plan import RentalResult

_MICROS = 10**6
"""Prices are whole millionths."""

_NS_PER_HOUR = 3600 * 10**9


def deadline_missed(case: Case) -> Findings:
    """The iteration ends by `deadline_ns`, if it is given."""
    limit = case.options.deadline_ns
    if limit is not None and case.judgement is not None and case.judgement.makespan_ns > limit:
        message = f"The iteration takes {case.judgement.makespan_ns} ns, longer than deadline_ns = {limit}."
        yield Finding("the makespan", f"at most {limit}", case.judgement.makespan_ns, message)


def evidence_rental(case: Case) -> Findings:
    """Evidence states what the devices cost exactly where money is minimised."""
    if (evidence := case.plan.evidence) and (evidence.rental is None) == (case.options.objective == "cost"):
        expected, actual = ("figures", "none") if evidence.rental is None else ("none", "figures")
        message = (
            f"With objective = {case.options.objective} there are to be {expected} of cost, but there are {actual}."
        )
        yield Finding("evidence rental", expected, actual, message)


def evidence_rented(case: Case) -> Findings:
    """The devices named are devices of the cluster, each once, in its order, with all that the plan uses among them."""
    for rental in _stated(case):
        expected = [device.name for device in case.problem.cluster.devices if device.name in set(rental.devices)]
        if list(rental.devices) != expected or not set(case.groups_on) <= set(expected):
            message = (
                f"The evidence names {shown(rental.devices, 80)} as rented, but the plan uses others or there is none."
            )
            yield Finding("evidence rental devices", sorted(case.groups_on), list(rental.devices), message)


def evidence_cost(case: Case) -> Findings:
    """Price and cost are those recomputed: what the devices used cost an hour, times the makespan."""
    for rental in _stated(case):
        price, cost = _recomputed(case)
        expected = {"price_per_hour": price / _MICROS, "cost": cost / (_MICROS * _NS_PER_HOUR)}
        for name, value in expected.items():
            actual = getattr(rental, name)
            if isinstance(actual, bool) or actual != value:
                message = f"The evidence states {name} = {shown(actual, 80)}, but it is {value!r}."
                yield Finding(f"evidence rental {name}", value, actual, message)


def evidence_cost_bound(case: Case) -> Findings:
    """The bound on the cost is that of the certificate, not above the cost, and the gap is (cost - bound) / cost."""
    for rental in _stated(case):
        value, (_, cost) = rental.certificate.get("value"), _recomputed(case)
        if type(value) is not int or not 0 <= value <= cost:
            message = f"The certificate of the cost states {shown(value, 80)}, but the plan achieves {cost}."
            yield Finding("evidence rental certificate", f"from 0 to {cost}", value, message)
            continue
        expected = {"lower_bound": value / (_MICROS * _NS_PER_HOUR), "gap": (cost - value) / max(cost, 1)}
        for name, figure in expected.items():
            actual = getattr(rental, name)
            if isinstance(actual, bool) or actual != figure:
                message = f"The evidence states {name} = {shown(actual, 80)}, but it is {figure!r}."
                yield Finding(f"evidence rental {name}", figure, actual, message)


def _stated(case: Case) -> Iterator[RentalResult]:
    """What the evidence says of the cost, if it does and the question is about it."""
    evidence = case.plan.evidence
    if evidence is not None and evidence.rental is not None and case.judgement and case.options.objective == "cost":
        yield evidence.rental


def _recomputed(case: Case) -> tuple[int, int]:
    """Millionths per hour of the devices used; and times the nanoseconds of the iteration."""
    assert case.judgement is not None
    prices = {device.name: round((device.price_per_hour or 0) * _MICROS) for device in case.problem.cluster.devices}
    price = sum(prices[name] for name in case.groups_on)
    return price, price * case.judgement.makespan_ns


RULES: Rules = {
    evidence_rental: "Plan again, or leave `evidence` out; figures of a plan are not written by hand.",
    evidence_rented: "Plan again, or leave `evidence` out; figures of a plan are not written by hand.",
    evidence_cost: "Plan again, or leave `evidence` out; figures of a plan are not written by hand.",
    evidence_cost_bound: "Plan again, or leave `evidence` out; figures of a plan are not written by hand.",
}

DEADLINE_RULES: Rules = {
    deadline_missed: "Raise `deadline_ns`, or plan again.",
}
