"""What a little more of a resource is worth: the question asked again with it, from the present plan on.

Every answer has two sides, both certified. *Worth at least*: a plan was found, and verified, that is so much faster.
*Worth at most*: the lower bound of the new question shows that no plan is more than so much faster. What further search
gains without the change is counted apart: the same effort is spent on the unchanged question first, every plan found
later is tried on it, too, and prices are relative to the best plan that needs no change.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planner.actions import Action
from planner.errors import PipeplanError
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import Timeline
from planner.verify import verify
from planner.what_if.cluster_changes import with_link_speed, with_memory, with_twins
from planner.what_if.profile_changes import with_faster_device, with_halved_microbatches
from profiles.cluster import Device

Kind = Literal["search", "memory", "link", "speed", "device", "microbatches"]
"""The resource that is varied."""

GIB = 2**30
_SMALL_MEMORY = 4 * GIB
"""Devices with less are offered a quarter of their memory instead of 1 GiB."""

_Replan = Callable[[Problem, Plan], Plan]
"""Plans a problem from a given plan on; its answer carries evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The problem with a little more of something."""

    kind: Kind
    subject: str
    """Of which device or link; empty: of all, or of none in particular."""
    text: str
    """As a phrase, e.g. `1 GiB more on gpu3`."""
    problem: Problem
    """The new problem."""
    start: Plan
    """The present plan as an answer to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowPrice:
    """Certified range of the time that one change saves."""

    kind: Kind
    """The resource that is varied."""
    subject: str
    """Of which device or link; empty: of all, or of none in particular."""
    text: str
    """The change as a phrase."""
    objective_ns: int | None
    """Of the best verified plan found with the change; None: none was found."""
    lower_bound_ns: int | None
    """No plan with the change is below."""
    worth_at_least: float | None
    """Part of the present objective that the plan found saves."""
    worth_at_most: float | None
    """Part of the present objective that no plan saves more than."""


def shadow_prices(
    problem: Problem,
    plan: Plan,
    *,
    timeline: Timeline,
    replan: _Replan,
    per_kind: int = 3,
    hear: Callable[[Question], None] | None = None,
) -> list[ShadowPrice]:
    """The prices of the resources that matter most; the first is that of further search alone.

    `per_kind` devices or links are asked about per kind: the fullest, the busiest. `hear` is told of every question
    before it is answered.
    """
    problem = problem.at_its_size()
    base = _Base(problem, plan, objective_ns=timeline.objective_ns(problem.options.objective))
    answers: list[tuple[Question, Plan | None]] = []
    for question in _ask(base, timeline=timeline, per_kind=per_kind):
        if hear is not None:
            hear(question)
        answer = _answer(question, replan)
        answers.append((question, answer))
        if answer is not None:
            base.try_out(answer)
    return [_price(question, answer, base=base) for question, answer in answers]


def count_questions(problem: Problem, plan: Plan, *, timeline: Timeline, per_kind: int = 3) -> int:
    """How many plans `shadow_prices` asks for."""
    return 1 + sum(1 for _ in make_questions(problem, plan, timeline=timeline, per_kind=per_kind))


class _Base:
    """The unchanged problem and the best plan known for it."""

    def __init__(self, problem: Problem, plan: Plan, *, objective_ns: int) -> None:
        self.problem, self.plan = problem, plan
        self.given_ns = self.best_ns = objective_ns

    def try_out(self, answer: Plan) -> None:
        """Take a plan in that was found for a changed problem, if it needs no change and is better."""
        plan = replace(answer, problem=self.problem.reference(), evidence=None)
        verdict = verify(self.problem, plan)
        if verdict.passed and verdict.timeline is not None:
            objective = verdict.timeline.objective_ns(self.problem.options.objective)
            if objective < self.best_ns:
                self.plan, self.best_ns = plan, objective


def _ask(base: _Base, *, timeline: Timeline, per_kind: int) -> Iterator[Question]:
    """The unchanged question, then the changed ones, each from the best plan known by then."""
    text = "further search, nothing changed"
    yield Question(kind="search", subject="", text=text, problem=base.problem, start=base.plan)
    yield from make_questions(base.problem, base.plan, timeline=timeline, per_kind=per_kind)


def _answer(question: Question, replan: _Replan) -> Plan | None:
    try:
        return replan(question.problem, question.start)
    except PipeplanError:
        return None


def _price(question: Question, answer: Plan | None, *, base: _Base) -> ShadowPrice:
    """Further search is held against the plan given, everything else against the best plan that needs no change."""
    evidence = None if answer is None else answer.evidence
    present, found, bound = base.best_ns, None, None
    if evidence is not None:
        found = evidence.objective_ns(question.problem.options.objective)
        bound = evidence.lower_bound_ns
    if question.kind == "search":
        present, found = base.given_ns, base.best_ns
    return ShadowPrice(
        kind=question.kind,
        subject=question.subject,
        text=question.text,
        objective_ns=found,
        lower_bound_ns=bound,
        worth_at_least=_saved(found, present),
        worth_at_most=_saved(bound, present),
    )


