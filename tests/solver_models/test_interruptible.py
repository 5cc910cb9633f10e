"""Tests of solver_models/interruptible.py."""

import _thread
import threading
import time

import pytest

from solver_models.schedule.effort import SolveEffort
from solver_models.schedule.serial_schedule import one_by_one
from solver_models.schedule.solve import solve_order
from tests.solver_models.schedule.test_solve import big


def test_stop_is_obeyed_within_half_a_second():
    """Tests that the solver works no longer than half a second after it is told to stop, and keeps what it has."""
    problem = big(microbatches=40)
    asked: list[float] = []

    def should_stop() -> bool:
        asked.append(time.process_time())
        return len(asked) > 40

    result = solve_order(
        problem, hint=one_by_one(problem), effort=SolveEffort(time_limit_s=60, should_stop=should_stop)
    )
    assert time.process_time() - asked[40] < 0.5
    assert result.device_orders is not None
    assert result.bound is not None


def test_keyboard_interrupt_is_heard():
    """Tests that Ctrl+C reaches the caller while the solver is in C++."""
    timer = threading.Timer(0.5, _thread.interrupt_main)
    timer.start()
    start = time.process_time()
    with pytest.raises(KeyboardInterrupt):
        solve_order(big(), hint=one_by_one(big()), effort=SolveEffort(time_limit_s=60))
    assert time.process_time() - start < 2
