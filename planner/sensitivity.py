"""What a little more of a resource is worth: the question asked again with it, from the present plan on.

Every answer has two sides, both certified. *Worth at least*: a plan was found, and verified, that is so much faster.
*Worth at most*: the lower bound of the new question shows that no plan is more than so much faster. What further search
gains without the change is counted apart: the same effort is spent on the unchanged question first, every plan found
later is tried on it, too, and prices are relative to the best plan that needs no change.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from planner.actions import Action
from planner.errors import PipeplanError
from planner.plan import Plan
from planner.problem import Problem
from planner.simulate import Timeline
from planner.verify import verify
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile, WidthBytes

Kind = Literal["search", "memory", "link", "speed", "device", "microbatches"]
"""What there is more of."""

GIB = 2**30
SMALL_MEMORY = 4 * GIB
"""Devices with less are offered a quarter of their memory instead of 1 GiB."""

Replan = Callable[[Problem, Plan], Plan]
"""Plans a problem from a given plan on; its answer carries evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The problem with a little more of something."""

    kind: Kind
    """Of what."""
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
    """What one change is worth."""

    kind: Kind
    """Of what there is more."""
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
    replan: Replan,
    per_kind: int = 3,
    hear: Callable[[Question], None] | None = None,
) -> list[ShadowPrice]:
    """The prices of the resources that matter most; the first is that of further search alone.

    `per_kind` devices or links are asked about per kind: the fullest, the busiest. `hear` is told of every question
    before it is answered.
    """
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


def _answer(question: Question, replan: Replan) -> Plan | None:
    try:
        return replan(question.problem, question.start)
    except PipeplanError:
        return None


def _price(question: Question, answer: Plan | None, *, base: _Base) -> ShadowPrice:
    """Further search is held against the plan given, everything else against the best plan that needs no change."""
    evidence = None if answer is None else answer.evidence
    present, found, bound = base.best_ns, None, None
    if evidence is not None:
        found = evidence.span_ns if question.problem.options.objective == "span" else evidence.makespan_ns
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
    fullest = sorted(timeline.peak_bytes, key=lambda name: -timeline.peak_bytes[name] / _memory(cluster, name))
    busiest = sorted(timeline.actions, key=lambda name: -_work_ns(timeline, name))
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


def _memory(cluster: Cluster, name: str) -> int:
    return max(1, cluster.by_name[name].memory_bytes)


def _work_ns(timeline: Timeline, name: str) -> int:
    return sum(timed.end_ns - timed.start_ns for timed in timeline.actions[name])


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


def _with_devices(problem: Problem, devices: Iterable[Device]) -> Problem:
    return replace(problem, cluster=replace(problem.cluster, devices=tuple(devices)))


def _more_memory(problem: Problem, plan: Plan, *, names: Sequence[str], subject: str) -> Question:
    devices = problem.cluster.devices
    is_small = any(device.memory_bytes < SMALL_MEMORY for device in devices if device.name in names)

    def enlarge(device: Device) -> Device:
        more = device.memory_bytes // 4 if is_small else GIB
        return replace(device, memory_bytes=device.memory_bytes + more) if device.name in names else device

    amount = "a quarter more memory" if is_small else "1 GiB more"
    return Question(
        kind="memory",
        subject=subject,
        text=f"{amount} on {subject or 'every device'}",
        problem=_with_devices(problem, map(enlarge, devices)),
        start=plan,
    )


def _faster_links(problem: Problem, plan: Plan, *, numbers: Sequence[int]) -> Question:
    cluster = problem.cluster
    links = tuple(
        replace(link, bandwidth_bytes_per_s=2 * link.bandwidth_bytes_per_s) if number in set(numbers) else link
        for number, link in enumerate(cluster.links)
    )
    subject = f"{cluster.links[numbers[0]].a}-{cluster.links[numbers[0]].b}" if len(numbers) == 1 else ""
    return Question(
        kind="link",
        subject=subject,
        text=f"twice the link {subject}" if subject else "twice every link",
        problem=replace(problem, cluster=replace(cluster, links=links)),
        start=plan,
    )


def _faster_device(problem: Problem, plan: Plan, *, name: str) -> Question:
    """A device type of its own whose times are 10/11 of the old one's, rounded up."""
    old = problem.cluster.by_name[name].type
    new = _fresh(f"{old}, 10 % faster", problem.cluster.device_types)
    layers = tuple(
        replace(layer, costs=layer.costs + tuple(_faster(cost, new) for cost in layer.costs if cost.device_type == old))
        for layer in problem.profile.layers
    )
    devices = (replace(device, type=new) if device.name == name else device for device in problem.cluster.devices)
    return Question(
        kind="speed",
        subject=name,
        text=f"10 % faster {name}",
        problem=_with_devices(replace(problem, profile=replace(problem.profile, layers=layers)), devices),
        start=plan,
    )


