"""Weight gradients beside regions of the main stream: an assignment in which every region waits for both streams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionInstance:
    """Regions and weight gradients, in ns."""

    lengths: tuple[int, ...]
    """Of the regions."""
    alone: tuple[int, ...]
    """Per weight gradient, what it adds where it runs alone."""
    beside: tuple[Mapping[int, tuple[int, int]], ...]
    """Per weight gradient and region beside which it may run: by how much the region gets longer, and its own time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionResult:
    """What a solve came to; the choice is absent if it found none in time."""

    choice: tuple[int | None, ...] | None
    bound: int
    """No choice takes less, by the solver's word."""
    status: str


class RegionModel:
    """One method per rule."""

    def __init__(self, instance: RegionInstance) -> None:
        self.instance = instance
        self.model = cp_model.CpModel()
        self.is_beside = [
            {region: self.model.new_bool_var(f"w{number}_r{region}") for region in regions}
            for number, regions in enumerate(instance.beside)
        ]
        self.is_alone = [self._choose_once(number) for number in range(len(instance.alone))]
        horizon = sum(instance.lengths) + sum(max(times) for regions in instance.beside for times in regions.values())
        self.time = [self.model.new_int_var(0, horizon, f"t{number}") for number in range(len(instance.lengths))]
        for region in range(len(instance.lengths)):
            self._wait_for_both(region)
        alone = sum(time * flag for time, flag in zip(instance.alone, self.is_alone, strict=True))
        self.model.minimize(sum(self.time) + alone)

    def _choose_once(self, number: int) -> cp_model.IntVar:
        """A weight gradient runs beside exactly one region, or alone."""
        flag = self.model.new_bool_var(f"alone{number}")
        self.model.add_exactly_one([flag, *self.is_beside[number].values()])
        return flag

    def _wait_for_both(self, region: int) -> None:
        """A region lasts until the main stream, slowed down, and all weight gradients beside it have ended."""
        flags = [
            (each[region], self.instance.beside[number][region])
            for number, each in enumerate(self.is_beside)
            if region in each
        ]
        self.model.add(self.time[region] >= self.instance.lengths[region] + sum(slow * x for x, (slow, _) in flags))
        self.model.add(self.time[region] >= sum(own * x for x, (_, own) in flags))

    def hint(self, choice: Sequence[int | None]) -> None:
        """A choice to begin with."""
        for number, chosen in enumerate(choice):
            self.model.add_hint(self.is_alone[number], chosen is None)
            for region, flag in self.is_beside[number].items():
                self.model.add_hint(flag, region == chosen)


def solve_regions(
    instance: RegionInstance,
    *,
    known: Sequence[int | None] | None = None,
    time_limit_s: float = 10.0,
    seed: int = 0,
    workers: int = 1,
) -> RegionResult:
    """The choice of least time; `known`: one to begin with."""
    model = RegionModel(instance)
    if known is not None:
        model.hint(known)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = workers
    status = solver.solve(model.model)
    has_choice = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return RegionResult(
        choice=tuple(
            next((region for region, flag in flags.items() if solver.value(flag)), None) for flags in model.is_beside
        )
        if has_choice
        else None,
        bound=round(solver.best_objective_bound),
        status=solver.status_name(status),
    )
