"""Lists what is wrong with a plan: one rule, one function, one sentence; it never raises, whatever the plan contains.

Rules come in groups (`GROUPS`). A group that others rely on is a gate: if one of its rules finds something, the later
groups stay silent, because what they would say could not be trusted.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import networkx
import numpy
from numpy.typing import NDArray

from planner.actions import KINDS, Action
from planner.census import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, Census, take_census
from planner.costs import CostModel, overlaps
from planner.encoding import Words, encode, holders
from planner.equations import read_times
from planner.errors import PlanError
from planner.plan import DeviceGroup, Evidence, Plan, ProblemReference, Share, Stage
from planner.problem import Options, Problem
from planner.replay import Leg, MemoryUse, Replay, Seat, make_legs, make_seats, memory_use, replay
from planner.simulate import Timeline, simulate
from planner.split_placement import common, input_grad_ranges
from profiles.document import to_plain

MAX_VIOLATIONS_PER_RULE = 20
"""A rule that is broken more often reports no more than this."""

TOLERANCE = 1e-9
"""How far a stated fraction may lie from the recomputed one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One way in which a plan breaks a rule."""

    rule: str
    """The rule, a key of `RULES`."""
    subject: str
    """What breaks it: a stage, a layer, a device, an action or a figure."""
    expected: str
    """What the rule demands."""
    actual: str
    """What the plan has."""
    message: str
    """The whole matter in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Everything that is wrong with a plan, and its timeline where it has one."""

    violations: tuple[Violation, ...]
    """In the order of the rules; none if the plan is valid."""
    timeline: Timeline | None
    """The plan as played; None if it cannot be played."""
    subject: tuple[Problem, Plan] | None = field(default=None, repr=False, compare=False)
    """What was judged."""
    replayed: Replay | None = field(default=None, repr=False, compare=False)
    """The second evaluation."""

    def covers(self, problem: Problem, plan: Plan) -> bool:
        """Whether it has passed the very same stages and words as an answer to the very same problem."""
        if self.subject is None or not self.passed:
            return False
        known, judged = self.subject
        same = judged.stages is plan.stages and judged.schedule is plan.schedule and judged.problem is plan.problem
        return same and known is problem

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.violations

    def summary(self) -> dict[str, Any]:
        """The verdict as it stands in a plan's evidence."""
        return {"passed": self.passed, "violations": [to_plain(violation) for violation in self.violations]}


class Finding(NamedTuple):
    """What a rule reports; the rule's name is added to make it a `Violation`."""

    subject: str
    expected: object
    actual: object
    message: str


Findings = Iterator[Finding]


def verify(problem: Problem, plan: Plan, *, earlier: Verdict | None = None) -> Verdict:
    """Check `plan` against every rule, as an answer to `problem`.

    Where an `earlier` verdict has passed the same stages and words, only what the evidence states is checked anew.
    """
    case = _Case(problem, plan)
    groups = GROUPS
    if earlier is not None and earlier.covers(problem, plan) and earlier.timeline is not None:
        case.__dict__.update(played=earlier.timeline, replayed=earlier.replayed)
        groups = (GROUPS[0], GROUPS[-1])
    violations: list[Violation] = []
    for is_gate, rules in groups:
        found = [violation for rule in rules for violation in _apply(rule, case)]
        violations += found
        if is_gate and found:
            return Verdict(violations=tuple(violations), timeline=None)
    return Verdict(
        violations=tuple(violations), timeline=case.timeline, subject=(problem, plan), replayed=case.replayed
    )


def _apply(rule: Callable[["_Case"], Findings], case: "_Case") -> Iterator[Violation]:
    for finding in islice(rule(case), MAX_VIOLATIONS_PER_RULE):
        yield Violation(
            rule=_rule_name(rule),
            subject=finding.subject,
            expected=_shown(finding.expected),
            actual=_shown(finding.actual),
            message=finding.message,
        )


def _rule_name(rule: Callable[["_Case"], Findings]) -> str:
    return rule.__name__.strip("_").replace("_", "-")


def _shown(value: object, most: int = 400) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


class _Case:
    """A plan under examination, with what several rules need to know about it."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan, self.options = problem, plan, problem.options
        self.costs = CostModel(problem)

    @cached_property
    def stage_of(self) -> dict[str, int]:
        """The first stage that names each layer."""
        found: dict[str, int] = {}
        for number, stage in enumerate(self.plan.stages):
            for name in stage.layers:
                found.setdefault(name, number)
        return found

    @cached_property
    def groups_on(self) -> dict[str, dict[int, DeviceGroup]]:
        """For every device used: the stages it holds, each with the group it belongs to there."""
        found: dict[str, dict[int, DeviceGroup]] = {}
        for number, stage in enumerate(self.plan.stages):
            for group in stage.replicas:
                for device in group:
                    found.setdefault(device, {})[number] = group
        return found

    @cached_property
    def kinds_on(self) -> dict[str, dict[int, str]]:
        """For every device that works: the stages it works for, each with the kinds of actions it may run there."""
        found: dict[str, dict[int, str]] = {}
        for number, stage in enumerate(self.plan.stages):
            if stage.is_split:
                for part in self.costs.parts(stage):
                    found.setdefault(part.device, {})[number] = part.kinds
            else:
                for group in stage.replicas:
                    for device in group:
                        found.setdefault(device, {})[number] = "".join(KINDS)
        return found

    @cached_property
    def has_weight_grad(self) -> list[bool]:
        """Per stage: whether it has a W."""
        layers = self.problem.profile.by_name
        return [any(layers[name].is_trainable for name in stage.layers if name in layers) for stage in self.plan.stages]

    @cached_property
    def tally(self) -> dict[str, Counter[Action]]:
        """How often every action stands in every device's list; lists of devices without work left out."""
        return {device: Counter(word) for device, word in self.plan.schedule.items() if device in self.kinds_on}

    @cached_property
    def words(self) -> Words | None:
        """The schedule as arrays; None if there is something in it that is no action."""
        return encode(self.plan.schedule)

    @cached_property
    def census(self) -> Census | None:
        """Where every action stands; None if one is out of place, or if I or W of a stage are on other devices."""
        if self.words is None or any(stage.is_split for stage in self.plan.stages):
            return None
        sizes = {"num_stages": len(self.plan.stages), "num_microbatches": self.problem.num_microbatches}
        return take_census(self.words, self.kinds_on, **sizes)

    @cached_property
    def has_weights(self) -> NDArray[numpy.bool_]:
        """[rows of the census, 1] whether the stage has a W."""
        assert self.census is not None
        found: NDArray[numpy.bool_] = numpy.array(self.has_weight_grad, dtype=numpy.bool_)[self.census.stage]
        return found.reshape(-1, 1)

    @cached_property
    def seats(self) -> list[Seat]:
        """The replicas of all stages."""
        return make_seats(self.plan, costs=self.costs)

    @cached_property
    def legs(self) -> list[Leg]:
        """Everything that flows between them."""
        return make_legs(self.problem, self.seats, plan=self.plan, costs=self.costs)

    @cached_property
    def memory(self) -> dict[str, MemoryUse]:
        """Peak memory per device."""
        return memory_use(self.problem, self.plan, costs=self.costs, words=self.words)

    @cached_property
    def played(self) -> Timeline | PlanError:
        """The timeline, or why there is none."""
        try:
            return simulate(self.problem, self.plan, costs=self.costs, words=self.words)
        except PlanError as error:
            return error

    @cached_property
    def timeline(self) -> Timeline | None:
        """The timeline, if there is one."""
        return None if isinstance(self.played, PlanError) else self.played

    @cached_property
    def replayed(self) -> Replay | None:
        """The second evaluation of the timeline."""
        if self.timeline is None:
            return None
        return replay(self.problem, self.plan, timeline=self.timeline, costs=self.costs, words=self.words)

    @cached_property
    def objective_ns(self) -> int:
        """The recomputed figure that the problem minimises."""
        assert self.replayed is not None
        return self.replayed.span_ns if self.options.objective == "span" else self.replayed.makespan_ns


