"""What no layout of a chain goes below, with the certificate that shows it."""

from collections.abc import Sequence
from itertools import combinations, pairwise

from planner.evidence.certificate import Bound, make_bound
from planner.layout.costs import CostModel
from planner.problem import Options, Problem
from planner.recipes.layer_chain import BACKWARD, FORWARD, Integers, LayerChain
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile

_TYPE, _MEMORY_BYTES, _FAST = "device", 1 << 40, 1 << 50
"""Memory and bandwidth without a limit."""

_PARTS = 16
"""In which costs are mixed."""

_EFFORT_S = 1.2
"""Work that goes into the bound, as seconds of a slow machine: it is counted, for the same bound anywhere."""


def hardest_mix(chain: LayerChain, *, ranks: int) -> Integers:
    """[2, layers] costs between those of the chain, by which ranks cannot all have little work.

    Proof that a bound for them holds. The order is fixed, so that a layout's time is the longest of paths, each a sum
    of costs. So its time by a mean of costs is at most the mean of its times, which is at most the larger of them; and
    costs that are rounded down make no path longer.
    """
    if len(chain.costs) == 1:
        return chain.costs[0]
    first, second = chain.costs
    mixes = [(part * first + (_PARTS - part) * second) // _PARTS for part in range(_PARTS + 1)]
    return max(mixes, key=lambda costs: _least_rank_work(chain, costs.sum(axis=0), ranks=ranks))


def _least_rank_work(chain: LayerChain, work: Integers, *, ranks: int) -> float:
    """What the busiest rank has at least, with as many blocks as fit on each beside what is behind the last one."""
    size = chain.letters.index("m")
    unit, tail = float(work[:size].mean()), work[size:].tolist()
    return min(
        _least_room([*extra, *[0.0] * (ranks - len(extra))], unit=unit, count=size) for extra in ([sum(tail)], tail)
    )


def _least_room(beside: Sequence[float], *, unit: float, count: int) -> float:
    """The least room of every rank in which so many blocks find place beside what ranks have already."""
    rooms = sorted(each + number * unit for each in set(beside) for number in range(count + 1))
    wide = (room for room in rooms if room >= max(beside))
    return next(room for room in wide if sum((room - each) // unit for each in beside) >= count)


def as_problem(chain: LayerChain, costs: Integers, *, ranks: int, microbatches: int, most_chunks: int) -> Problem:
    """The question whose plans are the chain's layouts, and those with fewer chunks; nanoseconds are ticks."""
    names = [{"m": "mtp", "L": "head"}.get(letter, f"layers.{number}") for number, letter in enumerate(chain.letters)]
    layers = tuple(
        Layer(
            name=name,
            costs=(
                LayerCost(
                    device_type=_TYPE,
                    forward_ns=int(costs[FORWARD, number]),
                    input_grad_ns=int(costs[BACKWARD, number]) // 2,
                    weight_grad_ns=int(costs[BACKWARD, number]) - int(costs[BACKWARD, number]) // 2,
                ),
            ),
            parameter_bytes=1,
            state_bytes=0,
            stash_bytes=0,
            weight_stash_bytes=0,
        )
        for number, name in enumerate(names)
    )
    edges = tuple(Edge(producer=a, consumer=b, bytes=0, gradient_bytes=None) for a, b in pairwise(names))
    devices = tuple(Device(name=f"rank{number}", type=_TYPE, memory_bytes=_MEMORY_BYTES) for number in range(ranks))
    links = tuple(
        Link(a=a.name, b=b.name, bandwidth_bytes_per_s=_FAST, latency_ns=chain.transfer)
        for a, b in combinations(devices, 2)
    )
    return Problem(
        profile=ModelProfile(name="chain", layers=layers, edges=edges),
        cluster=Cluster(name="ranks", devices=devices, links=links),
        num_microbatches=microbatches,
        options=Options(
            split_backward=False, max_stages_per_device=most_chunks, max_replicas=1, idle_devices=False, order="looped"
        ),
    )


def find_least_time(problem: Problem, *, reached: int) -> Bound:
    """The largest bound found with a counted effort; `reached`: what a layout takes."""
    return make_bound(problem, CostModel(problem), time_limit_s=_EFFORT_S, reached=reached)
