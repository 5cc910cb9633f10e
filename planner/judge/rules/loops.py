"""Rules: under `order = looped` stages stand in a loop, and every rank runs 1F1B, interleaved where it has several.

Written from the contract alone: by where forwards and backwards stand, not by how a program makes the order.
"""

from collections.abc import Iterator

import numpy

from planner.judge.case import Case, Finding, Findings, Rules
from planner.judge.costs import KINDS
from planner.judge.device_orders import Integers
from planner.plan import DeviceGroup


def loop_stages(case: Case) -> Findings:
    """Under `order = looped` stage s is on rank s mod P of P ranks, each with equally many groups, all of one width."""
    if case.options.order == "looped":
        yield from _misplaced(case)


def loop_order(case: Case) -> Findings:
    """Under `order = looped` a rank runs its forwards, and its backwards, in turns of P microbatches, by 1F1B."""
    if case.options.order != "looped" or next(_misplaced(case), None) is not None:
        return
    ranks = _ranks(case)
    orders, count = case.reading.orders, case.problem.num_microbatches
    chunks = len(case.plan.stages) // len(ranks)
    if chunks > 1 and count % len(ranks):
        message = f"{count} microbatches are not a multiple of the {len(ranks)} ranks, which have several stages each."
        yield Finding("the microbatches", f"a multiple of {len(ranks)}", count, message)
        return
    rank_of = {device: rank for rank, groups in enumerate(ranks) for group in groups for device in group}
    for number, device in enumerate(orders.devices):
        begin, end = orders.first[number], orders.first[number + 1]
        rank = rank_of[device]
        wanted = _wanted(rank, ranks=len(ranks), chunks=chunks, count=count)
        is_forward = orders.kind[begin:end] == KINDS.index("F")
        found = numpy.stack([~is_forward, orders.stage[begin:end], orders.microbatch[begin:end]])
        size = min(found.shape[1], wanted.shape[1])
        differs = (found[:, :size] != wanted[:, :size]).any(axis=0)
        if differs.any() or found.shape != wanted.shape:
            place = int(differs.argmax())
            text = f"{'FB'[wanted[0, place]]} of stage {wanted[1, place]}, microbatch {wanted[2, place]}"
            actual = str(orders.action(int(begin) + place))
            message = f"{device} runs {actual} as action {place}, where 1F1B in a loop has {text}."
            yield Finding(f"{device}: action {place}", text, actual, message)


def _ranks(case: Case) -> list[tuple[DeviceGroup, ...]]:
    """The devices of the stages until the first of them come again."""
    stages = case.plan.stages
    again = (number for number, stage in enumerate(stages) if number and stage.replicas == stages[0].replicas)
    return [stage.replicas for stage in stages[: next(again, len(stages))]]


def _misplaced(case: Case) -> Iterator[Finding]:
    ranks, stages = _ranks(case), case.plan.stages
    names = [device for groups in ranks for group in groups for device in group]
    if len(set(names)) < len(names):
        yield Finding("the ranks", "every device in one rank", names, "The ranks of the loop share devices.")
    widths = sorted({len(group) for groups in ranks for group in groups})
    if len(widths) > 1:
        message = f"Groups of the loop have widths {widths}, and one width is of all stages."
        yield Finding("the ranks", "groups of one width", widths, message)
    sizes = sorted({len(groups) for groups in ranks})
    if len(sizes) > 1:
        message = f"Ranks of the loop have {sizes} replicas, and replicas are of the whole pipeline."
        yield Finding("the ranks", "equally many replicas each", sizes, message)
    if len(stages) % len(ranks):
        message = f"{len(stages)} stages are not a multiple of the {len(ranks)} ranks of the loop."
        yield Finding("the stages", f"a multiple of {len(ranks)}", len(stages), message)
    for number, stage in enumerate(stages):
        if stage.replicas != (wanted := ranks[number % len(ranks)]):
            message = f"Stage {number} is not on the devices of rank {number % len(ranks)} of the loop."
            yield Finding(f"stage {number}", list(map(list, wanted)), list(map(list, stage.replicas)), message)


def _wanted(rank: int, *, ranks: int, chunks: int, count: int) -> Integers:
    """[3, actions] whether it is a backward, stage and microbatch of what a rank runs.

    Forwards go by turns of P microbatches, in a turn stage by stage upwards, backwards downwards. With one stage a turn
    is whatever it is. The k-th forward (from 0) has k - w backwards before it, w the forwards of the warm-up, or none.
    """
    chunk, microbatch = (each.ravel() for each in numpy.divmod(numpy.arange(chunks * count), count))
    group = microbatch // ranks
    up, down = numpy.lexsort((microbatch, chunk, group)), numpy.lexsort((microbatch, -chunk, group))
    after = ranks - 1 - rank
    warm = after if chunks == 1 else 2 * after + (chunks - 1) * ranks
    numbers = numpy.arange(chunks * count)
    # with w forwards ahead, forward k stands at k + max(0, k - w), and backward n after forward n + w, if there is one
    places = numpy.concatenate([2 * numbers - numpy.minimum(numbers, warm), numbers + 1 + numbers + warm])
    taken = numpy.concatenate([up, down])
    order = numpy.argsort(places, kind="stable")
    is_backward = numpy.repeat([0, 1], chunks * count)[order]
    chosen = taken[order]
    return numpy.stack([is_backward, chunk[chosen] * ranks + rank, microbatch[chosen]])


RULES: Rules = {
    loop_stages: "Plan again with `--target` of the program, or remove `order`.",
    loop_order: "Plan again with `--target` of the program, or remove `order`.",
}
