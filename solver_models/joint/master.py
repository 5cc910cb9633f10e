"""The master of branch-and-check as an integer programme: one binary per stage, that is layers and a device group.

In PuLP, solved by HiGHS. It knows the loads of the devices, the fill before a stage and its synchronisation;
everything else it learns from cuts: a case whose lower bound or best order is known costs at least that, and one that
is closed is forbidden. The planner asks it where the compiled tree (`subproblems`) gives up; docs/proofs/exact.md has
both.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pulp

from solver_models.instance import Integers
from solver_models.joint.partition_enumeration import Space
from solver_models.joint.subproblems import OpenCase
from solver_models.local_search.search import Searcher
from solver_models.pulp_solvers import least_whole, solve_checked
from solver_models.simulation.evaluator import assemble

_MAX_COLUMNS = 20_000
"""Columns of the largest integer programme over cases that is built."""

TOLERANCE = 2e-6
"""What HiGHS may get wrong, relative to the objective; bounds are lowered, and limits raised, by that."""


class Column(NamedTuple):
    """A stage that a plan may have."""

    first: int
    """Index of the down-set before it."""
    end: int
    """Index of the down-set after it."""
    group: int
    """Its device group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a stage costs wherever it stands."""

    head: int
    """Ticks of its F, at least."""
    load: tuple[int, ...]
    """Ticks of an iteration on every device of its group."""
    sync: int
    """Ticks of its all-reduce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the programme knows by now."""

    bound: int
    """Ticks that no case beats, but those that are forbidden."""
    case: OpenCase | None
    """A case of that objective; None if all that are below the limit are forbidden."""


class MasterProgramme:
    """The integer programme; `solve` and `cut`, or `forbid`, in turn until the bound reaches what is known."""

    NAMES = ("stages_form_a_chain", "devices_hold_few_stages", "objective_covers_every_stage", "objective_covers_loads")

    def __init__(self, searcher: Searcher, space: Space) -> None:
        """Stages without modes, for the makespan; raises ValueError otherwise, or if there are too many columns."""
        self.searcher, self.space = searcher, space
        self.least_tail = searcher.instance.tail + searcher.instance.least_step
        columns = (
            Column(first, int(end), group)
            for first in range(len(space.downset) - 1)
            for end in space.arc_end[space.arc_start[first] : space.arc_start[first + 1]]
            for group in range(len(space.group_size))
        )
        self.columns = [column for column in columns if self._is_measured(column)]
        is_long = len(self.columns) > _MAX_COLUMNS
        instance = searcher.instance
        if is_long or instance.recompute or instance.sharding or instance.objective != "makespan":
            raise ValueError(f"master: {len(self.columns)} columns, modes of stages, or makespan, exceed its limits")
        self.number_of = {column: number for number, column in enumerate(self.columns)}
        self.group_of = {self._devices(column): column.group for column in self.columns}
        self.downset_of = {int(bits): number for number, bits in enumerate(self.space.downset)}
        self.costs = [self._costs(column) for column in self.columns]
        self.program = pulp.LpProblem("master", pulp.LpMinimize)
        self.objective = self.program.add_variable("objective", lowBound=0)
        self.use = [self.program.add_variable(f"stage_{number}", cat="Binary") for number in range(len(self.columns))]
        self.program += self.objective
        for name in self.NAMES:
            getattr(self, name)()

    def stages_form_a_chain(self) -> None:
        """The chosen stages lead from no layer to all layers, each beginning where another ends."""
        last = len(self.space.downset) - 1
        for node in range(last + 1):
            signs = [(int(c.first == node) - int(c.end == node), use) for c, use in self._pairs()]
            amount = int(node == 0) - int(node == last)
            self.program += pulp.lpSum(sign * use for sign, use in signs if sign) == amount, f"downset_{node}"

    def devices_hold_few_stages(self) -> None:
        """No device holds more stages than the options allow."""
        for device in range(len(self.searcher.instance.capacity)):
            held = [use for column, use in self._pairs() if self._places(column, device)]
            self.program += pulp.lpSum(held) <= self.searcher.instance.max_stages_per_device, f"device_{device}"

    def objective_covers_every_stage(self) -> None:
        """A stage takes the least fill of the layers before it, its own work and its synchronisation."""
        fill = self._least_fill()
        for (column, use), cost in zip(self._pairs(), self.costs, strict=True):
            least = fill[column.first] + max(cost.load) + cost.sync + self.least_tail
            self.program += self.objective >= least * use

    def objective_covers_loads(self) -> None:
        """A device takes all the work of its stages."""
        for device in range(len(self.searcher.instance.capacity)):
            terms = [
                cost.load[place] * use
                for (column, use), cost in zip(self._pairs(), self.costs, strict=True)
                for place in self._places(column, device)
            ]
            self.program += self.objective >= pulp.lpSum(terms) + self.least_tail, f"load_{device}"

    def solve(self, *, below: int | None = None, time_limit_s: float = 10.0) -> Answer | None:
        """The least objective that the cuts leave, and a case that has it; None if time was up.

        Nothing that takes `below` ticks or more is asked for.
        """
        self.objective.upBound = None if below is None else below * (1 + TOLERANCE)
        found = solve_checked(self.program, time_limit_s=time_limit_s, gap=0.5)
        if found.status == "infeasible":
            return Answer(bound=0 if below is None else below, case=None)
        bound = least_whole(found.bound, tolerance=TOLERANCE)
        if found.status != "optimal" or found.values is None or bound is None:
            return None
        chosen = sorted(column for column, use in self._pairs() if found.values[use.name] > 0.5)
        return Answer(bound=bound, case=self._read(chosen, lower_bound=bound))

    def _read(self, chosen: list[Column], *, lower_bound: int) -> OpenCase:
        """The case that has these stages."""
        stage_of = np.zeros(len(self.searcher.instance.state), np.int64)
        chain = sorted(chosen, key=lambda column: int(self.space.downset[column.first]).bit_count())
        for stage, column in enumerate(chain):
            stage_of[self._layers(column)] = stage
        return OpenCase(
            lower_bound=lower_bound,
            stage_of=stage_of,
            groups=tuple(self._devices(column) for column in chain),
            modes=np.zeros(len(chain), np.int64),
        )

    def cut(self, case: OpenCase, value: int) -> None:
        """This case, and all that a symmetry of the devices makes of it, takes at least `value`."""
        for picked in self._images(case):
            self.program += self.objective >= value * (pulp.lpSum(picked) - (len(picked) - 1))

    def forbid(self, case: OpenCase) -> None:
        """No plan worth finding is of this case, nor of one that a symmetry of the devices makes of it."""
        for picked in self._images(case):
            self.program += pulp.lpSum(picked) <= len(picked) - 1

    def _images(self, case: OpenCase) -> Iterator[list[pulp.LpVariable]]:
        """The variables of the stages of a case, and of its images under the symmetries of the devices, each once."""
        seen, reached = set[tuple[int, ...]](), [0]
        for stage in range(len(case.groups)):
            reached.append(self.downset_of[sum(1 << int(x) for x in np.nonzero(case.stage_of <= stage)[0])])
        for image in [list(range(len(self.searcher.layers.capacity))), *self.space.automorphisms.tolist()]:
            groups = [self.group_of[tuple(image[device] for device in group)] for group in case.groups]
            columns = tuple(
                self.number_of[Column(reached[stage], reached[stage + 1], group)] for stage, group in enumerate(groups)
            )
            if columns not in seen:
                seen.add(columns)
                yield [self.use[column] for column in columns]

    def _pairs(self) -> list[tuple[Column, pulp.LpVariable]]:
        return list(zip(self.columns, self.use, strict=True))

    def _devices(self, column: Column) -> tuple[int, ...]:
        return tuple(self.space.group[column.group, : self.space.group_size[column.group]].tolist())

    def _places(self, column: Column, device: int) -> list[int]:
        """Where in its group a column uses a device, as such or as a member of a group of several: once or nowhere."""
        members = self.searcher.instance.members_of
        return [place for place, holder in enumerate(self._devices(column)) if device in members(holder)]

    def _is_measured(self, column: Column) -> bool:
        """Whether all layers of a stage have a cost on the types, and at the width, of its group."""
        layers, devices = self.searcher.layers, self._devices(column)
        needed = [1 << int(layers.device_type[holder]) for holder in devices]
        measured = layers.measured[layers.table_of_replicas[len(devices)]]
        return all(int(measured[x]) & bit for x in self._layers(column) for bit in needed)

    def _layers(self, column: Column) -> list[int]:
        new = int(self.space.downset[column.end]) & ~int(self.space.downset[column.first])
        return [x for x in range(len(self.searcher.instance.state)) if new >> x & 1]

    def _costs(self, column: Column) -> Costs:
        """From the net of a plan that has the stage, and all other layers in stages of their own beside it."""
        devices = self._devices(column)
        inside, before = self._layers(column), int(self.space.downset[column.first])
        stage_of = np.array([0 if before >> x & 1 else 2 for x in range(len(self.searcher.instance.state))], np.int64)
        stage_of[inside] = 1
        numbers = np.unique(stage_of)
        own = int(np.searchsorted(numbers, 1))
        groups = [np.array(devices if stage == 1 else [0], np.int64) for stage in numbers]
        start = np.cumsum([0, *(len(group) for group in groups)]).astype(np.int64)
        net = assemble(
            self.searcher.layers, np.searchsorted(numbers, stage_of), start, np.concatenate(groups),
            np.zeros(len(numbers), np.int64),
        )  # fmt: skip
        replicas = range(int(start[own]), int(start[own + 1]))
        work = [int(net.duration[n, 0] + _backward(net.duration[n], bool(net.has_weight[n]))) for n in replicas]
        return Costs(
            head=min(int(net.duration[n, 0]) for n in replicas),
            load=tuple(self.searcher.instance.num_microbatches * each for each in work),
            sync=int(net.synchronisation[own]),
        )

    def _least_fill(self) -> list[int]:
        """Per down-set, ticks before a stage that begins there can start, along the lightest chain; 0 for graphs."""
        fill = [0] * len(self.space.downset)
        edges = self.searcher.instance.edges
        if len(edges) != len(self.searcher.instance.state) - 1 or np.any(edges[:, 1] != edges[:, 0] + 1):
            return fill
        for node in range(1, len(fill)):
            heads = zip(self.columns, self.costs, strict=True)
            fill[node] = min(fill[column.first] + cost.head for column, cost in heads if column.end == node)
        return fill


def _backward(duration: Integers, has_weight: bool) -> int:
    """The least ticks of a backward pass."""
    whole = int(duration[1] + duration[2])
    return min(whole, int(duration[3])) if has_weight else int(duration[1])


def make_master(searcher: Searcher, space: Space) -> MasterProgramme | None:
    """The programme of an instance; None if it is too large, or of a kind that it does not take."""
    try:
        return MasterProgramme(searcher, space)
    except ValueError:
        return None
