"""Schedules with times: what the evaluator plays beyond the search's nets, drawn in small."""

import numpy as np
import pytest

from planner.problem import MOST_MICROBATCHES, MOST_STAGES
from solver_models.device_rows import DeviceRow
from solver_models.instance import FORWARD, INPUT_GRAD, WEIGHT_GRAD, Transfer
from solver_models.simulation import event_heap
from solver_models.simulation.recorded_play import PlayableSchedule, PlayedTimes, check_size, play_schedule

F, IG, W = FORWARD, INPUT_GRAD, WEIGHT_GRAD


def play(words: list[list[tuple[int, int, int]]], **changes: object) -> PlayedTimes:
    """Two lanes on two devices, F 2, I 3 and W 1 ticks, 5 ticks each way; words of (lane, kind, microbatch)."""
    flows = (
        Transfer(sender=0, receiver=1, is_backward=False, duration=5, links=(0,)),
        Transfer(sender=1, receiver=0, is_backward=True, duration=5, links=(1,)),
    )
    lane, kind, microbatch = np.array([action for word in words for action in word], dtype=np.int64).T
    game = {
        "num_microbatches": int(microbatch.max()) + 1,
        "stage": np.array([0, 1]),
        "devices": (DeviceRow(), DeviceRow()),
        "groups": ((0,), (1,)),
        "duration": np.array([[2, 3, 1, 4]] * 2),
        "transfers": flows,
        "waits": np.array([[0, 1], [1, 0]]),
        "waits_once": np.zeros(2, np.int64),
        "first": np.cumsum([0, *map(len, words)]),
        "replica": np.ascontiguousarray(lane),
        "kind": np.ascontiguousarray(kind),
        "microbatch": np.ascontiguousarray(microbatch),
    }
    return play_schedule(PlayableSchedule(**{**game, **changes}))


def test_microbatches_come_in_the_order_of_the_words():
    """Tests that both devices take microbatch 1 first, and that every transfer has its start."""
    first = [(0, F, 1), (0, F, 0), (0, IG, 1), (0, W, 1), (0, IG, 0), (0, W, 0)]
    second = [(1, F, 1), (1, IG, 1), (1, W, 1), (1, F, 0), (1, IG, 0), (1, W, 0)]
    times = play([first, second])
    assert times.start.tolist() == [0, 2, 17, 20, 23, 26, 7, 9, 12, 13, 15, 18]
    assert times.sent[:, :-1].tolist() == [[7, 2], [18, 12]]


def test_what_waits_for_itself_never_starts():
    """Tests that a device which runs I before the F that feeds it stands still, and all that waits for it."""
    times = play([[(0, IG, 0), (0, F, 0)], [(1, F, 0), (1, IG, 0)]])
    assert times.start.tolist() == [-1, -1, -1, -1]


def test_devices_of_a_lane_act_together():
    """Tests that an action of two devices begins once both are at it, and holds both."""
    words = [[(0, F, 0), (2, F, 0)], [(2, F, 0)], [(1, F, 0)]]
    times = play(
        words,
        stage=np.array([0, 1, 2]),
        devices=[DeviceRow()] * 3,
        groups=((0,), (2,), (0, 1)),
        duration=np.array([[2, 3, 1, 4]] * 3),
        transfers=(),
        waits=np.zeros((3, 2), np.int64),
        waits_once=np.zeros(3, np.int64),
    )
    assert times.start.tolist() == [0, 2, 2, 0]


def test_limits_are_those_of_the_problem():
    """Tests that a problem is refused at the same sizes as a game."""
    assert (MOST_STAGES, MOST_MICROBATCHES) == (event_heap.MOST_STAGES, event_heap.MOST_MICROBATCHES)
    check_size(num_stages=MOST_STAGES, num_microbatches=MOST_MICROBATCHES)
    with pytest.raises(ValueError, match=r"2048 stages; at most 2047 can be played"):
        check_size(num_stages=MOST_STAGES + 1)
    with pytest.raises(ValueError, match=r"num_microbatches = 2097151; at most 2097150"):
        check_size(num_microbatches=MOST_MICROBATCHES + 1)


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("microbatch", [-1, 0, 7, MOST_MICROBATCHES])
def test_keys_keep_what_they_are_made_of(order: int, microbatch: int):
    """Tests that a key gives back its code, index, direction and microbatch, and sorts by order first."""
    key = event_heap.event_key(order, MOST_STAGES, microbatch, 1, event_heap.MOST_TRANSFERS, event_heap.SEND)
    assert event_heap.event_of(key) == (event_heap.SEND, event_heap.MOST_TRANSFERS, 1, microbatch)
    assert (key >= event_heap.FIRST_SEND) == (order > 0)
    assert key < 2**62
