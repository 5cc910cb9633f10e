"""All packings of a few sequences, each played anew."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from planner.dealing import pipeline_actions


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTimes:
    """A stage by a table of whole times: of length l those at l - 1."""

    times: tuple[tuple[int, int], ...]
    own: tuple[int, int] = (0, 0)

    @property
    def of_pack(self) -> tuple[int, int]:
        return self.own

    def at(self, length: int) -> tuple[int, int]:
        return self.times[length - 1]


def play_alone(packs: Sequence[Sequence[int]], stages: Sequence[ListedTimes], *, transfer_ns: int) -> int:
    """When one pipeline that runs 1F1B ends; packs are lengths."""
    end: dict[tuple[int, int, bool], int] = {}
    free = [0] * len(stages)
    for stage, place, is_forward in pipeline_actions(len(stages), len(packs)):
        source = (stage - 1, place, True) if is_forward else (stage + 1, place, False)
        ready = end.get(source, -transfer_ns) + transfer_ns
        way = 0 if is_forward else 1
        duration = stages[stage].own[way] + sum(stages[stage].at(length)[way] for length in packs[place])
        end[stage, place, is_forward] = free[stage] = max(free[stage], ready) + duration
    return max(end.values())


def partitions(lengths: tuple[int, ...], cap: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every way to put them into packs."""
    if not lengths:
        yield ()
        return
    for rest in partitions(lengths[1:], cap):
        yield ((lengths[0],), *rest)
        for place, pack in enumerate(rest):
            if sum(pack) + lengths[0] <= cap:
                yield (*rest[:place], (*pack, lengths[0]), *rest[place + 1 :])


def best_packing(
    lengths: tuple[int, ...], pipelines: int, *, cap: int, stages: Sequence[ListedTimes], transfer_ns: int
) -> tuple[int | None, int]:
    """The least time of all packings with equally many packs, None if there is none; and the fewest packs."""
    ways = list(partitions(lengths, cap))
    orders = {
        order for packs in ways if len(packs) % pipelines == 0 for order in permutations(tuple(map(tuple, packs)))
    }
    times = []
    for order in orders:
        count = len(order) // pipelines
        dealt = [order[rank * count : (rank + 1) * count] for rank in range(pipelines)]
        times.append(max(play_alone(each, stages, transfer_ns=transfer_ns) for each in dealt))
    return min(times, default=None), min(map(len, ways))
