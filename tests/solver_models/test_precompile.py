"""Kernels are compiled in groups, each by one process, as many at a time as there are cores."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from solver_models import jit, precompile
from solver_models.local_search.search import Candidate, Searcher

WAIT_S = 20.0
"""Far longer than anything here takes."""


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The groups that ran, of two that do nothing, in a cache of their own."""
    ran: list[str] = []

    def note(name: str) -> Callable[[Searcher, Candidate], None]:
        return lambda searcher, candidate: ran.append(name)

    monkeypatch.setattr(precompile, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(precompile, "FIRST", {"one": note("one"), "two": note("two")})
    return ran


def wait_for(condition: Callable[[], bool]) -> None:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < WAIT_S
        time.sleep(0.01)


def test_a_group_runs_once(ran: list[str]):
    """Tests that what is warm is not compiled again."""
    assert not precompile.is_warm("one")
    precompile.take_share("one")
    precompile.take_share("one", "two")
    assert ran == ["one", "two"]
    assert precompile.is_warm("one", "two")
    assert precompile.compile_groups("one", "two") < 1.0


def test_what_another_process_holds_is_left_for_the_end(ran: list[str]):
    """Tests that a group that somebody else compiles is passed over, and waited for once nothing else is to be done."""
    with ThreadPoolExecutor() as pool:
        with precompile._locked(precompile._mark("one"), is_patient=True):
            share = pool.submit(precompile.take_share, "one", "two")
            wait_for(lambda: ran == ["two"])
            time.sleep(0.1)
            assert not share.done()
        share.result(WAIT_S)
    assert ran == ["two", "one"]


def test_no_more_processes_compile_than_there_are_cores(ran: list[str], tmp_path: Path):
    """Tests that a further process waits until one of the others has ended."""
    seats = [tmp_path / f"seat-{number}" for number in range(len(os.sched_getaffinity(0)))]
    with ThreadPoolExecutor() as pool:
        held = [precompile._locked(seat, is_patient=True) for seat in seats]
        for each in held:
            each.__enter__()
        share = pool.submit(precompile.take_share, "one")
        time.sleep(3 * precompile.POLL_EVERY_S)
        assert ran == []
        for each in held:
            each.__exit__(None, None, None)
        share.result(WAIT_S)
    assert ran == ["one"]


def test_an_unknown_group_is_named():
    """Tests that a group that does not exist is refused, with those that do."""
    run = subprocess.run(
        [sys.executable, "-m", "solver_models.precompile", "juggling"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "'juggling'" in run.stderr
    assert "tabu-search" in run.stderr


COMPILES_WITH = """
import sys


class NotYet:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in {*sys.stdlib_module_names, "solver_models", "llvmlite", *NEEDED}:
            raise ModuleNotFoundError(f"no module named {name!r} yet", name=name)


sys.meta_path.insert(0, NotYet())
from solver_models import jit, precompile

for compile_group in (precompile.FIRST | precompile.LATER).values():
    compile_group(*precompile.toy_search())
print(jit.module_folder("solver_models.precompile").name)
"""


@pytest.mark.slow
def test_what_the_makefile_installs_first_is_all_that_compiling_needs(repository_root: Path):
    """Tests that every group compiles, and finds its folder, before pip has installed the rest."""
    makefile = (repository_root / "Makefile").read_text(encoding="utf-8")
    (needed,) = re.findall(r"^KERNELS_NEED := (.*)$", makefile, flags=re.MULTILINE)
    code = f"NEEDED = {needed.split()}\n{COMPILES_WITH}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == f"{jit.module_folder('solver_models.precompile').name}\n"


FIRST_PLAN = """
import sys
from planner.planning import Limits
from tests.planner.hasty import make_plan
from planner.problem import Options, Problem
from profiles.load import load_workload
from solver_models import precompile


def compiled():
    rooms = [module for name, module in sys.modules.items() if name.startswith("solver_models")]
    known = {each for room in rooms for each in vars(room).values() if callable(each) and not isinstance(each, type)}
    kernels = {each.dispatcher for each in known if hasattr(each, "dispatcher")}
    return {(each.py_func.__qualname__, str(types)) for each in kernels for types in each.overloads}


for compile_group in precompile.FIRST.values():
    compile_group(*precompile.toy_search())
before = compiled()
demo = load_workload("demo:resnet50-two-hosts")
problem = Problem(
    profile=demo.profile, cluster=demo.cluster, num_microbatches=demo.num_microbatches, options=Options()
)
phases = []
make_plan(
    problem,
    limits=Limits(time_limit_s=60, max_rounds=4, gap=0.004),
    on_progress=lambda told: phases.append(told.phase),
)
print("search" in phases, sorted(compiled() - before))
"""


@pytest.mark.slow
def test_a_first_plan_compiles_nothing_beyond_the_first_groups():
    """Tests that the first groups call all kernels that the demo calls, so that its clock never stops."""
    run = subprocess.run([sys.executable, "-c", FIRST_PLAN], capture_output=True, text=True, check=True)
    assert run.stdout == "True []\n"
