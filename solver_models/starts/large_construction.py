"""First candidates for problems whose plans take long to play: many cuts rated in closed form, the best few played."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from solver_models.instance import Instance, Integers
from solver_models.local_search.search import STANDARD_POLICY_PARAMS, Candidate, Searcher, solution_of
from solver_models.moves.annealing import FITS, UNRATED, evaluate
from solver_models.moves.lower_bounds import net_lower_bounds
from solver_models.partition.partition_instance import prefix_sums
from solver_models.simulation.columns import STASH_ROW, STATE_ROW
from solver_models.simulation.evaluator import FAR, assemble
from solver_models.starts.best_fit import best_fits
from solver_models.starts.cuts import StageGroups, Sums, best_cut
from solver_models.starts.device_arrangement import device_orders
from solver_models.starts.replica_groups import common_replicas, cut_into_blocks

_REPLICAS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Devices per stage that are tried."""
_STEPS = 14
"""Halvings of the search for the least largest load of a cut."""
_SLACKS = (0.0, 0.03, 0.1, 0.25)
"""By how much a stage may fall short of the largest load where that makes what crosses its end smaller."""
_MOST_SLACK_GROUPS = 160
"""Cuts into more stages have no slack to give."""
_DEPTHS = (1.0, 0.5, 0.2, 0.0)
"""Microbatches that a stage shall hold at once, as parts of the stages from it to the last."""
_MOST_LOWER_BOUNDS = 200
"""Cuts whose lower bound is looked at, those with the least estimates."""

Groups = tuple[tuple[int, ...], ...]

POLICY_PARAMS = (
    STANDARD_POLICY_PARAMS[1],
    STANDARD_POLICY_PARAMS[4],
    STANDARD_POLICY_PARAMS[0],
    STANDARD_POLICY_PARAMS[3],
)
"""Policies that are played, the most promising first."""


def _make_sums(instance: Instance) -> Sums:
    work = instance.work[0]
    backward = work[1] + work[2] if "split_backward" in instance.rules else work[3]
    return Sums(
        load=prefix_sums(work[0] + backward),
        turnaround=prefix_sums(work[0] + work[1]),
        forward=prefix_sums(work[0]),
        state=prefix_sums(instance.sizes[STATE_ROW]),
        stash=prefix_sums(instance.sizes[STASH_ROW]),
        crossing=instance.crossing[0],
    )