# The plan is made of what it should be made of.


def malformed(case: _Case) -> Findings:
    """Stages, groups, schedule and reference hold values of the right types."""
    plan = case.plan
    for text in _type_errors(case, plan):
        yield Finding(text, "a value of the right type", "another", f"{text} is not what the plan format asks for.")


def _type_errors(case: _Case, plan: Any) -> Iterator[str]:
    if not isinstance(plan.problem, ProblemReference) or not isinstance(plan.evidence, Evidence | None):
        yield "the problem or the evidence"
    if not isinstance(plan.stages, tuple) or not isinstance(plan.schedule, Mapping):
        yield "the list of stages or the schedule"
        return
    for number, stage in enumerate(plan.stages):
        if not isinstance(stage, Stage) or not _is_stage(stage):
            yield f"stage {number}"
    are_tuples = all(isinstance(word, tuple) for word in plan.schedule.values())
    are_actions = are_tuples and case.words is not None
    for device, word in plan.schedule.items():
        is_word = are_actions or (isinstance(word, tuple) and all(map(_is_action, word)))
        if not isinstance(device, str) or not is_word:
            yield f"the list of {_shown(device, 80)}"


def _is_stage(stage: Stage) -> bool:
    return (
        _is_names(stage.layers)
        and isinstance(stage.replicas, tuple)
        and all(_is_names(group) for group in stage.replicas)
        and isinstance(stage.recompute, bool)
        and all(map(_is_shares, (stage.input_grad_replicas, stage.weight_grad_replicas)))
    )


def _is_shares(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(share, Share)
        and _is_names(share.group)
        and type(share.numerator) is int
        and type(share.denominator) is int
        for share in value
    )


def _is_names(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(name, str) for name in value)


def _is_action(action: object) -> bool:
    return (
        type(action) is Action
        and type(action.stage) is int
        and type(action.microbatch) is int
        and isinstance(action.kind, str)
    )


# The plan answers this problem.


def profile_name(case: _Case) -> Findings:
    """The plan was made for a profile of this name."""
    yield from _same("the profile's name", expected=case.problem.profile.name, actual=case.plan.problem.profile)


def profile_hash(case: _Case) -> Findings:
    """The plan was made for this profile."""
    yield from _same(
        "the profile's content hash", expected=case.problem.profile_sha256, actual=case.plan.problem.profile_sha256
    )


def cluster_hash(case: _Case) -> Findings:
    """The plan was made for this cluster."""
    yield from _same(
        "the cluster's content hash", expected=case.problem.cluster_sha256, actual=case.plan.problem.cluster_sha256
    )


def microbatch_count(case: _Case) -> Findings:
    """The plan was made for this number of microbatches."""
    yield from _same(
        "the number of microbatches", expected=case.problem.num_microbatches, actual=case.plan.problem.num_microbatches
    )


def _same(subject: str, *, expected: object, actual: object) -> Findings:
    if type(actual) is not type(expected) or actual != expected:
        message = (
            f"The plan answers another problem: {subject} is {_shown(actual, 80)} instead of {_shown(expected, 80)}."
        )
        yield Finding(subject, expected, actual, message)


def options_differ(case: _Case) -> Findings:
    """The plan was made under these options; an option left out stands for its default."""
    given = case.plan.problem.options
    defaults = {entry.name: to_plain(getattr(Options(), entry.name)) for entry in fields(Options)}
    expected = {entry.name: to_plain(getattr(case.options, entry.name)) for entry in fields(Options)}
    actual = defaults | to_plain(dict(given)) if isinstance(given, Mapping) else {"options": given}
    for name in sorted(expected.keys() | actual.keys()):
        texts = [_json(values[name]) if name in values else "nothing" for values in (expected, actual)]
        if texts[0] != texts[1]:
            message = f"The plan answers another problem: option {_shown(name, 80)} is {_shown(texts[1], 80)} "
            yield Finding(f"option {name}", texts[0], texts[1], f"{message}instead of {_shown(texts[0], 80)}.")


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


# Every layer is in one stage, and the stages are in order.


def layer_unknown(case: _Case) -> Findings:
    """Every layer of a stage is a layer of the profile."""
    for name, number in case.stage_of.items():
        if name not in case.problem.profile.by_name:
            message = f"Stage {number} names the layer {_shown(name, 80)!r}, which the profile does not have."
            yield Finding(f"stage {number}", "layers of the profile", name, message)


