"""The clocks of the probe: both at the same moments."""

import threading
import time

import pytest


def test_waiting_is_no_work():
    """Tests that an entry by the thread's clock has the same actions, in which sleeping takes no time."""
    from planner.execute.probe import BothClocks
    from planner.execute.record.action_log import ActionLog

    clock = BothClocks()
    log = ActionLog(clock)
    begin = clock.resolve(clock.mark())
    for name in ("0F0", "0B0"):
        log.note(name)
        with log.computing():
            time.sleep(0.02)
    taken_up = tuple(log.taken_up())
    actions = [list(action) for action in log.end_iteration()]
    entry = {"actions": actions, "times": {"taken_up_ns": taken_up, "begin_ns": begin}}
    worked = clock.by_thread(entry)
    assert [name for name, _, _ in worked["actions"]] == ["0F0", "0B0"]
    for (_, start, end), (_, first, last) in zip(actions, worked["actions"], strict=True):
        assert end - start >= 20_000_000 > last - first >= 0
    assert worked["times"]["begin_ns"] <= worked["times"]["taken_up_ns"][0] <= worked["actions"][0][1]


def test_what_other_threads_work_is_known():
    """Tests that the processor time of threads beside the last action is told, and not that of the action itself."""
    from planner.execute.probe import BothClocks
    from planner.execute.record.action_log import ActionLog

    def work(seconds: float) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    served = []
    log = ActionLog(clock := BothClocks())
    for seconds in (0.0, 0.05):
        log.note("0B0")
        other = threading.Thread(target=work, args=(seconds,))
        with log.computing():
            work(0.02)
            other.start()
            other.join()
        actions = [list(action) for action in log.end_iteration()]
        served.append(clock.served_in({"actions": actions, "times": {}}))
    assert served[0] < 15_000_000
    assert served[1] == pytest.approx(50_000_000, abs=15_000_000)