def _faster(cost: LayerCost, device_type: str) -> LayerCost:
    def shorten(nanoseconds: int) -> int:
        return -(-10 * nanoseconds // 11)

    return replace(_scale(cost, shorten), device_type=device_type)


def _scale(cost: LayerCost, change: Callable[[int], int]) -> LayerCost:
    """The cost with every time changed; a fused backward never becomes longer than its halves."""
    input_grad, weight_grad = change(cost.input_grad_ns), change(cost.weight_grad_ns)
    fused = None if cost.backward_ns is None else min(change(cost.backward_ns), input_grad + weight_grad)
    return replace(
        cost,
        forward_ns=change(cost.forward_ns),
        input_grad_ns=input_grad,
        weight_grad_ns=weight_grad,
        backward_ns=fused,
        recompute_ns=change(cost.recompute_ns),
    )


def _fresh(name: str, taken: Iterable[str]) -> str:
    """`name`, lengthened until it is not taken."""
    known = set(taken)
    while name in known:
        name += "'"
    return name


def _one_more_device(problem: Problem, plan: Plan, *, name: str) -> Question | None:
    """A twin of a device: the same host, the same links, and its fastest link once more between the two."""
    cluster = problem.cluster
    ends = {end for link in cluster.links for end in (link.a, link.b)}
    twin = _fresh(f"another {name}", {device.name for device in cluster.devices} | ends)
    own = [link for link in cluster.links if name in (link.a, link.b)]
    links = [replace(link, a=twin if link.a == name else link.a, b=twin if link.b == name else link.b) for link in own]
    if not own:
        return None
    fastest = max(own, key=lambda link: link.bandwidth_bytes_per_s)
    links.append(
        Link(a=name, b=twin, bandwidth_bytes_per_s=fastest.bandwidth_bytes_per_s, latency_ns=fastest.latency_ns)
    )
    device = replace(cluster.by_name[name], name=twin)
    grown = replace(cluster, devices=(*cluster.devices, device), links=(*cluster.links, *links))
    return Question(
        kind="device",
        subject=name,
        text=f"one more device like {name}",
        problem=replace(problem, cluster=grown),
        start=plan,
    )


def _more_microbatches(problem: Problem, plan: Plan) -> Question | None:
    """Twice as many of half the size: times as at that size, halved and rounded up where they scale; bytes halved.

    None where the halves are no whole samples, or were not measured.
    """
    profile = problem.profile
    is_measured = any(cost.microbatch_size is not None for layer in profile.layers for cost in layer.costs)
    if not profile.is_whole(Fraction(1, 2)):
        return None
    halved = replace(
        profile,
        microbatch_size=None if profile.microbatch_size is None else profile.microbatch_size // 2,
        layers=tuple(
            _halve_layer(layer, profile, is_measured=is_measured or not profile.scales_linearly)
            for layer in profile.layers
        ),
        edges=tuple(_halve_edge(edge) for edge in profile.edges),
    )
    try:
        more = replace(problem, profile=halved, num_microbatches=2 * problem.num_microbatches)
    except ValueError:
        return None
    schedule = {device: tuple(_twice(word)) for device, word in plan.schedule.items()}
    return Question(
        kind="microbatches",
        subject="",
        text="twice the microbatches, half as large",
        problem=more,
        start=replace(plan, schedule=schedule),
    )


def _half(number: int) -> int:
    return -(-number // 2)


def _halve_layer(layer: Layer, profile: ModelProfile, *, is_measured: bool) -> Layer:
    def at_size(cost: LayerCost) -> LayerCost:
        if is_measured and profile.microbatch_size is not None:
            return replace(cost, microbatch_size=cost.microbatch_size or profile.microbatch_size)
        return _scale(cost, _half)

    return replace(
        layer,
        costs=tuple(map(at_size, layer.costs)),
        stash_bytes=_half(layer.stash_bytes),
        weight_stash_bytes=_half(layer.weight_stash_bytes),
        checkpoint_bytes=_half(layer.checkpoint_bytes),
        wider=tuple(map(_halve_width, layer.wider)),
    )


def _halve_width(entry: WidthBytes) -> WidthBytes:
    return replace(
        entry,
        stash_bytes=_half(entry.stash_bytes),
        weight_stash_bytes=_half(entry.weight_stash_bytes),
        checkpoint_bytes=_half(entry.checkpoint_bytes),
    )


def _halve_edge(edge: Edge) -> Edge:
    gradient = edge.gradient_bytes
    return replace(edge, bytes=_half(edge.bytes), gradient_bytes=None if gradient is None else _half(gradient))


def _twice(word: Iterable[Action]) -> Iterator[Action]:
    """Every action on the two halves of its microbatch, one after the other."""
    for action in word:
        yield action._replace(microbatch=2 * action.microbatch)
        yield action._replace(microbatch=2 * action.microbatch + 1)