def layer_repeated(case: _Case) -> Findings:
    """No layer is listed twice."""
    seen: dict[str, int] = {}
    for number, stage in enumerate(case.plan.stages):
        for name in stage.layers:
            if name in seen:
                message = f"Layer {_shown(name, 80)!r} is in stage {seen[name]} and again in stage {number}."
                yield Finding(f"layer {name}", f"stage {seen[name]} only", f"also stage {number}", message)
            seen.setdefault(name, number)


def layer_missing(case: _Case) -> Findings:
    """Every layer of the profile is in a stage."""
    for layer in case.problem.profile.layers:
        if layer.name not in case.stage_of:
            message = f"Layer {layer.name!r} is in no stage."
            yield Finding(f"layer {layer.name}", "one stage", "none", message)


def stage_empty(case: _Case) -> Findings:
    """Every stage has a layer."""
    for number, stage in enumerate(case.plan.stages):
        if not stage.layers:
            yield Finding(f"stage {number}", "at least one layer", "none", f"Stage {number} has no layers.")


def stage_order(case: _Case) -> Findings:
    """No edge leads from a later stage to an earlier one: then stages are convex and their graph has no cycle."""
    for edge in case.problem.profile.edges:
        a, b = case.stage_of.get(edge.producer, 0), case.stage_of.get(edge.consumer, 0)
        if edge.producer in case.stage_of and edge.consumer in case.stage_of and a > b:
            message = (
                f"Layer {edge.producer!r} in stage {a} feeds layer {edge.consumer!r} in the earlier stage {b}; "
                "stage numbers must follow the dependencies."
            )
            yield Finding(f"stage {a}", f"a number of at most {b}", a, message)


def layer_order(case: _Case) -> Findings:
    """Inside a stage, a layer is listed after the layers that feed it."""
    position = {name: index for stage in case.plan.stages for index, name in enumerate(stage.layers)}
    for edge in case.problem.profile.edges:
        a, b = edge.producer, edge.consumer
        inside = a in case.stage_of and b in case.stage_of and case.stage_of[a] == case.stage_of[b]
        if inside and position[a] > position[b]:
            message = f"Stage {case.stage_of[a]} lists layer {b!r} before layer {a!r}, which feeds it."
            yield Finding(f"stage {case.stage_of[a]}", f"{a}, {b}", f"{b}, {a}", message)


# Every stage sits on device groups that can run it.


def group_empty(case: _Case) -> Findings:
    """Every stage has a replica, and every replica a device."""
    for number, stage in enumerate(case.plan.stages):
        if not stage.replicas or not all(stage.replicas):
            message = f"Stage {number} has a replica without a device, or no replica at all."
            yield Finding(
                f"stage {number}", "at least one device per replica", list(map(list, stage.replicas)), message
            )


def device_unknown(case: _Case) -> Findings:
    """Every device of a stage is a device of the cluster."""
    for device, held in case.groups_on.items():
        if device not in case.problem.cluster.by_name:
            message = f"Stage {min(held)} is on device {_shown(device, 80)!r}, which the cluster does not have."
            yield Finding(f"stage {min(held)}", "devices of the cluster", device, message)


def device_repeated(case: _Case) -> Findings:
    """No stage names a device twice."""
    for number, stage in enumerate(case.plan.stages):
        for device, count in Counter(name for group in stage.replicas for name in group).items():
            if count > 1:
                message = f"Stage {number} names device {_shown(device, 80)!r} {count} times."
                yield Finding(f"stage {number}", f"{device} once", f"{count} times", message)


def group_mixed(case: _Case) -> Findings:
    """The devices of a group are of one type."""
    known = case.problem.cluster.by_name
    for number, stage in enumerate(case.plan.stages):
        for group in stage.replicas:
            types = sorted({known[device].type for device in group if device in known})
            if len(types) > 1:
                message = f"Stage {number} shares a replica among devices of different types: {', '.join(types)}."
                yield Finding(f"stage {number}", "devices of one type", ", ".join(types), message)


def width_uneven(case: _Case) -> Findings:
    """The replicas of a stage have equally many devices."""
    for number, stage in enumerate(case.plan.stages):
        widths = sorted({len(group) for group in stage.replicas if group})
        if len(widths) > 1:
            message = f"The replicas of stage {number} have different numbers of devices: {widths}."
            yield Finding(f"stage {number}", "one width", widths, message)


def width_unmeasured(case: _Case) -> Findings:
    """Every layer was measured on the type and the width of the groups it is on."""
    known, layers = case.problem.cluster.by_name, case.problem.profile.by_name
    for number, stage in enumerate(case.plan.stages):
        kinds = {(known[group[0]].type, len(group)) for group in stage.replicas if group and group[0] in known}
        for device_type, width in sorted(kinds):
            for name in stage.layers:
                if name in layers and not _is_measured(case, name, where=(device_type, width, len(stage.replicas))):
                    message = f"Layer {name!r} of stage {number} was not measured on {device_type!r} at width {width}."
                    yield Finding(f"stage {number}", f"costs and bytes of {name} at width {width}", "none", message)


def _is_measured(case: _Case, name: str, *, where: tuple[str, int, int]) -> bool:
    device_type, width, replicas = where
    has_bytes = case.problem.profile.by_name[name].bytes_at(width) is not None
    return has_bytes and case.costs.layer_work(name, device_type, width=width, replicas=replicas) is not None


# Split placement stays within what is supported.


def _split_stages(case: _Case) -> Iterator[tuple[int, Stage]]:
    for number, stage in enumerate(case.plan.stages):
        if stage.is_split:
            yield number, stage


def _share_lists(stage: Stage) -> list[tuple[str, tuple[Share, ...]]]:
    return [("I", stage.input_grad_replicas), ("W", stage.weight_grad_replicas)]


def split_replicated(case: _Case) -> Findings:
    """A stage with split placement has one replica of one device."""
    for number, stage in _split_stages(case):
        if len(stage.replicas) != 1 or len(stage.replicas[0]) != 1:
            message = f"Stage {number} has split placement, but it is on more than one device itself."
            yield Finding(f"stage {number}", "one replica of one device", list(map(list, stage.replicas)), message)


def split_recomputes(case: _Case) -> Findings:
    """A stage with split placement does not recompute."""
    for number, stage in _split_stages(case):
        if stage.recompute:
            message = f"Stage {number} has split placement and recomputes its activations, which is not supported."
            yield Finding(f"stage {number}", "no recomputation", "recomputation", message)


