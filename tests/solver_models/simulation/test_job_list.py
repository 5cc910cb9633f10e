"""Jobs put into an order: small cases by hand, and stages against orders as everyone draws them."""

import pytest

from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD
from solver_models.simulation.job_list import NOBODY, list_jobs, make_jobs, stage_jobs

Columns = dict[str, list[int]]
Edge = tuple[int, int, int, int]


def order_of(columns: Columns, *, budget: list[int], edges: list[Edge]) -> tuple[list[int], int]:
    """The jobs as they start, and the last end."""
    order, end = list_jobs(make_jobs(columns, budget=budget, edges=edges))
    return order.tolist(), end


def test_the_first_to_start_goes_first_then_the_least_rank():
    """Tests that job 1 runs before 0 by its rank, and 2, which waits for 1 elsewhere, before 0 is ready again.

    device 0  1 1 0 0 0
    device 1  . . . 2        a tick after 1
    """
    edges: list[Edge] = [(1, 2, 1, NOBODY)]
    columns = {"device": [0, 0, 1], "ticks": [3, 2, 1], "rank": [1, 0, 2]}
    assert order_of(columns, budget=[0, 0], edges=edges) == ([1, 0, 2], 5)
    assert order_of({**columns, "gap": [4, 0, 0]}, budget=[0, 0], edges=edges) == ([1, 2, 0], 9)


def test_rooms_are_kept():
    """Tests that a second job that holds a unit waits for the one that gives it back, and that none starts in vain."""
    columns = {"device": [0] * 4, "ticks": [1] * 4, "rank": [0, 1, 2, 3], "after": [1, 1, -1, -1]}
    edges = [(0, 2, 0, NOBODY), (1, 3, 0, NOBODY)]
    assert order_of(columns, budget=[2], edges=edges)[0] == [0, 1, 2, 3]
    assert order_of(columns, budget=[1], edges=edges)[0] == [0, 2, 1, 3]
    assert order_of(columns, budget=[0], edges=edges) == ([], 0)
    assert order_of({**columns, "during": [2] * 4}, budget=[1], edges=edges) == ([], 0)


@pytest.mark.parametrize(("channel", "end"), [(NOBODY, 5), (0, 8)])
def test_a_channel_takes_one_after_the_other(channel: int, end: int):
    """Tests that of two jobs sent at once, three ticks each, the second comes three later through one channel."""
    columns = {"device": [0, 1, 2], "ticks": [1, 1, 1], "rank": [0, 1, 2]}
    assert order_of(columns, budget=[0] * 3, edges=[(0, 1, 3, channel), (0, 2, 3, channel)]) == ([0, 1, 2], end)


@pytest.mark.parametrize(
    ("caps", "last", "expected"),
    [
        ([2, 1], BACKWARD, ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]),
        ([3, 3], INPUT_GRAD, ["F0 F1 F2 I0 W0 I1 W1 I2 W2", "F0 I0 F1 I1 F2 I2 W0 W1 W2"]),
    ],
)
def test_stages_run_1f1b(caps: list[int], last: int, expected: list[str]):
    """Tests that two stages with so many microbatches in flight alternate, and that W fills what is left."""
    kinds = [(FORWARD, last, WEIGHT_GRAD)[: 2 if last == BACKWARD else 3]] * 2
    of = stage_jobs(kinds, [(0, 1, False), (1, 0, True)], caps=caps, count=3)
    edges = [
        (job, int(of.follower[edge]), 0, NOBODY)
        for job in range(len(of.stage))
        for edge in range(of.first[job], of.first[job + 1])
    ]
    columns = {
        "device": of.stage.tolist(),
        "ticks": [1] * len(of.stage),
        "rank": [(1, 0, 2, 0)[kind] * 2 + stage for stage, kind in zip(of.stage, of.kind, strict=True)],
    }
    order, _ = order_of(columns, budget=[0, 0], edges=edges)
    named = [(of.stage[job], f"{'FIWB'[of.kind[job]]}{of.microbatch[job]}") for job in order]
    assert [" ".join(name for stage, name in named if stage == own) for own in (0, 1)] == expected
