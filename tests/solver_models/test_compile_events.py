"""Hears when numba compiles, so that a clock can stand still meanwhile: tests of solver_models/compile_events.py."""

import pytest

from solver_models.compile_events import CompileWatch


def test_compilations_are_heard():
    """Tests that the watch hears numba compile a function that nobody has called before, and nothing after its exit."""
    numba = pytest.importorskip("numba")
    if numba.config.DISABLE_JIT:
        pytest.skip("nothing is compiled here")
    begun: list[bool] = []
    with CompileWatch(on_begin=lambda: begun.append(True)) as watch:
        numba.njit(lambda x: x + 1)(1)
        heard = watch.seconds
        assert heard > 0
    numba.njit(lambda x: x + 2)(1)
    assert watch.seconds == heard
    assert begun
