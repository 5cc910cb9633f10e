"""Kernels: compiled when they are called, interpreted where loading the compiler would take longer."""

import sys
from types import ModuleType

import pytest

from solver_models import compiled
from solver_models.compiled import MOST_INTERPRETED, interpreting, kernel


@kernel
def _double(value: int) -> int:
    return 2 * value


@kernel
def _quadruple(value: int) -> int:
    return _double(_double(value))


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this process had interpreted nothing yet, nor loaded the compiler."""
    monkeypatch.setattr(compiled, "_interpreted", 0)
    monkeypatch.delitem(sys.modules, "solver_models.jit", raising=False)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the functions that were handed to the compiler, which gives them back as they are."""
    names: list[str] = []

    def note(function):
        names.append(function.__name__)
        return function

    monkeypatch.setattr(compiled, "_compile", note)
    return names


def test_a_small_task_is_interpreted(compilations: list[str]):
    """Tests that neither a kernel nor those that it calls are compiled while a few steps are interpreted."""
    first = kernel(lambda value: value + 1)
    with interpreting(MOST_INTERPRETED):
        assert first(1) == 2
        assert _quadruple(3) == 12
    assert compilations == []


def test_many_tasks_are_compiled(compilations: list[str]):
    """Tests that a kernel is compiled, once, as soon as a process has interpreted its share."""
    first = kernel(lambda value: value + 1)
    for _ in range(3):
        with interpreting(MOST_INTERPRETED):
            assert first(1) == 2
    assert compilations == ["<lambda>"]


def test_a_loaded_compiler_is_used(compilations: list[str], monkeypatch: pytest.MonkeyPatch):
    """Tests that nothing is interpreted once the compiler has been loaded."""
    monkeypatch.setitem(sys.modules, "solver_models.jit", ModuleType("jit"))
    with interpreting(1):
        assert kernel(lambda value: value + 1)(1) == 2
    assert compilations == ["<lambda>"]


def test_a_call_is_compiled_unless_said_otherwise(compilations: list[str]):
    """Tests that the interpreter stands in within `interpreting` only, also after an error."""
    first = kernel(lambda value: value + 1)
    with pytest.raises(TypeError), interpreting(1):
        first("1")
    assert first(1) == 2
    assert compilations == ["<lambda>"]


def test_a_kernel_calls_another():
    """Tests that numba sees through the names that kernels have for each other."""
    pytest.importorskip("numba")
    assert _quadruple(3) == 12


def test_without_a_compiler_functions_stay_as_they_are(monkeypatch: pytest.MonkeyPatch):
    """Tests that a plain installation runs kernels in the interpreter."""
    monkeypatch.setitem(sys.modules, "numba", None)
    assert kernel(lambda value: value + 1)(1) == 2


def test_a_kernel_says_what_it_is():
    """Tests that a kernel has the name and the docstring of its function."""

    @kernel
    def described() -> int:
        """Says so."""
        return 1

    assert (described.__name__, described.__doc__) == ("described", "Says so.")