class _LayerCutter:
    """Cuts of the layers for given groups of devices, in order; groups left over at the end stay idle."""

    def __init__(self, instance: Instance, sums: Sums, *, groups: Groups, steps: int) -> None:
        self.instance, self.sums, self.groups, self.steps = instance, sums, groups, steps
        total, types = sums.load[:, -1], instance.device_type
        self.size = np.array([len(group) for group in groups])
        starts = np.cumsum([0, *self.size[:-1].tolist()])
        members = np.array([device for group in groups for device in group])
        rank = np.argsort(np.argsort(total, kind="stable"), kind="stable")  # of a type, the slowest last
        self.kind = np.argsort(rank)[np.maximum.reduceat(rank[types[members]], starts)]
        self.room = np.minimum.reduceat(instance.capacity[members], starts)

    def best(self, depth: float, slack: float) -> list[int]:
        """The boundaries of the cut with the least largest load, [0, ..., L]; empty if nothing fits into memory.

        With `slack` stages may end earlier, where less crosses.
        """
        held = np.clip((depth * np.arange(len(self.groups), 0, -1)).astype(np.int64), 1, self.instance.num_microbatches)
        groups = StageGroups(self.kind, self.size, self.room, held, self.instance.rules["receive_buffers"])
        bounds: list[int] = best_cut(self.sums, groups, slack, self.steps).tolist()
        return bounds

    def estimate(self, bounds: Integers) -> int:
        """Ticks that the orders of a cut take, about: fill, work, and turnarounds of what memory holds at once."""
        count, firsts, ends = self.instance.num_microbatches, bounds[:-1], bounds[1:]
        kind, size = self.kind[: len(ends)], self.size[: len(ends)]

        def shares(sums: Integers) -> Integers:
            found: Integers = (sums[kind, ends] - sums[kind, firsts]) // size
            return found

        turnarounds, forwards = shares(self.sums.turnaround), shares(self.sums.forward)
        rests = np.cumsum(turnarounds[::-1])[::-1]
        heads = np.cumsum(forwards) - forwards
        buffers = self.instance.rules["receive_buffers"] * (self.sums.crossing[firsts] + self.sums.crossing[ends])
        need = self.sums.state[ends] - self.sums.state[firsts] + -(-buffers // size)
        stash = -(-(self.sums.stash[ends] - self.sums.stash[firsts]) // size)
        held = np.clip((self.room[: len(ends)] - need) // np.maximum(stash, 1), 1, count)
        return int((heads + count * np.maximum(shares(self.sums.load), rests // held)).max(initial=0))


def large_seeds(
    searcher: Searcher, *, most_plays: int, until: float, most_devices: int | None = None
) -> Iterator[Candidate]:
    """Played candidates, each better than those before, until `most_plays` were played or the clock says `until`.

    The clock is that of `time.monotonic`. Nothing comes if the partition is given or layers are pinned. With
    `most_devices` each of so many devices has a stage, and the others idle: such plans have few actions.
    """
    plays, best = 0, (UNRATED, 0)
    for candidate in _rated(searcher, until=until, most_devices=most_devices):
        for policy_params in POLICY_PARAMS:
            is_hopeless = (FITS, candidate.objective) >= best
            if is_hopeless or plays >= most_plays or (plays and time.monotonic() >= until):
                break
            trial = replace(candidate, policy_params=policy_params)
            threshold = best[1] if best[0] == FITS else FAR
            fit, amount, _ = evaluate(searcher.layers, solution_of(trial), threshold, searcher.by_span, False)
            plays += 1
            if (fit, amount) < best:
                best = int(fit), int(amount)
                yield replace(trial, objective=best[1], fit=best[0])


def _rated(searcher: Searcher, *, until: float, most_devices: int | None) -> list[Candidate]:
    """Cuts for many groupings of the devices, the least estimate first (which stands as their objective).

    Once the clock says `until`, no more groupings are looked at than it takes to have a cut.
    """
    instance = searcher.instance
    if instance.given_stages is not None or (instance.pinned >= 0).any():
        return []
    sums, found, seen = _make_sums(instance), list[Candidate](), set[Groups]()
    groupings = _groupings(instance, has_time=lambda: time.monotonic() < until)
    for groups in filter(None, groupings if most_devices is None else _on_few(instance, most_devices)):
        if found and time.monotonic() >= until:
            break
        if groups in seen:
            continue
        seen.add(groups)
        cutter = _LayerCutter(instance, sums, groups=groups, steps=_STEPS)
        slacks = _SLACKS if len(groups) <= _MOST_SLACK_GROUPS else _SLACKS[:1]
        cuts = (cutter.best(depth, slack) for depth in _DEPTHS for slack in slacks)
        for cut in dict.fromkeys(tuple(bounds) for bounds in cuts if bounds):
            used = groups[: len(cut) - 1]
            stage_of = np.repeat(np.arange(len(used)), np.diff(cut))
            for modes in searcher.plain_modes(used):
                candidate = searcher.make_candidate(stage_of, used, modes=modes)
                if searcher.is_allowed(candidate):
                    found.append(replace(candidate, objective=cutter.estimate(np.array(cut))))
    found.sort(key=lambda candidate: candidate.objective)
    rated = [replace(c, objective=max(c.objective, _lower_bound(searcher, c))) for c in found[:_MOST_LOWER_BOUNDS]]
    return sorted(rated, key=lambda candidate: candidate.objective)


def _lower_bound(searcher: Searcher, candidate: Candidate) -> int:
    """Ticks that no order beats: those of the busiest device, and those that the busiest link is occupied."""
    start = np.cumsum([0, *(len(group) for group in candidate.groups)]).astype(np.int64)
    devices = np.array([device for group in candidate.groups for device in group], dtype=np.int64)
    net = assemble(searcher.layers, candidate.stage_of, start, devices, candidate.modes)
    routed = net.transfer_route >= 0
    routes, ticks = net.transfer_route[routed], net.transfer_duration[routed]
    lengths = net.route_start[routes + 1] - net.route_start[routes]
    firsts = np.repeat(net.route_start[routes] - np.cumsum(lengths) + lengths, lengths)
    links = net.route_links[firsts + np.arange(len(firsts))]
    loads = np.bincount(links, weights=np.repeat(ticks, lengths).astype(float), minlength=1)
    return max(int(net_lower_bounds(net)[0]), int(searcher.instance.num_microbatches * loads.max()))


def _groupings(instance: Instance, *, has_time: Callable[[], bool]) -> Iterator[Groups]:
    """Devices in listed order, by recursive cuts, or class by class, as stages of equally many devices of one type.

    And one device per stage as a target period fills them best, which takes longest.
    """
    allowed = common_replicas(instance)
    for order in device_orders(instance, slowest_first=True):
        types = instance.device_type[order]
        cuts = [0, *(np.flatnonzero(np.diff(types)) + 1).tolist(), len(order)]
        runs = [order[begin:end].tolist() for begin, end in pairwise(cuts)]
        for replicas in _REPLICAS:
            if replicas <= len(order) and replicas in allowed:
                yield tuple(group for run in runs for group in _side_by_side(run, replicas))
                blocks = [group for run in runs for group in cut_into_blocks(run, replicas, allowed=allowed)]
                is_even = "uneven_replication" in instance.rules or replicas == 1
                yield tuple(group for group in blocks if is_even or len(group) == replicas)
    if has_time():
        yield from (tuple((device,) for device in fit.devices) for fit in best_fits(instance))


def _on_few(instance: Instance, count: int) -> Iterator[Groups]:
    """The fastest devices with a stage each, in listed order; then the first ones, which may have more memory."""
    slowness = instance.work[0, :3].sum(axis=(0, 2))[instance.device_type]
    for chosen in (np.sort(np.argsort(slowness, kind="stable")[:count]), np.arange(count)):
        yield tuple((device,) for device in chosen.tolist())


def _side_by_side(run: list[int], replicas: int) -> list[tuple[int, ...]]:
    """Neighbours are consecutive stages of one replica, so that most transfers have a short way; the rest idles."""
    length = len(run) // replicas
    return [tuple(run[stage : length * replicas : length]) for stage in range(length)]