def share_wide(case: _Case) -> Findings:
    """A share of I or W is on one device."""
    for number, stage in _split_stages(case):
        for kind, shares in _share_lists(stage):
            for share in shares:
                if len(share.group) != 1:
                    message = f"Stage {number} gives {kind} to a group of {len(share.group)} devices instead of one."
                    yield Finding(f"stage {number}", "one device", list(share.group), message)


def share_device_unknown(case: _Case) -> Findings:
    """Every device named for I or W is a device of the cluster."""
    for number, stage in _split_stages(case):
        for kind, shares in _share_lists(stage):
            for device in (name for share in shares for name in share.group):
                if device not in case.problem.cluster.by_name:
                    message = f"Stage {number} gives {kind} to {_shown(device, 80)!r}, which the cluster does not have."
                    yield Finding(f"stage {number}", "devices of the cluster", device, message)


def share_count(case: _Case) -> Findings:
    """I is cut into two shares at most, W into none."""
    for number, stage in _split_stages(case):
        for (kind, shares), most in zip(_share_lists(stage), (2, 1), strict=True):
            if len(shares) > most:
                message = f"Stage {number} cuts {kind} into {len(shares)} shares, above {most}."
                yield Finding(f"stage {number}", f"at most {most}", len(shares), message)


def share_sum(case: _Case) -> Findings:
    """The shares of I, and of W, are positive and add up to 1."""
    for number, stage in _split_stages(case):
        for kind, shares in _share_lists(stage):
            if shares and not _is_whole(shares):
                texts = [f"{share.numerator}/{share.denominator}" for share in shares]
                message = f"The shares of {kind} of stage {number}, {_shown(', '.join(texts), 80)}, do not add up to 1."
                yield Finding(f"stage {number}", "positive shares of 1 in all", ", ".join(texts), message)


def _is_whole(shares: tuple[Share, ...]) -> bool:
    are_positive = all(share.numerator > 0 and share.denominator > 0 for share in shares)
    return are_positive and sum(Fraction(share.numerator, share.denominator) for share in shares) == 1


def share_repeated(case: _Case) -> Findings:
    """The shares of a list are on different devices."""
    for number, stage in _split_stages(case):
        for kind, shares in _share_lists(stage):
            for group, count in Counter(share.group for share in shares).items():
                if count > 1:
                    message = f"Stage {number} names {', '.join(group)} {count} times for its {kind}."
                    yield Finding(f"stage {number}", f"{', '.join(group)} once", f"{count} times", message)


def share_needless(case: _Case) -> Findings:
    """A device that alone runs I or W is not the owner: that is said by naming none."""
    for number, stage in _split_stages(case):
        for kind, shares in _share_lists(stage):
            if len(shares) == 1 and shares[0].group in stage.replicas:
                message = f"Stage {number} names its own device for {kind}; name none instead."
                yield Finding(f"stage {number}", "another device, or none", list(shares[0].group), message)


def weight_share_foreign(case: _Case) -> Findings:
    """A stage without trainable weights names no device for W."""
    for number, stage in _split_stages(case):
        if stage.weight_grad_replicas and not case.has_weight_grad[number]:
            devices = [list(share.group) for share in stage.weight_grad_replicas]
            message = f"Stage {number} names a device for W, but it has no weights to train."
            yield Finding(f"stage {number}", "no device for W", devices, message)


# The plan does only what the options allow.


def split_placement_forbidden(case: _Case) -> Findings:
    """Stages name other devices for I or W only if `split_placement` allows it."""
    for number, _ in _split_stages(case) if not case.options.split_placement else ():
        message = f"Stage {number} places I or W on other devices, which split_placement = false forbids."
        yield Finding(f"stage {number}", "I and W on its own device", "other devices", message)


def width_limit(case: _Case) -> Findings:
    """No group has more devices than `max_width`."""
    for number, stage in enumerate(case.plan.stages):
        width = max(map(len, stage.replicas))
        if width > case.options.max_width:
            message = f"Stage {number} has groups of {width} devices, above max_width = {case.options.max_width}."
            yield Finding(f"stage {number}", f"at most {case.options.max_width}", width, message)


def stages_per_device(case: _Case) -> Findings:
    """No device holds more stages than `max_stages_per_device`."""
    limit = case.options.max_stages_per_device
    for device, held in case.groups_on.items():
        if len(held) > limit:
            message = f"Device {device} holds {len(held)} stages, above max_stages_per_device = {limit}."
            yield Finding(f"device {device}", f"at most {limit}", len(held), message)


def replica_limit(case: _Case) -> Findings:
    """No stage has more replicas than `max_replicas`."""
    limit = case.problem.max_replicas
    for number, stage in enumerate(case.plan.stages):
        if len(stage.replicas) > limit:
            message = f"Stage {number} has {len(stage.replicas)} replicas, above max_replicas = {limit}."
            yield Finding(f"stage {number}", f"at most {limit}", len(stage.replicas), message)


def replicas_uneven(case: _Case) -> Findings:
    """Without `uneven_replication` all replicated stages have the same number of replicas."""
    counts = sorted({len(stage.replicas) for stage in case.plan.stages if len(stage.replicas) > 1})
    if len(counts) > 1 and not case.options.uneven_replication:
        message = f"Stages have different numbers of replicas ({counts}), which uneven_replication = false forbids."
        yield Finding("the stages", "one number of replicas", counts, message)


def edge_skips(case: _Case) -> Findings:
    """Without `skip_edges` tensors flow between neighbouring stages only."""
    if not case.options.skip_edges:
        for a, b in case.costs.traffic(case.plan.stages):
            if b != a + 1:
                message = f"Stage {a} feeds stage {b}, which is not the next one, as skip_edges = false demands."
                yield Finding(f"stage {a}", f"stage {a + 1}", f"stage {b}", message)


def recompute_forbidden(case: _Case) -> Findings:
    """Stages recompute only if `recompute` allows it."""
    for number, stage in enumerate(case.plan.stages):
        if stage.recompute and not case.options.recompute:
            message = f"Stage {number} recomputes its activations, which recompute = false forbids."
            yield Finding(f"stage {number}", "no recomputation", "recomputation", message)


