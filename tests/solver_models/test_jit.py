"""Compiled functions are cached where no stale one can be found."""

import ast
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pytest

from solver_models import jit
from tests.long_runs import long_only

ROOM = Path(jit.__file__).parent


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the sources."""
    shutil.copytree(ROOM, tmp_path / "solver_models", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def ask(room: Path, expression: str, cache: Path) -> str:
    """What an expression about `jit` is in a fresh interpreter that sees the sources of `room`."""
    return run(room, f"from solver_models import jit; print({expression})", cache)


def run(room: Path, code: str, cache: Path) -> str:
    """What code prints in a fresh interpreter that sees the sources of `room`."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(room)}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=room, check=True
    )
    return ended.stdout.strip()


def folder_of(room: Path, module: str) -> Path:
    return Path(ask(room, f"jit.module_folder('solver_models.{module}')", room / "cache"))


def test_the_folder_is_found_by_every_clone(copied: Path):
    """Tests that the same sources always give the same folder, below the one the user names, wherever they lie."""
    folder = folder_of(copied, "moves.annealing")
    assert folder.is_relative_to(copied / "cache")
    assert folder_of(copied, "moves.annealing") == folder
    assert folder.name == jit.module_folder("solver_models.moves.annealing").name


CHANGES = {
    ("moves/annealing", "moves.annealing"): True,
    ("simulation/evaluator", "moves.annealing"): True,
    ("instance", "simulation.evaluator"): True,
    ("jit", "simulation.evaluator"): True,
    ("moves/annealing", "simulation.evaluator"): False,
    ("joint/partition_enumeration", "moves.annealing"): False,
}
"""Whether a change of one module leads to another folder for another."""

CHANGE_EACH = """
import pathlib
from solver_models import jit


def folder_after(changed, module):
    with pathlib.Path("solver_models", changed + ".py").open("a") as file:
        file.write("# changed\\n")
    jit._source.cache_clear()
    jit.module_folder.cache_clear()
    return jit.module_folder("solver_models." + module)


print([jit.module_folder("solver_models." + module) != folder_after(changed, module) for changed, module in CHANGES])
"""


def test_what_goes_into_a_module_counts(copied: Path):
    """Tests that a change of a module, or of what it imports, leads to another folder, and no other change does."""
    code = f"CHANGES = {list(CHANGES)}\n{CHANGE_EACH}"
    assert run(copied, code, copied / "cache") == str(list(CHANGES.values()))


def test_an_unwritable_folder_is_replaced(copied: Path, tmp_path: Path):
    """Tests that a folder which cannot be made, or not be written to, gives way to a temporary one."""
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    folder = Path(ask(copied, "jit.cache_folder()", tmp_path / "file"))
    assert not folder.is_relative_to(tmp_path)
    assert folder.name == "kernels"


LITERAL = """
from solver_models.jit import kernel


@kernel
def add(a, b):
    return a + b


@kernel
def both(a):
    return add(a, 1) + add(a, 2)


def seen_alone():
    both(1)
    return len(add.signatures)


def seen_from_both_sides():
    return both(1), add(1, 2), add(3, 4), len(add.signatures)


@kernel
def item(row, at):
    return row[at]


def item_of(at):
    import numba
    import numpy

    row = numpy.arange(3)
    last = numba.njit(lambda row, at: row[at])(row, -1)
    try:
        return int(item(row, at)), int(last)
    except IndexError as error:
        return str(error), int(last)


def sizes():
    return both(1), sum(both.stats.cache_hits.values()), sum(both.stats.cache_misses.values())


def copies():
    (compiled,) = (both(1), both.overloads.values())[1]
    functions = compiled.library._final_module.functions
    return [not each.is_declaration for each in functions if "literal3add" in each.name]
"""


def literal_module(folder: Path) -> Path:
    """A clone in `folder` with a module of two small kernels."""
    shutil.copytree(ROOM, folder / "solver_models", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "solver_models" / "literal.py").write_text(LITERAL, encoding="utf-8")
    return folder


def ask_literal(room: Path, call: str, cache: Path) -> str:
    return ask(room, f"__import__('solver_models.literal', fromlist='x').{call}", cache)


@pytest.mark.slow
def test_clones_share_compiled_functions(tmp_path: Path):
    """Tests that another folder finds all that one compiled."""
    one, two = literal_module(tmp_path / "one"), literal_module(tmp_path / "two")
    assert ask_literal(one, "sizes()", tmp_path / "cache") == "(5, 0, 1)"
    assert ask_literal(two, "sizes()", tmp_path / "cache") == "(5, 1, 0)"


