"""Operations on the cores of one host: their widths are decided together with their times, under a cumulative limit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreInstance:
    """Operations in ticks, in an order that agrees with their precedences."""

    ticks: tuple[Mapping[int, int], ...]
    """Per operation, its time by number of cores."""
    after: tuple[tuple[int, ...], ...]
    """Per operation, those that must have ended."""
    cores: int
    """Cores of the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreResult:
    """What a solve came to; start and width per operation are absent if it found nothing."""

    start: tuple[int, ...] | None
    width: tuple[int, ...] | None
    bound: int
    """No schedule ends before this tick, by the solver's word."""
    status: str


class CoreModel:
    """One method per rule."""

    def __init__(self, instance: CoreInstance, *, horizon: int) -> None:
        self.instance, self.horizon = instance, horizon
        self.model = cp_model.CpModel()
        count = range(len(instance.ticks))
        self.start = [self.model.new_int_var(0, horizon, f"start{number}") for number in count]
        self.end = [self.model.new_int_var(0, horizon, f"end{number}") for number in count]
        self.is_wide = [self._add_widths(number) for number in count]
        self._respect_precedence()
        self._respect_cores()
        self.makespan = self.model.new_int_var(0, horizon, "makespan")
        self.model.add_max_equality(self.makespan, self.end)
        self.model.minimize(self.makespan)

    def _add_widths(self, number: int) -> dict[int, cp_model.IntVar]:
        """An operation has exactly one of its widths, and the time of that."""
        flags = {}
        for width, ticks in self.instance.ticks[number].items():
            flags[width] = flag = self.model.new_bool_var(f"wide{number}_{width}")
            self.model.add(self.end[number] == self.start[number] + ticks).only_enforce_if(flag)
        self.model.add_exactly_one(flags.values())
        return flags

    def _respect_precedence(self) -> None:
        """An operation starts once all that it waits for has ended."""
        for number, before in enumerate(self.instance.after):
            for other in before:
                self.model.add(self.start[number] >= self.end[other])

    def _respect_cores(self) -> None:
        """At no time more cores are busy than there are."""
        intervals, demands = [], []
        for number, flags in enumerate(self.is_wide):
            for width, flag in flags.items():
                ticks = self.instance.ticks[number][width]
                name = f"run{number}_{width}"
                interval = self.model.new_optional_fixed_size_interval_var(self.start[number], ticks, flag, name)
                intervals.append(interval)
                demands.append(width)
        self.model.add_cumulative(intervals, demands, self.instance.cores)

    def hint(self, start: Sequence[int], width: Sequence[int]) -> None:
        """A schedule to begin with."""
        for number, (begin, chosen) in enumerate(zip(start, width, strict=True)):
            self.model.add_hint(self.start[number], begin)
            for each, flag in self.is_wide[number].items():
                self.model.add_hint(flag, int(each == chosen))


def solve_cores(
    instance: CoreInstance,
    *,
    horizon: int,
    known: tuple[Sequence[int], Sequence[int]] | None = None,
    time_limit_s: float = 10.0,
    seed: int = 0,
    workers: int = 1,
) -> CoreResult:
    """The shortest schedule found that ends by `horizon`; `known`: starts and widths to begin with."""
    model = CoreModel(instance, horizon=horizon)
    if known is not None:
        model.hint(*known)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = workers
    status = solver.solve(model.model)
    has_schedule = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return CoreResult(
        start=tuple(solver.value(start) for start in model.start) if has_schedule else None,
        width=tuple(next(w for w, flag in flags.items() if solver.value(flag)) for flags in model.is_wide)
        if has_schedule
        else None,
        bound=round(solver.best_objective_bound),
        status=solver.status_name(status),
    )