def split_forbidden(case: _Case) -> Findings:
    """Without `split_backward` a stage that has a W runs B only."""
    if (census := case.census) is not None:
        parts = census.has(INPUT_GRAD) | census.has(WEIGHT_GRAD)
        if not (parts & case.has_weights).any():
            return
    if not case.options.split_backward:
        splits = {number for number, has_weight_grad in enumerate(case.has_weight_grad) if has_weight_grad}
        for device, word in case.plan.schedule.items():
            for action in word:
                if action.kind in ("I", "W") and action.stage in splits:
                    message = f"{device} runs {action}, but split_backward = false: the executor has only B."
                    yield Finding(f"{device}: {action}", "B", action.kind, message)


def device_idle(case: _Case) -> Findings:
    """Without `idle_devices` every device of the cluster works for a stage."""
    if not case.options.idle_devices:
        for device in case.problem.cluster.by_name:
            if device not in case.kinds_on:
                message = f"Device {device} holds no stage, which idle_devices = false forbids."
                yield Finding(f"device {device}", "a stage", "none", message)


def layer_pinned(case: _Case) -> Findings:
    """Every replica of a pinned layer's stage includes the device that the layer is pinned to."""
    for pin in case.options.pinned:
        number = case.stage_of[pin.layer]
        replicas = case.plan.stages[number].replicas
        if not all(pin.device in group for group in replicas):
            message = f"Layer {pin.layer!r} is pinned to {pin.device}, but its stage {number} is elsewhere."
            yield Finding(f"layer {pin.layer}", pin.device, list(map(list, replicas)), message)


def partition_given(case: _Case) -> Findings:
    """The stages are those of `partition`, if it is given."""
    given = case.options.partition
    if given is not None:
        actual = [sorted(stage.layers) for stage in case.plan.stages]
        if actual != (expected := [sorted(names) for names in given]):
            message = "The stages are not those that the option `partition` gives."
            yield Finding("the stages", expected, actual, message)


def placement_given(case: _Case) -> Findings:
    """The device groups are those of `placement`, if it is given."""
    given = case.options.placement
    if given is not None:
        actual = tuple(stage.replicas for stage in case.plan.stages)
        if actual != given:
            message = "The device groups are not those that the option `placement` gives."
            yield Finding("the stages", given, actual, message)


# Every device has its list, and the list has exactly its actions.


def list_missing(case: _Case) -> Findings:
    """Every device that works for a stage has a list of actions."""
    for device, held in case.kinds_on.items():
        if device not in case.plan.schedule:
            message = f"Device {device} works for stage {min(held)}, but the schedule has no list for it."
            yield Finding(f"device {device}", "a list of actions", "none", message)


def list_foreign(case: _Case) -> Findings:
    """Only devices that work for a stage have a list."""
    for device in case.plan.schedule:
        if device not in case.kinds_on:
            message = f"The schedule has a list for {_shown(device, 80)!r}, which works for no stage."
            yield Finding(f"device {_shown(device, 80)}", "no list", "a list", message)


def action_foreign(case: _Case) -> Findings:
    """A device runs only actions of stages it works for, of known kinds and for microbatches of the problem."""
    if case.census is not None:
        return  # there is none without all actions in place
    for device, counts in case.tally.items():
        held, total = case.kinds_on[device], case.problem.num_microbatches
        for action in counts:
            if action.stage not in held or not 0 <= action.microbatch < total or action.kind not in KINDS:
                expected = f"stages {sorted(held)}, microbatches 0 to {total - 1}"
                message = f"{device} cannot run {action}: it has {expected}."
                yield Finding(f"{device}: {action}", expected, str(action), message)


def action_misplaced(case: _Case) -> Findings:
    """With split placement a device runs only the kinds of actions that the stage gives it."""
    if case.census is not None:
        return  # there is none with split placement
    for device, counts in case.tally.items():
        for action in counts:
            kinds = case.kinds_on[device].get(action.stage, "FIW")
            if action.kind in ("F", "I", "W") and action.kind not in kinds:
                message = f"{device} runs {action}, but of stage {action.stage} it has only {', '.join(kinds)}."
                yield Finding(f"{device}: {action}", ", ".join(kinds), action.kind, message)


def split_fused(case: _Case) -> Findings:
    """A stage with split placement runs no B."""
    if case.census is not None:
        return  # there is none with split placement
    for device, counts in case.tally.items():
        for action in counts:
            if action.kind == "B" and action.kind not in case.kinds_on[device].get(action.stage, "B"):
                message = f"{device} runs {action}, but I and W of stage {action.stage} are placed apart."
                yield Finding(f"{device}: {action}", "I and W", "B", message)


def action_repeated(case: _Case) -> Findings:
    """No device runs an action twice."""
    if case.census is not None and not case.census.is_repeated:
        return
    for device, counts in case.tally.items():
        if len(counts) < len(case.plan.schedule[device]):
            for action, count in counts.items():
                if count > 1:
                    message = f"{device} runs {action} {count} times."
                    yield Finding(f"{device}: {action}", "once", f"{count} times", message)


def action_missing(case: _Case) -> Findings:
    """A device runs, for every stage it works for and every microbatch, its F, and B, or I with W if there is a W."""
    if (census := case.census) is not None and set(case.kinds_on) <= set(case.plan.schedule):
        is_split = census.has(INPUT_GRAD) & (census.has(WEIGHT_GRAD) | ~case.has_weights)
        if (census.has(FORWARD) & (is_split | (census.has(BACKWARD) & case.has_weights))).all():
            return
    for device, stage, counts in _lists(case):
        kinds = case.kinds_on[device][stage]
        for microbatch in range(case.problem.num_microbatches):
            needed = ["F"]
            if not case.has_weight_grad[stage]:
                needed += "I"
            elif ("B", stage, microbatch) not in counts:
                needed += "IW"
            for kind in needed:
                if kind in kinds and (kind, stage, microbatch) not in counts:
                    text = f"{stage}{kind}{microbatch}"
                    yield Finding(f"{device}: {text}", "once", "never", f"{device} never runs {text}.")


def _lists(case: _Case) -> Iterator[tuple[str, int, Counter[Action]]]:
    """Every device that has a list, with every stage it holds and the count of its actions."""
    for device, counts in case.tally.items():
        for stage in case.kinds_on[device]:
            yield device, stage, counts


