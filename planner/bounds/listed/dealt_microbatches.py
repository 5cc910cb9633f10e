"""Lower bounds on every dealing of whole microbatches of different length to the pipelines of a job.

Written for integers: forward and backward times by microbatch, then stage; docs/proofs/bounds.md has the proofs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

Rows = Sequence[Sequence[int]]
"""By microbatch, then stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    """What a stage has to do, and what has to happen around it, for every microbatch."""

    loads: Sequence[int]
    """Forward and backward there."""
    heads: Sequence[int]
    """Until it arrives there."""
    tails: Sequence[int]
    """From when it has left."""


def bound_any_order(forward: Rows, backward: Rows, *, pipelines: int, transfer_ns: int = 0) -> int:
    """No dealing ends before, in whatever order the pipelines run.

    Per stage: a pipeline takes at least its load there, before it some head and after it some tail; those of q
    pipelines that have work are heads of q different microbatches and tails of q different ones, so the slowest takes
    at least (all loads + the q least heads + the q least tails) / q, for some q. Of the k x pipelines + 1 longest
    microbatches some pipeline has k + 1. One microbatch alone takes all its actions.
    """
    stages = range(len(forward[0]) if forward else 0)
    views = (_view(forward, backward, stage=stage, transfer_ns=transfer_ns) for stage in stages)
    most = max((stage_bound(view, pipelines=pipelines) for view in views), default=0)
    alone = (sum(up) + sum(down) + 2 * (len(up) - 1) * transfer_ns for up, down in zip(forward, backward, strict=True))
    return max(most, *alone, 0)


def stage_bound(view: StageView, *, pipelines: int, least_used: int = 1) -> int:
    """What `bound_any_order` says of one stage; at least `least_used` pipelines have work."""
    longest = sorted(view.loads, reverse=True)
    crowded = (
        sum(longest[k * pipelines - k : k * pipelines + 1]) for k in range(1, (len(longest) - 1) // pipelines + 1)
    )
    heads, tails = (_least_sums(times) for times in (view.heads, view.tails))
    return max(
        min(
            -(-(sum(longest) + heads[used] + tails[used]) // used)
            for used in range(min(least_used, pipelines, len(longest)), min(pipelines, len(longest)) + 1)
        ),
        max(crowded, default=0) + heads[1] + tails[1],
        *(load + head + tail for load, head, tail in zip(view.loads, view.heads, view.tails, strict=True)),
    )


def bound_1f1b(forward: Rows, backward: Rows, *, pipelines: int, transfer_ns: int = 0) -> int:
    """No dealing ends before if every pipeline runs 1F1B; at least `bound_any_order`.

    A stage with w stages after it runs w + 1 forwards and then waits for its first backward, which cannot begin before
    the first microbatch has been through the stages after it and back; at the end it waits likewise for the last. That
    wait, less the other w actions that are run in it, is idle time twice over in every pipeline with more than w + 1
    microbatches; other pipelines take w + 1 of the longest at most.
    """
    most = bound_any_order(forward, backward, pipelines=pipelines, transfer_ns=transfer_ns)
    num_stages = len(forward[0]) if forward else 0
    for stage in range(num_stages):
        view = _view(forward, backward, stage=stage, transfer_ns=transfer_ns)
        after = num_stages - 1 - stage
        turnarounds = sorted(
            sum(up[stage + 1 :]) + sum(down[stage + 1 :]) + 2 * after * transfer_ns
            for up, down in zip(forward, backward, strict=True)
        )
        longest = [0, *accumulate(sorted(view.loads, reverse=True))]
        heads, tails = (_least_sums(times) for times in (view.heads, view.tails))
        rows = [sorted((row[stage] for row in rows), reverse=True) for rows in (forward, backward)]
        ends = []
        for used in range(1, min(pipelines, len(turnarounds) // (after + 2)) + 1):
            elsewhere = longest[min(len(turnarounds), (after + 1) * (pipelines - used))]
            idle = sum(_least_idle(turnarounds[:used], row[: used * after]) for row in rows)
            ends.append(-(-(longest[-1] - elsewhere + heads[used] + tails[used] + idle) // used))
        if len(turnarounds) > (after + 1) * pipelines:  # else no pipeline need have more than after + 1
            most = max(most, min(ends))
    return most


def _view(forward: Rows, backward: Rows, *, stage: int, transfer_ns: int) -> StageView:
    return StageView(
        loads=[up[stage] + down[stage] for up, down in zip(forward, backward, strict=True)],
        heads=[sum(row[:stage]) + stage * transfer_ns for row in forward],
        tails=[sum(row[:stage]) + stage * transfer_ns for row in backward],
    )


def _least_sums(times: Sequence[int]) -> list[int]:
    """Of the n least, for every n."""
    return [0, *accumulate(sorted(times))]


def _least_idle(turnarounds: Sequence[int], filling: Sequence[int]) -> int:
    """What is left of the shortest turnarounds, one per pipeline, when the longest actions fill them; never below 0.

    No action fills more than its turnaround, and after an exchange none more than the longest of the turnarounds given.
    """
    return max(0, sum(turnarounds) - sum(min(time, turnarounds[-1]) for time in filling))
