"""Runs that never took place: what `pipeplan tune` would see of plans whose times are written down here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from api.tuning.short_run import ShortRun, ShortRunError
from api.tuning.tuning_candidates import RunnablePlan
from api.tuning.tuning_loop import Trial
from planner.actions import Action
from planner.plan import Plan
from profiles.workload import Workload
from tests.api.worlds import make_plan, make_problem, make_workload

MS = 10**6


def make_candidates(*names: str) -> dict[str, RunnablePlan]:
    """Plans by name that differ in the order of their last weight gradients, so that each has a key of its own."""
    plan = make_plan(make_problem(make_workload()))
    found = {}
    for number, name in enumerate(names):
        order = [a for a in plan.schedule["gpu0"] if a != Action("W", 0, 2)]
        order.insert(len(order) - number, Action("W", 0, 2))
        other = replace(plan, schedule={**plan.schedule, "gpu0": tuple(order)})
        found[name] = RunnablePlan(name=name, plan=other, predicted_ns=0)
    assert len({candidate.key for candidate in found.values()}) == len(names)
    return found


@dataclass(kw_only=True)
class RecordedBench:
    """Plays what was recorded: every profile is a number, and calibrating goes to the next one."""

    proposals: Sequence[Sequence[str]]
    """Names of the plans that planning gives by each profile, the choice first."""
    predictions: Sequence[Mapping[str, int]]
    """Milliseconds by each profile and name."""
    times: Mapping[str, Sequence[int] | str]
    """Milliseconds of each run of a plan, the last one again and again, or why it fails."""
    run_s: float = 1.0
    """Seconds that a run takes."""
    interrupt_at: float | None = None
    """Ctrl+C comes after so many seconds."""
    clock: float = 0.0
    ran: list[str] = field(default_factory=list)
    calibrated_with: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = dict.fromkeys(name for row in self.proposals for name in row)
        self.candidates = make_candidates(*names)
        self.names = {candidate.key: name for name, candidate in self.candidates.items()}

    def _profile(self) -> int:
        return min(len(self.calibrated_with), len(self.proposals) - 1)

    def plan(self, workload: Workload) -> Sequence[RunnablePlan]:
        number = self._profile()
        return [
            replace(self.candidates[name], predicted_ns=MS * self.predictions[number][name])
            for name in self.proposals[number]
        ]

    def predict(self, workload: Workload, plan: Plan) -> int | None:
        name = self.names[RunnablePlan(name="", plan=plan, predicted_ns=0).key]
        found = self.predictions[self._profile()].get(name)
        return None if found is None else MS * found

    def run(self, candidate: RunnablePlan) -> ShortRun:
        self.clock += self.run_s
        if self.is_asked_to_stop():
            raise KeyboardInterrupt
        times, earlier = self.times[candidate.name], self.ran.count(candidate.name)
        self.ran.append(candidate.name)
        if isinstance(times, str):
            raise ShortRunError(times)
        taken = MS * times[min(earlier, len(times) - 1)]
        return ShortRun(folder="none", durations_ns=(taken, taken, taken), wall_s=self.run_s)

    def calibrate(self, workload: Workload, trials: Sequence[Trial]) -> Workload:
        self.calibrated_with.append([trial.candidate.name for trial in trials])
        return workload

    def elapsed_s(self) -> float:
        return self.clock

    def is_asked_to_stop(self) -> bool:
        return self.interrupt_at is not None and self.clock >= self.interrupt_at