def backward_mixed(case: _Case) -> Findings:
    """Where a device runs B, it runs neither I nor W for the same microbatch."""
    if (census := case.census) is not None:
        parts = census.has(INPUT_GRAD) | census.has(WEIGHT_GRAD)
        if not (census.has(BACKWARD) & parts).any():
            return
    for device, counts in case.tally.items():
        for kind, stage, microbatch in counts:
            if kind == "B" and (("I", stage, microbatch) in counts or ("W", stage, microbatch) in counts):
                message = f"{device} runs {stage}B{microbatch} and again its part I or W on its own."
                yield Finding(f"{device}: {stage}B{microbatch}", "B, or I and W", "both", message)


def weight_grad_foreign(case: _Case) -> Findings:
    """A stage without trainable weights has neither W nor B."""
    if (census := case.census) is not None:
        whole = census.has(WEIGHT_GRAD) | census.has(BACKWARD)
        if not (whole & ~case.has_weights).any():
            return
    for device, counts in case.tally.items():
        for action in counts:
            is_held = action.stage in case.groups_on.get(device, ())
            if action.kind in ("W", "B") and is_held and not case.has_weight_grad[action.stage]:
                message = (
                    f"{device} runs {action}, but stage {action.stage} has no weights to train: it has only F and I."
                )
                yield Finding(f"{device}: {action}", "F and I only", action.kind, message)


def group_order(case: _Case) -> Findings:
    """The devices of a group run the actions of its stage in the same order."""
    for number, stage in enumerate(case.plan.stages):
        for group in (group for group in stage.replicas if len(group) > 1):
            words = {d: [a for a in case.plan.schedule.get(d, ()) if a.stage == number] for d in group}
            first = words[group[0]]
            for device, word in words.items():
                if word != first and sorted(word) == sorted(first):
                    index = next(i for i, action in enumerate(word) if action != first[i])
                    message = (
                        f"{group[0]} and {device} share stage {number}, but {group[0]} runs {first[index]} "
                        f"where {device} runs {word[index]}."
                    )
                    yield Finding(f"stage {number}", str(first[index]), str(word[index]), message)


# The orders can be run to their end.


def forward_first(case: _Case) -> Findings:
    """F of a microbatch stands before its I or B."""
    census = case.census
    if census is not None and census.precedes(FORWARD, INPUT_GRAD) and census.precedes(FORWARD, BACKWARD):
        return
    yield from _precedes(case, "F", then="IB")


def input_grad_first(case: _Case) -> Findings:
    """I of a microbatch stands before its W."""
    if case.census is not None and case.census.precedes(INPUT_GRAD, WEIGHT_GRAD):
        return
    yield from _precedes(case, "I", then="W")


def _precedes(case: _Case, first: str, *, then: str) -> Findings:
    for device, word in case.plan.schedule.items():
        seen = set()
        for kind, stage, microbatch in word:
            if kind == first:
                seen.add((stage, microbatch))
            elif kind in then and (stage, microbatch) not in seen and first in case.kinds_on[device][stage]:
                text, needed = f"{stage}{kind}{microbatch}", f"{stage}{first}{microbatch}"
                message = f"{device} runs {text} before {needed}, which it needs."
                yield Finding(f"{device}: {text}", f"after {needed}", f"before {needed}", message)


def deadlock(case: _Case) -> Findings:
    """Nothing waits for itself in the end."""
    if _is_numbered(case):
        return
    game = _Untimed(case)
    cycle = game.cycle()
    if cycle:
        shown = cycle if len(cycle) <= 12 else [*cycle[:6], "...", *cycle[-5:]]
        message = "The schedule deadlocks: " + ", which waits for ".join(shown) + "."
        yield Finding(cycle[0], "an order without cycles", " <- ".join(shown), message)


def _is_numbered(case: _Case) -> bool:
    """Whether the claimed starts number the actions so that every one comes after those it waits for.

    Whoever has numbered them: where such a numbering exists, nothing waits for itself.
    """
    if case.words is None or case.census is None or any(len(seat.group) > 1 for seat in case.seats):
        return False
    times = None if case.timeline is None else read_times(case.timeline, case.words)
    if times is None:
        return False
    begins = numpy.ones(len(times.start), dtype=numpy.bool_)
    begins[case.words.first[:-1][case.words.first[:-1] < len(begins)]] = False
    if (numpy.diff(times.start, prepend=0) <= 0)[begins].any():
        return False
    at = {(seat.group[0], seat.stage): number for number, seat in enumerate(case.seats)}
    holder = holders(case.words, at, num_stages=len(case.plan.stages))
    if holder is None:
        return False
    start = numpy.full((len(case.seats), 3, case.problem.num_microbatches), -1, dtype=numpy.int64)
    start[holder, case.words.place, case.words.microbatch] = times.start
    return all(
        bool((start[leg.sender, int(leg.is_backward)] < start[leg.receiver, int(leg.is_backward)]).all())
        for leg in case.legs
    )


_PLACES = {"F": 0, "I": 1, "B": 1, "W": 2}
"""Which of the three slots of a seat an action is."""


