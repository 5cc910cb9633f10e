"""The clocks of the probe: both at the same moments."""

import time


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