def _saved(nanoseconds: int | None, present: int) -> float | None:
    """The part of `present` that is saved; nothing if the change does not help (nobody must use it)."""
    return None if nanoseconds is None else max(0.0, (present - nanoseconds) / max(1, present))


def make_questions(problem: Problem, plan: Plan, *, timeline: Timeline, per_kind: int) -> Iterator[Question]:
    """Changes worth asking about, kind by kind."""
    cluster = problem.cluster
    shares = {name: peak / max(1, cluster.by_name[name].memory_bytes) for name, peak in timeline.peak_bytes.items()}
    fullest = sorted(shares, key=lambda name: -shares[name])
    work_ns = {name: sum(each.end_ns - each.start_ns for each in row) for name, row in timeline.actions.items()}
    busiest = sorted(work_ns, key=lambda name: -work_ns[name])
    busy_links = _busy_links(problem, plan, timeline=timeline)[:per_kind]
    for name in fullest[:per_kind]:
        yield _more_memory(problem, plan, names=(name,), subject=name)
    yield _more_memory(problem, plan, names=tuple(cluster.by_name), subject="")
    for number in busy_links:
        yield _faster_links(problem, plan, numbers=(number,))
    if len(cluster.links) > 1:
        yield _faster_links(problem, plan, numbers=tuple(range(len(cluster.links))))
    for name in busiest[:per_kind]:
        yield _faster_device(problem, plan, name=name)
    if problem.options.placement is None and (grown := _one_more_device(problem, plan, name=busiest[0])):
        yield grown
    if smaller := _more_microbatches(problem, plan):
        yield smaller


def _busy_links(problem: Problem, plan: Plan, *, timeline: Timeline) -> list[int]:
    """Positions of the links that carry something, the longest busy first (rings of synchronisation included)."""
    cluster, busy = problem.cluster, Counter[int]()
    for sent in timeline.transfers:
        for resource in cluster.route(sent.sender, sent.receiver, num_bytes=sent.num_bytes).links:
            busy[resource // 2] += sent.end_ns - sent.start_ns
    for sync in timeline.synchronisations:
        heads = [group[0] for group in plan.stages[sync.stage].replicas]
        for a, b in zip(heads, heads[1:] + heads[:1], strict=True):
            if a != b:
                for resource in cluster.route(a, b, num_bytes=0).links:
                    busy[resource // 2] += sync.end_ns - sync.start_ns
    return [number for number, _ in busy.most_common()]


def _more_memory(problem: Problem, plan: Plan, *, names: Sequence[str], subject: str) -> Question:
    devices = problem.cluster.devices
    is_small = any(device.memory_bytes < _SMALL_MEMORY for device in devices if device.name in names)

    def enlarge(device: Device) -> int:
        more = device.memory_bytes // 4 if is_small else GIB
        return device.memory_bytes + more if device.name in names else device.memory_bytes

    amount = "a quarter more memory" if is_small else "1 GiB more"
    text = f"{amount} on {subject or 'every device'}"
    return Question(kind="memory", subject=subject, text=text, problem=with_memory(problem, enlarge), start=plan)


def _faster_links(problem: Problem, plan: Plan, *, numbers: Sequence[int]) -> Question:
    links = problem.cluster.links
    subject = f"{links[numbers[0]].a}-{links[numbers[0]].b}" if len(numbers) == 1 else ""
    text = f"twice the link {subject}" if subject else "twice every link"
    changed = with_link_speed(problem, 2, numbers=frozenset(numbers))
    return Question(kind="link", subject=subject, text=text, problem=changed, start=plan)


def _faster_device(problem: Problem, plan: Plan, *, name: str) -> Question:
    changed = with_faster_device(problem, name)
    return Question(kind="speed", subject=name, text=f"10 % faster {name}", problem=changed, start=plan)


def _one_more_device(problem: Problem, plan: Plan, *, name: str) -> Question | None:
    try:
        changed = with_twins(problem, name)
    except ValueError:  # a device without links has no twin
        return None
    return Question(kind="device", subject=name, text=f"one more device like {name}", problem=changed, start=plan)


def _more_microbatches(problem: Problem, plan: Plan) -> Question | None:
    more = with_halved_microbatches(problem)
    if more is None:
        return None
    schedule = {device: tuple(_twice(order)) for device, order in plan.schedule.items()}
    return Question(
        kind="microbatches",
        subject="",
        text="twice the microbatches, half as large",
        problem=more,
        start=replace(plan, schedule=schedule),
    )


def _twice(order: Iterable[Action]) -> Iterator[Action]:
    """Every action on the two halves of its microbatch, one after the other."""
    for action in order:
        yield action._replace(microbatch=2 * action.microbatch)
        yield action._replace(microbatch=2 * action.microbatch + 1)