class _Untimed:
    """The schedule played without a clock: it shows whether everything can be run, and if not, why."""

    def __init__(self, case: _Case) -> None:
        self.words: Mapping[str, tuple[Action, ...]] = case.plan.schedule
        self.seats = case.seats
        self.seat_of = {(device, seat.stage): n for n, seat in enumerate(self.seats) for device in seat.group}
        self.position = dict.fromkeys(self.words, 0)
        # Slot 3 n is F of seat n, slot 3 n + 1 its I or B, slot 3 n + 2 its W, if that waits for an I elsewhere.
        self.sends: list[list[int]] = [[] for _ in range(3 * len(self.seats))]
        self.sources: list[list[int]] = [[] for _ in range(3 * len(self.seats))]
        for leg in case.legs:
            is_within = self.seats[leg.sender].stage == self.seats[leg.receiver].stage
            ends = 3 * leg.sender + leg.is_backward, 3 * leg.receiver + leg.is_backward + is_within
            self.sends[ends[0]].append(ends[1])
            self.sources[ends[1]].append(ends[0])
        self.missing = [[len(sources)] * case.problem.num_microbatches for sources in self.sources]
        self.waiting = list(self.words)

    def cycle(self) -> list[str]:
        """Actions that wait for each other, in a circle; empty if everything can be run."""
        while self.waiting:
            self.run(self.waiting.pop())
        stuck = [device for device, word in self.words.items() if self.position[device] < len(word)]
        chain: list[str] = []
        seen: dict[str, int] = {}
        device = stuck[0] if stuck else ""
        while stuck and device not in seen:
            seen[device] = len(chain)
            chain.append(f"{self.head(device)} on {device}")
            needed, device = self.blocker(device)
            if needed != self.head(device):
                chain.append(f"{needed} on {device}")
        return [*chain[seen[device] :], chain[seen[device]]] if stuck else []

    def head(self, device: str) -> Action:
        """The next action of a device."""
        return self.words[device][self.position[device]]

    def run(self, device: str) -> None:
        """Run the actions of a device until one has to wait."""
        word, at = self.words[device], self.position[device]
        while at < len(word):
            kind, stage, microbatch = word[at]
            number = self.seat_of[device, stage]
            slot = 3 * number + _PLACES[kind]
            group = self.seats[number].group
            if self.missing[slot][microbatch]:
                break
            if len(group) > 1 and not self.take_along(group, device):
                break
            at += 1
            self.position[device] = at
            if kind != "W":
                self.send(slot, microbatch)

    def take_along(self, group: DeviceGroup, device: str) -> bool:
        """Move the other devices of the group past the action at hand, if all have come to it."""
        others = [other for other in group if other != device]
        action = self.head(device)
        if any(self.words[other][self.position[other] : self.position[other] + 1] != (action,) for other in others):
            return False
        for other in others:
            self.position[other] += 1
        self.waiting += others
        return True

    def send(self, slot: int, microbatch: int) -> None:
        """Deliver what an action has made; who has got everything may go on."""
        for target in self.sends[slot]:
            self.missing[target][microbatch] -= 1
            if self.missing[target][microbatch] == 0:
                self.waiting += self.seats[target // 3].group

    def blocker(self, device: str) -> tuple[Action, str]:
        """An action that the next action of a stuck device waits for, and the device that has yet to run it."""
        action = self.head(device)
        number = self.seat_of[device, action.stage]
        for other in self.seats[number].group:
            if self.head(other) != action:
                return action, other
        for slot in self.sources[3 * number + _PLACES[action.kind]]:
            seat = self.seats[slot // 3]
            other = seat.group[0]
            for kind, stage, microbatch in self.words[other][self.position[other] :]:
                is_source = (kind in "IB") if slot % 3 else (kind == "F")
                if is_source and (stage, microbatch) == (seat.stage, action.microbatch):
                    return Action(kind, stage, microbatch), other
        raise PlanError(f"{action} on {device} waits for nothing, yet it does not run")


# It fits, and its times are right.


def route_missing(case: _Case) -> Findings:
    """Every transfer and every ring of replicas has a route."""
    part_of = {}
    for number, part in enumerate(networkx.connected_components(_link_graph(case))):
        part_of.update(dict.fromkeys(part, number))
    for source, target in dict.fromkeys(_neighbours(case)):
        if part_of.get(source, source) != part_of.get(target, target):
            message = f"Devices {source} and {target} have to exchange data, but no links connect them."
            yield Finding(f"{source} to {target}", "a route", "none", message)


def _link_graph(case: _Case) -> "networkx.Graph[str]":
    graph: networkx.Graph[str] = networkx.Graph()
    graph.add_edges_from((link.a, link.b) for link in case.problem.cluster.links)
    return graph


def _neighbours(case: _Case) -> Iterator[tuple[str, str]]:
    """Pairs of devices that exchange something."""
    stages = case.plan.stages
    for a, b in case.costs.traffic(stages):
        for i, j, *_ in overlaps(len(stages[a].replicas), len(stages[b].replicas)):
            sender, receiver = stages[a].replicas[i][0], stages[b].replicas[j][0]
            if sender != receiver:
                yield sender, receiver
        if stages[a].is_split or stages[b].is_split:
            yield from _gradient_neighbours(case, (stages[a], stages[b]))
    for _, stage in _split_stages(case):
        owner, *others = case.costs.parts(stage)
        yield from ((owner.device, part.device) for part in others)
        yield from ((a.device, b.device) for a in others for b in others if a.share and "W" in b.kinds and a != b)
    for stage in stages:
        heads = [group[0] for group in stage.replicas]
        if len(heads) > 1:
            yield from zip(heads, [*heads[1:], heads[0]], strict=True)


def _gradient_neighbours(case: _Case, ends: tuple[Stage, Stage]) -> Iterator[tuple[str, str]]:
    """Pairs of devices that exchange gradients, where one of the stages has split placement."""
    heads = [
        [part.device for part in case.costs.parts(stage)] if stage.is_split else [group[0] for group in stage.replicas]
        for stage in ends
    ]
    for taker in input_grad_ranges(ends[0]):
        for maker in input_grad_ranges(ends[1]):
            pair = heads[1][maker.number], heads[0][taker.number]
            if common(taker, maker) and pair[0] != pair[1]:
                yield pair


def memory_exceeded(case: _Case) -> Findings:
    """No device ever holds more than its memory."""
    for device, use in case.memory.items():
        limit = case.problem.cluster.by_name[device].memory_bytes
        if use.peak_bytes > limit:
            when = f"first during {use.first_over}" if use.first_over else "before its first action"
            message = f"Device {device} holds up to {use.peak_bytes} bytes, above its {limit}, {when}."
            yield Finding(f"device {device}", f"at most {limit}", use.peak_bytes, message)


def timeline_broken(case: _Case) -> Findings:
    """The simulator plays the plan, and its timeline obeys every equation of the second evaluation."""
    if isinstance(case.played, PlanError):
        yield Finding("the timeline", "a timeline", "none", f"The simulator cannot play the plan: {case.played}.")
    elif case.replayed is not None:
        for text in case.replayed.inconsistencies:
            message = f"The simulator and the second evaluation disagree: {text}."
            yield Finding("the timeline", "no inconsistency", text, message)


def span_differs(case: _Case) -> Findings:
    """The simulator's span is the one recomputed."""
    assert case.timeline is not None
    assert case.replayed is not None
    if case.timeline.span_ns != case.replayed.span_ns:
        yield from _evaluations("span", expected=case.replayed.span_ns, actual=case.timeline.span_ns)


def peaks_differ(case: _Case) -> Findings:
    """The simulator's peaks of memory are those recomputed."""
    assert case.timeline is not None
    assert case.replayed is not None
    if case.timeline.peak_bytes != case.replayed.peak_bytes:
        yield from _evaluations("peak_bytes", expected=case.replayed.peak_bytes, actual=case.timeline.peak_bytes)


def _evaluations(figure: str, *, expected: object, actual: object) -> Findings:
    message = f"The simulator and the second evaluation disagree about {figure}: {_shown(actual)}, {_shown(expected)}."
    yield Finding(figure, expected, actual, message)


# What the evidence states is true.


def evidence_makespan(case: _Case) -> Findings:
    """The stated makespan is the one recomputed."""
    if case.replayed and (evidence := case.plan.evidence):
        yield from _stated("makespan_ns", expected=case.replayed.makespan_ns, actual=evidence.makespan_ns)


def evidence_span(case: _Case) -> Findings:
    """The stated span is the one recomputed."""
    if case.replayed and (evidence := case.plan.evidence):
        yield from _stated("span_ns", expected=case.replayed.span_ns, actual=evidence.span_ns)


def evidence_peaks(case: _Case) -> Findings:
    """The stated peaks of memory are those recomputed."""
    if case.replayed and (evidence := case.plan.evidence):
        stated = dict(evidence.peak_bytes) if isinstance(evidence.peak_bytes, Mapping) else evidence.peak_bytes
        yield from _stated("peak_bytes", expected=dict(case.replayed.peak_bytes), actual=stated)


def evidence_bubble(case: _Case) -> Findings:
    """The stated bubble is the one recomputed, to 1e-9."""
    if case.replayed and (evidence := case.plan.evidence) and not _is_near(evidence.bubble, case.replayed.bubble):
        yield from _stated("bubble", expected=case.replayed.bubble, actual=evidence.bubble)


def evidence_lower_bound(case: _Case) -> Findings:
    """The lower bound is neither negative nor above the objective."""
    if evidence := case.plan.evidence:
        yield from _bounded(case, "lower_bound_ns", value=evidence.lower_bound_ns)


def evidence_schedule_bound(case: _Case) -> Findings:
    """The schedule bound, if there is one, is neither negative nor above the objective."""
    evidence = case.plan.evidence
    if evidence and evidence.schedule_bound_ns is not None:
        yield from _bounded(case, "schedule_bound_ns", value=evidence.schedule_bound_ns)


def evidence_gap(case: _Case) -> Findings:
    """The gap is (objective - lower bound) / objective, to 1e-9."""
    evidence, objective = case.plan.evidence, case.objective_ns
    if evidence and type(evidence.lower_bound_ns) is int and 0 <= evidence.lower_bound_ns <= objective:
        gap = (objective - evidence.lower_bound_ns) / objective if objective else 0.0
        if not _is_near(evidence.gap, gap):
            yield from _stated("gap", expected=gap, actual=evidence.gap)


def evidence_status(case: _Case) -> Findings:
    """The status is `feasible`, or `optimal` where the lower bound reaches the objective."""
    if evidence := case.plan.evidence:
        is_optimal = evidence.lower_bound_ns == case.objective_ns
        allowed = ("optimal", "feasible") if is_optimal else ("feasible",)
        if evidence.solution_status not in allowed:
            yield from _stated("solution_status", expected=" or ".join(allowed), actual=evidence.solution_status)


def _stated(figure: str, *, expected: object, actual: object) -> Findings:
    if isinstance(actual, bool) or actual != expected:
        message = f"The evidence states {figure} = {_shown(actual, 80)}, but it is {_shown(expected, 80)}."
        yield Finding(f"evidence {figure}", expected, actual, message)


def _bounded(case: _Case, figure: str, *, value: object) -> Findings:
    if type(value) is not int or not 0 <= value <= case.objective_ns:
        message = f"The evidence states {figure} = {_shown(value, 80)}, but the plan achieves {case.objective_ns} ns."
        yield Finding(f"evidence {figure}", f"from 0 to {case.objective_ns}", value, message)


def _is_near(stated: object, expected: float) -> bool:
    is_number = isinstance(stated, int | float) and not isinstance(stated, bool)
    return is_number and expected - TOLERANCE <= stated <= expected + TOLERANCE  # type: ignore[operator]


Rule = Callable[[_Case], Findings]

GROUPS: tuple[tuple[bool, tuple[Rule, ...]], ...] = (
    (True, (malformed,)),
    (False, (profile_name, profile_hash, cluster_hash, microbatch_count, options_differ)),
    (
        True,
        (
            *(layer_unknown, layer_repeated, layer_missing, stage_empty, stage_order, layer_order),
            *(group_empty, device_unknown, device_repeated, group_mixed, width_uneven, width_unmeasured),
            *(split_replicated, split_recomputes, share_wide, share_device_unknown, share_count, share_sum),
            *(share_repeated, share_needless, weight_share_foreign),
        ),
    ),
    (
        False,
        (
            *(width_limit, stages_per_device, replica_limit, replicas_uneven, edge_skips, recompute_forbidden),
            *(split_forbidden, split_placement_forbidden, device_idle, layer_pinned, partition_given, placement_given),
        ),
    ),
    (True, (route_missing,)),
    (
        True,
        (
            *(list_missing, list_foreign, action_foreign, action_misplaced, split_fused, action_repeated),
            *(action_missing, backward_mixed, weight_grad_foreign, group_order),
        ),
    ),
    (True, (forward_first, input_grad_first)),
    (True, (deadlock,)),
    (False, (memory_exceeded,)),
    (True, (timeline_broken,)),
    (False, (span_differs, peaks_differ)),
    (
        False,
        (
            *(evidence_makespan, evidence_span, evidence_peaks, evidence_bubble),
            *(evidence_lower_bound, evidence_schedule_bound, evidence_gap, evidence_status),
        ),
    ),
)
"""The rules in the order in which they are applied; the flag says whether a group is a gate."""

RULES: dict[str, str] = {_rule_name(rule): (rule.__doc__ or "").strip() for _, rules in GROUPS for rule in rules}
"""What every rule demands, by its name."""
