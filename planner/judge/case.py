"""What every rule is given, a plan under examination, and what it reports."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

from planner.judge.reading import Reading
from planner.judge.stage_replicas import StageReplica, is_split
from planner.judge.times import Judgement, check_times
from planner.plan import DeviceGroup, Plan, Stage
from planner.problem import Problem
from planner.simulation.timeline import Timeline


class Finding(NamedTuple):
    """What a rule reports; the rule's name is added to make it a `Violation`."""

    subject: str
    expected: object
    actual: object
    message: str


Findings = Iterator[Finding]

Played = Timeline | str
"""The timeline that the core claims, or why it has none."""


def shown(value: object, most: int = 400) -> str:
    """A value as a finding shows it, cut after `most` characters."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


class Case:
    """A plan under examination; `play` asks the core for the timeline that it claims."""

    def __init__(self, problem: Problem, plan: Plan, *, play: Callable[[], Played]) -> None:
        self.problem, self.plan, self.options = problem, plan, problem.options
        self.reading = Reading(problem, plan)
        self._play = play

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
    def replicas_on(self) -> dict[str, dict[int, StageReplica]]:
        """For every device that works: the stages it works for, each with the stage replica it is part of there."""
        found: dict[str, dict[int, StageReplica]] = {}
        for replica in self.reading.replicas:
            for device in replica.group:
                found.setdefault(device, {})[replica.stage] = replica
        return found

    @cached_property
    def played(self) -> Played:
        """The timeline, or why there is none."""
        return self._play()

    @cached_property
    def timeline(self) -> Timeline | None:
        """The core's timeline; None where the plan cannot be played."""
        return None if isinstance(self.played, str) else self.played

    @cached_property
    def judgement(self) -> Judgement | None:
        """The check of the timeline; None where there is none."""
        return None if self.timeline is None else check_times(self.reading, self.timeline)

    @cached_property
    def objective_ns(self) -> int:
        """The recomputed figure that the problem minimises."""
        assert self.judgement is not None
        ends, spans = self.judgement.makespan_ns, self.judgement.span_ns
        return {"makespan": ends, "span": spans, "cost": ends}[self.options.objective]

    def split_stages(self) -> Iterator[tuple[int, Stage]]:
        """The stages whose I or W is on other devices, with their numbers."""
        return ((number, stage) for number, stage in enumerate(self.plan.stages) if is_split(stage))


Rules = dict[Callable[[Case], Findings], str]
"""Rules in the order in which they are applied, each with what to do about it, in a sentence."""
