"""Which layers recompute, and by which kind: the least time that leaves a plan's orders enough memory.

A search knows one choice at a time: a stage that recomputes takes the ticks and keeps the units of the kinds chosen for
its layers, as if they were those of the full recomputation. So partition, mapping and orders are searched by what is
there for recomputation stage by stage, and in between the kinds are chosen anew for the orders that were found. Since a
device runs one action after the other, its orders alone say how many microbatches of each stage it holds at once:

    sum over its stages of (microbatches held, without that of the action's own I or B) x (units that F leaves)
        <= what the rest of the action needs left over,                                        for every action

which for one stage per device is a knapsack with a choice of kinds per layer. Layers alike are counted, not
distinguished. Where layers recompute in turn, a B needs no more beside what is held than the most that one of its
layers may add.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from solver_models.device_groups import holders_and_replicas
from solver_models.device_rows import KIND, MEMORY
from solver_models.instance import (
    BACKWARD,
    FORWARD,
    INPUT_GRAD,
    WEIGHT_GRAD,
    DeviceOrder,
    Instance,
    Integers,
    RecomputeKinds,
)
from solver_models.local_search.search import Candidate, Searcher
from solver_models.recomputation.alike_layers import AlikeLayers, Room
from solver_models.search_params import SolverParams
from solver_models.simulation.columns import CHECKPOINT_ROW, RECOMPUTATION, RECOMPUTING, SHARDING
from solver_models.simulation.evaluator import Net


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenKinds:
    """A candidate whose stages all count as recomputing, by the kinds chosen for their layers."""

    choice: Integers
    """[L] number of the kind; 0: the layer does not recompute."""
    candidate: Candidate
    """What it is worth with them."""


class LayerRecomputation:
    """Kinds of recomputation for the layers of an instance."""

    def __init__(self, instance: Instance, *, params: SolverParams = SolverParams(), work: float) -> None:
        """`work`: CP-SAT's deterministic limit for one choice."""
        assert instance.recompute_kinds is not None
        self.instance, self.params, self.work = instance, params, work
        self.kinds: RecomputeKinds = instance.recompute_kinds
        self.relaxed = Searcher(self._relaxed(), params=params)
        """What no choice is better than: every layer keeps the least that it may, and recomputes in no time."""

    def searcher(self, choice: Integers) -> Searcher:
        """The search in which stages that recompute do so by these kinds."""
        layers = np.arange(len(choice))
        extra = np.moveaxis(self.kinds.extra[choice, :, :, layers], 0, -1)
        return Searcher(self._with(extra, self.kinds.kept[choice, :, layers].T), params=self.params)

    def _relaxed(self) -> Instance:
        stated = self.kinds.stated[:, None, :] > 0
        kept = np.where(stated, self.kinds.kept, self.kinds.kept[:1]).min(axis=0)
        return self._with(np.zeros_like(self.kinds.extra[0]), kept)

    def _with(self, extra: Integers, kept: Integers) -> Instance:
        """The instance with these ticks and units in the place of the full recomputation's."""
        work, sizes = self.instance.layers.work.copy(), self.instance.layers.sizes.copy()
        work[:, RECOMPUTATION], sizes[:, CHECKPOINT_ROW] = extra, kept
        return replace(self.instance, layers=self.instance.layers._replace(work=work, sizes=sizes))

    def realise(self, searcher: Searcher, candidate: Candidate, *, seed: int) -> ChosenKinds | None:
        """The kinds of least time with which the orders of a candidate fit; None if there are none.

        `searcher`: that in which the candidate has these orders.
        """
        device_orders, _ = searcher.device_orders(candidate)
        net, modes = searcher.net_of(candidate), candidate.modes & SHARDING | RECOMPUTING
        recomputed = None
        if "recompute_in_turn" in self.instance.rules:
            least = self.relaxed.net_of(replace(candidate, modes=modes))
            recomputed = least.whole_backward - least.held
        found = _rooms(net, device_orders, first=searcher.first_member, recomputed=recomputed)
        choice = self._choose(candidate, [room for own in found for room in _undominated(own)], seed=seed)
        if choice is None:
            return None
        played = self.searcher(choice).play(replace(candidate, device_orders=device_orders, modes=modes))
        return ChosenKinds(choice=choice, candidate=played) if played.is_feasible else None

    def anneal(
        self, start: ChosenKinds, *, iterations: int, temperature: tuple[float, float], seed: int
    ) -> ChosenKinds:
        """Partition and mapping annealed with the kinds that layers have, and the best kinds for what is found."""
        searcher = self.searcher(start.choice)
        found = searcher.anneal(start.candidate, iterations=iterations, temperature=temperature, seed=seed)
        return self._better(start, searcher, found=found, seed=seed)

    def polish(self, start: ChosenKinds, *, iterations: int, temperature: float, seed: int) -> ChosenKinds:
        """Better orders, and the best kinds for them."""
        searcher = self.searcher(start.choice)
        found = searcher.polish(start.candidate, iterations=iterations, temperature=temperature, seed=seed)
        return self._better(start, searcher, found=found, seed=seed)

    def _better(self, best: ChosenKinds, searcher: Searcher, *, found: Candidate, seed: int) -> ChosenKinds:
        chosen = self.realise(searcher, found, seed=seed) if found.is_feasible else None
        return best if chosen is None or chosen.candidate.sort_key >= best.candidate.sort_key else chosen

    def _choose(self, candidate: Candidate, rooms: list[Room], *, seed: int) -> Integers | None:
        # a second to import: not before somebody asks for it
        from solver_models.recomputation.recomputation_knapsack import least_kinds

        groups = list(self._alike(candidate))
        shares = [len(group) for group in candidate.groups]
        counts = least_kinds(groups, rooms, shares=shares, work=self.work, seed=seed)
        if counts is None:
            return None
        choice = np.zeros(len(candidate.stage_of), np.int64)
        for group, numbers in zip(groups, counts, strict=True):
            first = 0
            for kind, count in sorted(zip(group.kinds, numbers, strict=True), reverse=True):
                choice[group.layers[first : first + count]] = kind
                first += count
        return choice

    def _alike(self, candidate: Candidate) -> Iterator[AlikeLayers]:
        """The layers of every stage, those alike together, with the kinds that no other one beats in both figures."""
        layers = self.relaxed.layers
        found: dict[tuple[int, bytes], list[int]] = {}
        figures: dict[tuple[int, bytes], Integers] = {}
        for layer, stage in enumerate(candidate.stage_of.tolist()):
            group = candidate.groups[stage]
            table = layers.table_of_replicas[len(group)]
            types = np.unique(layers.devices[list(group), KIND])
            ticks = -(-self.kinds.extra[:, table, types, layer].max(axis=1) // len(group))
            units = self.kinds.kept[:, layers.width_row[group[0]], layer]
            figure = np.stack((self.kinds.stated[:, layer], ticks, units))
            key = stage, figure.tobytes()
            figures[key] = figure
            found.setdefault(key, []).append(layer)
        for key, own in found.items():
            stated, ticks, units = figures[key].tolist()
            kinds = [kind for kind, is_stated in enumerate(stated) if is_stated]
            best = [
                k for k in kinds if not any(_beats((ticks[o], units[o], o), (ticks[k], units[k], k)) for o in kinds)
            ]
            yield AlikeLayers(
                stage=key[0], layers=own, kinds=best, extra=[ticks[k] for k in best], kept=[units[k] for k in best]
            )


def _beats(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    """Whether a kind takes and leaves no more than another; of equals the first does."""
    return one != other and one[0] <= other[0] and one[1] <= other[1] and (one[:2] != other[:2] or one[2] < other[2])


def _rooms(
    net: Net, device_orders: dict[int, DeviceOrder], *, first: list[int], recomputed: Integers | None
) -> Iterator[list[Room]]:
    """What the order of every device leaves at each of its actions, once for the same numbers of microbatches held.

    `recomputed` [N]: the most that one layer of a stage replica adds while its B runs, beside what F left; None: B
    holds all at once.
    """
    holders, replicas = holders_and_replicas(net, first)
    for member, device_order in device_orders.items():
        if member not in holders:
            continue
        device, waiting = holders[member], 0
        held = dict.fromkeys(sorted({action[1] for action in device_order}), 0)
        least: dict[tuple[tuple[int, int], ...], int] = {}
        for kind, stage, _ in device_order:
            replica = replicas[device, stage]
            own = net.weight_workspace[replica] if kind == WEIGHT_GRAD else net.workspace[replica]
            is_one_by_one = False
            if kind == FORWARD:
                held[stage] += 1
            elif kind == BACKWARD and recomputed is not None:
                is_one_by_one = True
                own += recomputed[replica]
            elif kind != WEIGHT_GRAD:
                held[stage] -= 1
                own += net.stash[replica]
            key = tuple(held.items())
            units = int(net.devices[device, MEMORY]) - waiting - int(own)
            least[key] = min(units, least.get(key, units))
            held[stage] -= is_one_by_one
            if kind == INPUT_GRAD and net.has_weight[replica]:
                waiting += int(net.weight_stash[replica])
            elif kind == WEIGHT_GRAD:
                waiting -= int(net.weight_stash[replica])
        yield [Room(held=key, units=units) for key, units in least.items()]


def _undominated(rooms: list[Room]) -> list[Room]:
    """Those of one device that no other one contains."""
    kept: list[Room] = []
    for room in sorted(rooms, key=lambda room: (-sum(count for _, count in room.held), room.units)):
        if not any(other.units <= room.units and _holds(other, room) for other in kept):
            kept.append(room)
    return kept


def _holds(other: Room, room: Room) -> bool:
    """Whether at least as many microbatches of every stage are held."""
    return all(more >= few for (_, more), (_, few) in zip(other.held, room.held, strict=True))