@long_only
def test_only_what_python_calls_has_a_door(tmp_path: Path):
    """Tests that a kernel called by kernels gets no wrapper, and one when Python calls it, by value and not by literal.

    The answers are those of the interpreter, whoever comes first.
    """
    room = literal_module(tmp_path / "room")
    assert ask_literal(room, "seen_alone()", tmp_path / "cache") == "0"
    assert ask_literal(room, "seen_from_both_sides()", tmp_path / "cache") == "(5, 3, 7, 1)"
    assert ask_literal(room, "seen_from_both_sides()", tmp_path / "cache") == "(5, 3, 7, 1)"


def test_processes_compile_a_function_once(tmp_path: Path):
    """Tests that of three processes that want a kernel at the same time one compiles it, and the others wait."""
    room = literal_module(tmp_path / "room")
    with ThreadPoolExecutor() as pool:
        seen = list(pool.map(lambda _: ask_literal(room, "sizes()", tmp_path / "cache"), range(3)))
    assert sorted(seen) == ["(5, 0, 1)", "(5, 1, 0)", "(5, 1, 0)"]


def callee_room(folder: Path) -> Path:
    """A clone with the same two kernels, where every function counts as large."""
    room = literal_module(folder)
    path = room / "solver_models" / "jit.py"
    source = path.read_text(encoding="utf-8")
    assert source.count("\nMOST_TAKEN_IN = 400\n") == 1
    path.write_text(source.replace("\nMOST_TAKEN_IN = 400\n", "\nMOST_TAKEN_IN = 0\n"), encoding="utf-8")
    return room


@long_only
def test_a_large_function_is_compiled_once(tmp_path: Path):
    """Tests that callers hold no copy of a large function, find it when they are loaded, and else are compiled again.

    Lost is the callee alone, or what a callee is called in: both give the right answer and are whole again afterwards.
    """
    room = callee_room(tmp_path / "room")
    assert ask_literal(room, "copies()", tmp_path / "cache") == "[False]"
    assert ask_literal(room, "sizes()", tmp_path / "cache") == "(5, 1, 0)"
    stored = sorted((tmp_path / "cache").rglob("*.nbc"))
    callers, callees = ([each for each in stored if f".{name}-" in each.name] for name in ("both", "add"))
    assert len(callers) == len(callees) == 1
    for lost in (callees, callers, callees):
        lost[0].unlink()
        assert ask_literal(room, "sizes()", tmp_path / "cache") == "(5, 0, 1)"
        assert ask_literal(room, "sizes()", tmp_path / "cache") == "(5, 1, 0)"


@pytest.mark.slow
def test_kernels_count_from_the_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that numba wraps an index below 0 outside kernels, and refuses one in a kernel where it looks at all."""
    room = literal_module(tmp_path / "room")
    assert ask_literal(room, "item_of(2)", tmp_path / "cache") == "(2, 2)"
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    assert ask_literal(room, "item_of(2)", tmp_path / "checked") == "(2, 2)"
    assert ask_literal(room, "item_of(-1)", tmp_path / "checked") == "('index is out of bounds', 2)"


def test_no_kernel_counts_from_the_end():
    """Tests that no kernel asks for an element by a number below 0, which takes what lies before the array."""
    asked = []
    for path in sorted([*ROOM.rglob("*.py"), *ROOM.parent.joinpath("tests").rglob("*.py")]):
        text = path.read_text(encoding="utf-8")
        for function in ast.walk(ast.parse(text)) if "@kernel" in text else ():  # parsing all takes two seconds
            if isinstance(function, ast.FunctionDef) and "kernel" in map(ast.unparse, function.decorator_list):
                places = (each.slice for each in ast.walk(function) if isinstance(each, ast.Subscript))
                parts = (part for place in places for part in getattr(place, "elts", [place]))
                asked += [f"{path.name}: {function.name}" for part in parts if isinstance(part, ast.UnaryOp)]
    assert asked == []


def test_what_does_not_fit_its_slice_is_refused():
    """Tests that compiled code assigns an array to a slice of its shape and refuses another, joining no strings."""

    @numba.njit
    def put(row, values):
        row[:2] = values

    row = np.zeros(3)
    put(row, np.ones(2))
    assert row.tolist() == [1, 1, 0]
    with pytest.raises(ValueError, match="does not fit the slice"):
        put(row, np.ones(3))
    assert "unicode" not in next(iter(put.inspect_llvm().values()))
