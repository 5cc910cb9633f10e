"""What every rule is given, a plan under examination, and what it reports."""

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from planner.actions import KINDS, Action
from planner.census import Census, take_census
from planner.costs import CostModel
from planner.encoding import Words, encode
from planner.errors import PlanError
from planner.plan import DeviceGroup, Plan, Stage
from planner.problem import Problem
from planner.replay import Leg, MemoryUse, Replay, Seat, make_legs, make_seats, memory_use, replay
from planner.simulate import Timeline, simulate


class Finding(NamedTuple):
    """What a rule reports; the rule's name is added to make it a `Violation`."""

    subject: str
    expected: object
    actual: object
    message: str


Findings = Iterator[Finding]


def shown(value: object, most: int = 400) -> str:
    """A value as a finding shows it, cut after `most` characters."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


class Case:
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

    def split_stages(self) -> Iterator[tuple[int, Stage]]:
        """The stages whose I or W is on other devices, with their numbers."""
        return ((number, stage) for number, stage in enumerate(self.plan.stages) if stage.is_split)
