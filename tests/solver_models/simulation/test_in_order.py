"""Given orders in plain Python: small cases by hand, and the evaluator's times."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.dealing import pipeline_actions
from solver_models.device_rows import DeviceRow
from solver_models.instance import BACKWARD, FORWARD, Transfer
from solver_models.simulation.in_order import OrderedSteps, play_in_order
from solver_models.simulation.recorded_play import PlayableSchedule, play_schedule


def test_a_chain_by_hand():
    """Tests that an action waits for its device, for what arrives, and for its gap.

    device 0  A A . . C      C comes a tick after A has ended, and two after B
    device 1  . B . .
    """
    steps = OrderedSteps(device=[0, 1, 0], source=[-1, 0, 1], lag=[0, 0, 1], gap=[0, 0, 1])
    assert play_in_order(steps, [2, 1, 3]) == [2, 3, 7]


def test_several_inputs_are_a_chain():
    """Tests that an action that waits for two others begins with the later one, its gap counted from the device."""
    steps = OrderedSteps(device=[0, 1, 2, 2], source=[-1, -1, 0, 1], lag=[0, 0, 4, 2], gap=[0, 0, 6, 0])
    assert play_in_order(steps, [3, 3, 0, 5])[-1] == 12
    assert play_in_order(steps, [3, 9, 0, 5])[-1] == 16


def test_nothing_takes_no_time():
    """Tests that no action has no end."""
    assert play_in_order(OrderedSteps([], [], [], []), []) == []


@given(stages=st.integers(1, 4), count=st.integers(1, 5), lag=st.integers(0, 5), data=st.data())
def test_times_are_those_of_the_evaluator(stages: int, count: int, lag: int, data: st.DataObject):
    """Tests that 1F1B of alike microbatches takes as long as the evaluator says."""
    ticks = np.array(data.draw(st.lists(st.tuples(*[st.integers(1, 9)] * 4), min_size=stages, max_size=stages)))
    actions = pipeline_actions(stages, count)
    number = {action: place for place, action in enumerate(actions)}
    sources = [number.get((s + (-1 if ahead else 1), m, ahead), -1) for s, m, ahead in actions]
    steps = OrderedSteps([s for s, *_ in actions], sources, [lag] * len(actions), [0] * len(actions))
    kinds = [FORWARD if ahead else BACKWARD for *_, ahead in actions]
    durations = [int(ticks[s, kind]) for (s, *_), kind in zip(actions, kinds, strict=True)]
    rows = sorted(range(len(actions)), key=lambda place: actions[place][0])
    schedule = _schedule([(*actions[place][:2], kinds[place]) for place in rows], stages=stages, ticks=ticks, lag=lag)
    ends = play_in_order(steps, durations)
    assert [ends[place] - durations[place] for place in rows] == play_schedule(schedule).start.tolist()


def _schedule(rows: list[tuple[int, int, int]], *, stages: int, ticks: np.ndarray, lag: int) -> PlayableSchedule:
    """Stage, microbatch and kind of every action, device by device; neighbours send both ways."""
    ends = [(s, s + 1, False) for s in range(stages - 1)] + [(s + 1, s, True) for s in range(stages - 1)]
    inner = np.arange(stages)
    stage, microbatch, kind = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return PlayableSchedule(
        num_microbatches=int(microbatch.max()) + 1,
        stage=inner,
        devices=[DeviceRow()] * stages,
        groups=[(s,) for s in range(stages)],
        duration=ticks,
        transfers=[
            Transfer(sender=a, receiver=b, is_backward=back, duration=lag, links=(place,))
            for place, (a, b, back) in enumerate(ends)
        ],
        waits=np.stack([inner > 0, inner < stages - 1], axis=1).astype(np.int64),
        waits_once=np.zeros(stages, np.int64),
        first=np.searchsorted(stage, np.arange(stages + 1)),
        replica=stage,
        kind=kind,
        microbatch=microbatch,
    )
